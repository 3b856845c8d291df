"""vLLM keeps the contract, with the real SmolLM2 in fp32 on the CPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from openclaw_rl.config import Config, ModelConfig
from openclaw_rl.config_sources import ConfigError
from openclaw_rl.models import resolve_model
from openclaw_rl.serving.engines.vllm.launch import find_python
from tests.engines.contract import EngineContract
from tests.engines.harness import EngineHarness

pytestmark = [pytest.mark.real_model, pytest.mark.timeout(900)]
START_S = 600.0


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineHarness]:
    model = resolve_model(ModelConfig())
    engine = {
        "kind": "vllm",
        "context_length": 512,
        "max_versions": 3,
        "threads": 1,
        "vllm": {"start_timeout_s": START_S},
    }
    run_dir = tmp_path_factory.mktemp("vllm")
    config = Config.model_validate({"run_dir": run_dir, "model": {"path": str(model)}, "engine": engine})
    try:
        find_python(config)
    except ConfigError as error:
        pytest.skip(str(error))
    with EngineHarness(config, model, start_timeout_s=START_S) as started:
        yield started


class TestVllm(EngineContract):
    """The promises, kept."""
