"""vLLM keeps the contract, with the real SmolLM2 in fp32 on the CPU."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import httpx
import psutil
import pytest

from openclaw_rl.config import Config, ModelConfig
from openclaw_rl.config_sources import ConfigError
from openclaw_rl.models import resolve_model
from openclaw_rl.serving.engines.vllm.launch import find_python
from tests.engines.harness import EngineHarness
from tests.engines.support import not_installed
from tests.engines.vllm_promises import TOKENS_IN_A_PASS, CountingHarness, VllmContract

pytestmark = [pytest.mark.real_model, pytest.mark.timeout(1200)]
START_S = 600.0


class VllmHarness(CountingHarness):
    """Knows the server behind the engine process, and kills that one: the engine process has to notice, and end."""

    @property
    def server(self) -> psutil.Process:
        """vLLM's own process."""
        assert self._process is not None
        (server,) = psutil.Process(self._process.pid).children()
        return server

    def kill(self) -> None:
        """End vLLM by SIGKILL, with all that it has started."""
        if self._process is None or self._process.poll() is not None:
            return
        os.killpg(self.server.pid, signal.SIGKILL)
        self._process.wait(60)
        self._process = None

    def metrics(self) -> httpx.Response:
        """By the socket that it was told to listen at."""
        arguments = self.server.cmdline()
        socket = arguments[arguments.index("--uds") + 1]
        with httpx.Client(transport=httpx.HTTPTransport(uds=socket)) as http:
            return http.get("http://localhost/metrics")


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineHarness]:
    model = resolve_model(ModelConfig())
    engine = {
        "kind": "vllm",
        "context_length": 512,
        "max_versions": 3,
        "threads": 1,
        "extra_args": ["--max-num-batched-tokens", str(TOKENS_IN_A_PASS)],
        "vllm": {"start_timeout_s": START_S},
    }
    run_dir = tmp_path_factory.mktemp("vllm")
    config = Config.model_validate({"run_dir": run_dir, "model": {"path": str(model)}, "engine": engine})
    try:
        find_python(config)
    except ConfigError as error:
        not_installed(str(error))
    with VllmHarness(config, model, start_timeout_s=START_S) as started:
        yield started


class TestVllm(VllmContract):
    """The promises, kept."""
