"""vLLM keeps the contract, with the real SmolLM2 in fp32 on the CPU."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Iterator

import httpx
import psutil
import pytest

from openclaw_rl.config import Config, ModelConfig
from openclaw_rl.config_sources import ConfigError
from openclaw_rl.models import resolve_model
from openclaw_rl.serving.engines.protocol import Engine
from openclaw_rl.serving.engines.vllm.launch import find_python
from tests.engines.contract import STORY, EngineContract
from tests.engines.harness import EngineHarness, Stream
from tests.engines.support import not_installed, request

pytestmark = [pytest.mark.real_model, pytest.mark.timeout(1200)]
START_S = 600.0


class VllmHarness(EngineHarness):
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

    def drawn(self) -> float:
        """How many tokens vLLM says that it has drawn since its start."""
        arguments = self.server.cmdline()
        socket = arguments[arguments.index("--uds") + 1]
        with httpx.Client(transport=httpx.HTTPTransport(uds=socket)) as http:
            metrics = http.get("http://localhost/metrics").text
        found = re.search(r"^vllm:generation_tokens_total\{.*\} (\S+)$", metrics, re.MULTILINE)
        assert found is not None
        return float(found.group(1))


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
        not_installed(str(error))
    with VllmHarness(config, model, start_timeout_s=START_S) as started:
        yield started


def test_vllm_draws_no_more_for_a_client_that_left(harness: VllmHarness) -> None:
    async def scenario(engine: Engine) -> tuple[float, float]:
        stream = Stream(engine, request(STORY, temperature=1.0, max_tokens=400))
        await stream.reach(3)
        await stream.leave()
        await asyncio.sleep(2.0)
        early = await asyncio.to_thread(harness.drawn)
        await asyncio.sleep(2.0)
        return early, await asyncio.to_thread(harness.drawn)

    early, late = harness.run(scenario)
    assert early == late


class TestVllm(EngineContract):
    """The promises, kept."""
