from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from openclaw_rl.config import Config
from openclaw_rl.store import Store
from tests.builders import make_config


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return make_config(tmp_path / "run")


@pytest.fixture
def store(config: Config) -> Iterator[Store]:
    opened = Store.open(config.store_path)
    yield opened
    opened.close()
