from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.docs.deployment import Started, Workplace, eventually, make_workplace, react, served_version


@pytest.fixture(scope="session")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    return make_workplace(tmp_path_factory.mktemp("checkout"))


@pytest.fixture(scope="session")
def running(workplace: Workplace) -> Iterator[Started]:
    """The README's deployment, ended by Ctrl-C after the last test; that too has to work."""
    started = Started(workplace)
    try:
        started.wait_ready()
        yield started
    finally:
        code = started.interrupt()
    assert code == 0, started.said()


@pytest.fixture(scope="session")
def learned(workplace: Workplace, running: Started) -> int:
    """The version in service once somebody has reacted: at least 1."""
    react(workplace.url)
    eventually(lambda: (served_version(workplace.url) or 0) >= 1, "a new version serves", 120.0)
    return served_version(workplace.url) or 0
