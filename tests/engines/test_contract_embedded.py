"""The embedded engine keeps the contract, with the real SmolLM2 in fp32."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from openclaw_rl.config import ModelConfig
from openclaw_rl.models import resolve_model
from tests.engines.contract import EngineContract
from tests.engines.harness import EngineHarness, contract_config

pytestmark = [pytest.mark.real_model, pytest.mark.timeout(600)]


class EmbeddedHarness(EngineHarness):
    """Keeps the models that requests began on."""

    swaps_whole_models = False


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineHarness]:
    model = resolve_model(ModelConfig())
    with EmbeddedHarness(contract_config(tmp_path_factory.mktemp("embedded"), model), model) as started:
        yield started


class TestEmbedded(EngineContract):
    """The promises, kept."""
