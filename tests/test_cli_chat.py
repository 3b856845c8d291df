"""`chat`, as a person types it, with a gateway that listens: who it says is talking."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from openclaw_rl.cli import main
from openclaw_rl.config_render import write_private_json
from openclaw_rl.supervision.state import Phase, SupervisorState, child_config_path, process_created_at
from tests.gateway.conftest import Gateway, running

KEYS = [{"name": "phone", "key": "pk"}, {"name": "desk", "key": "dk"}]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("OPENCLAW_RL_")]:
        monkeypatch.delenv(name)


def up(gateway: Gateway) -> Gateway:
    """Leave in the run directory what a supervisor of this gateway would."""
    write_private_json(gateway.config, child_config_path(gateway.config.run_dir))
    created = process_created_at(os.getpid())
    assert created is not None
    SupervisorState(
        phase=Phase.READY,
        pid=os.getpid(),
        created_at=created,
        started_at=created,
        run_dir=str(gateway.config.run_dir),
        url=f"{gateway.url}/v1",
        engine_url="",
    ).write()
    return gateway


@pytest.fixture(scope="module")
def per_user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with running(tmp_path_factory.mktemp("chat") / "run", policies={"per": "user"}, api_keys=KEYS) as gateway:
        yield up(gateway)


def chat(gateway: Gateway, monkeypatch: pytest.MonkeyPatch, *options: str) -> int:
    monkeypatch.setattr("sys.stdin", io.StringIO("Hello there!\n/quit\n"))
    return main(["chat", "--run-dir", str(gateway.config.run_dir), *options])


@pytest.mark.parametrize(
    ("options", "owner"),
    [
        (("--user", "ann"), "ann"),
        (("--user", "J\u00f6rg \u5c0f"), "J\u00f6rg \u5c0f"),
        (("--user", " bob\t "), "bob"),
        (("--user", "phone"), "phone"),
        ((), "phone"),
    ],
)
def test_who_is_said_to_talk_is_who_the_gateway_hears(
    per_user: Gateway,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: tuple[str, ...],
    owner: str,
) -> None:
    before = len(per_user.requests())
    assert chat(per_user, monkeypatch, *options) == 0
    said = capsys.readouterr().out
    assert "You said: Hello there!" in said
    assert "was not told" not in said, "the conversation is ended as the same user's"
    assert len(per_user.requests()) == before + 1
    assert per_user.last_request().owner == owner


@pytest.mark.parametrize(
    ("user", "words"),
    [
        ("", "argument --user: a name is wanted, and this one is empty"),
        (" \t", "--user: a name is wanted, and this one is blank"),
        ("ann\n", "--user: X-User-Id must not contain control characters"),
        ("a\0b", "--user: X-User-Id must not contain control characters"),
        ("ann\udcff", "--user: the name must be UTF-8"),
        ("x" * 257, "--user: X-User-Id must have at most 256 characters"),
        ("desk", "--user: X-User-Id is the name of another API key"),
    ],
)
def test_a_name_that_the_gateway_would_not_take_is_refused_before_anything_is_asked(
    per_user: Gateway, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], user: str, words: str
) -> None:
    before = len(per_user.requests())
    assert chat(per_user, monkeypatch, "--user", user) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"openclaw-rl: {words}")
    assert said.err.count("\n") == 1
    assert len(per_user.requests()) == before


@pytest.mark.parametrize(
    ("per", "why"), [("none", "there is one policy for all"), ("key", "it is that of the API key")]
)
def test_without_a_policy_for_each_user_there_is_nobody_to_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], per: str, why: str
) -> None:
    with running(tmp_path / "run", policies={"per": per}, api_keys=KEYS) as gateway:
        up(gateway)
        assert chat(gateway, monkeypatch, "--user", "ann") == 2
        expected = f"openclaw-rl: --user has no meaning with policies.per = {per}: {why}\n"
        assert capsys.readouterr().err == expected
        assert gateway.requests() == []
        assert chat(gateway, monkeypatch) == 0
