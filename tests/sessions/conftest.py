from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from openclaw_rl.config import Config
from openclaw_rl.serving.engines.rendering import Renderer
from openclaw_rl.sessions.importing import Imported, import_file
from openclaw_rl.sessions.reconstruct import Reconstructor
from openclaw_rl.store import Store
from openclaw_rl.testing.tiny_model import smollm2_tokenizer
from tests.builders import make_config

Import = Callable[..., Imported]


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return make_config(tmp_path / "run")


@pytest.fixture
def store(config: Config) -> Iterator[Store]:
    opened = Store.open(config.store_path)
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def reconstructor() -> Reconstructor:
    tokenizer = smollm2_tokenizer()
    return Reconstructor(Renderer(tokenizer), [tokenizer.eos_token_id])


@pytest.fixture
def importing(store: Store, config: Config, tmp_path: Path, reconstructor: Reconstructor) -> Import:
    """Write a text into a file and import it."""

    def run(text: str, **values: str) -> Imported:
        path = tmp_path / "told.jsonl"
        path.write_text(text, encoding="utf-8")
        return import_file(store, config, path, reconstructor=lambda: reconstructor, **values)

    return run
