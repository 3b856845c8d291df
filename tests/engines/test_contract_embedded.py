"""The embedded engine keeps the contract, with the real SmolLM2 in fp32."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from openclaw_rl.config import Config, ModelConfig
from openclaw_rl.models import resolve_model
from tests.engines.contract import EngineContract
from tests.engines.harness import EngineHarness

pytestmark = [pytest.mark.real_model, pytest.mark.timeout(600)]


class EmbeddedHarness(EngineHarness):
    """Keeps the models that requests began on."""

    swaps_whole_models = False


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineHarness]:
    model = resolve_model(ModelConfig())
    engine = {"context_length": 512, "max_versions": 3, "threads": 1}
    run_dir = tmp_path_factory.mktemp("embedded")
    config = Config.model_validate({"run_dir": run_dir, "model": {"path": str(model)}, "engine": engine})
    with EmbeddedHarness(config, model) as started:
        yield started


class TestEmbedded(EngineContract):
    """The promises, kept."""
