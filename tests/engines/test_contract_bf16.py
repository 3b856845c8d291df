"""In bfloat16 the engine's log-probabilities are Transformers' own up to what rounding does: how far, is stated."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from openclaw_rl.config import Config, ModelConfig
from openclaw_rl.models import resolve_model
from tests.engines.contract import EngineContract
from tests.engines.harness import BF16, EngineHarness
from tests.engines.test_contract_embedded import EmbeddedHarness

pytestmark = [pytest.mark.real_model, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineHarness]:
    model = resolve_model(ModelConfig())
    values = {
        "run_dir": tmp_path_factory.mktemp("bf16"),
        "model": {"path": str(model), "dtype": "bfloat16"},
        "engine": {"context_length": 512, "max_versions": 3, "threads": 1},
    }
    with EmbeddedHarness(Config.model_validate(values), model, bounds=BF16) as started:
        yield started


class TestEmbeddedInBfloat16:
    """Of the contract what is said of numbers."""

    test_log_probabilities_are_those_of_transformers = EngineContract.test_log_probabilities_are_those_of_transformers
    test_score_is_what_generation_said = EngineContract.test_score_is_what_generation_said
