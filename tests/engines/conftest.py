from __future__ import annotations

from pathlib import Path

import pytest

from openclaw_rl.testing.tiny_model import build_tiny_model
from openclaw_rl.types import PolicyVersion
from tests.engines.support import write_adapter


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def adapters(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, PolicyVersion]:
    root = tmp_path_factory.mktemp("adapters")
    return {n: write_adapter(tiny, root / f"step-{n}", seed=n) for n in (1, 2, 3, 4, 5)}
