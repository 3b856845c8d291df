"""A whole deployment whose vLLM is killed: its supervisor brings it back, and the version in service with it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from openclaw_rl.config import Config, ModelConfig
from openclaw_rl.config_sources import ConfigError, load_json
from openclaw_rl.models import resolve_model
from openclaw_rl.serving.engines.vllm.launch import find_python
from openclaw_rl.supervision.deployment import Deployment
from openclaw_rl.supervision.state import child_config_path
from openclaw_rl.types import LoopName, PolicyVersion
from tests.engines.harness import EngineHarness, record, until
from tests.engines.over_http import CHAT, QUICKLY, check_put_off, client_of, is_away, is_ready, version_of
from tests.engines.support import not_installed

pytestmark = [pytest.mark.real_model, pytest.mark.timeout(1200)]
START_S = 600.0


def configuration(run_dir: Path, model: Path) -> Config:
    """What serves, and learns nothing; a client waits as long as vLLM may take to start."""
    return Config.model_validate({
        "run_dir": run_dir,
        "model": {"path": str(model)},
        "serving": {"port": 0, "engine_wait_s": START_S},
        "engine": {
            "kind": "vllm",
            "context_length": 512,
            "max_versions": 2,
            "threads": 1,
            "vllm": {"start_timeout_s": START_S},
        },
        "judge": {"kind": "scripted"},
        "training": {"enabled": False, "threads": 1},
    })  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Served:
    """A deployment that runs, and the version that its record has in service."""

    deployment: Deployment
    version: PolicyVersion

    def server(self) -> psutil.Process:
        """vLLM's own process, behind the engine's."""
        (server,) = psutil.Process(self.deployment.pids()[LoopName.ENGINE]).children()
        return server

    @property
    def url(self) -> str:
        """The gateway's."""
        return self.deployment.url.removesuffix("/v1")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    model = resolve_model(ModelConfig())
    config = configuration(tmp_path_factory.mktemp("deployment"), model)
    try:
        find_python(config)
    except ConfigError as error:
        not_installed(str(error))
    version = EngineHarness(config, model).lora()
    with record(config.run_dir, version):
        pass
    with Deployment(config) as deployment:
        yield Served(deployment=deployment, version=version)


def test_who_waits_for_a_killed_vllm_is_answered_by_the_version_in_service(served: Served, tmp_path: Path) -> None:
    expected = served.version.version

    async def scenario() -> None:
        async with client_of(served.url, START_S) as http:
            assert version_of(await http.post(CHAT, json=QUICKLY)) == expected
            old = served.server()
            os.killpg(old.pid, signal.SIGKILL)
            waiting = asyncio.create_task(http.post(CHAT, json=QUICKLY))
            await until(lambda: is_away(http), within_s=30)
            await check_impatient(served, tmp_path)
            assert not waiting.done()
            ready = asyncio.create_task(until(lambda: is_ready(http), within_s=START_S))
            assert version_of(await waiting) == expected
            await ready
            said = (await http.get("/readyz")).json()
            assert said["version"] == expected
            assert served.server().pid != old.pid

    asyncio.run(scenario())


async def check_impatient(served: Served, directory: Path) -> None:
    """Who is at a gateway that lets nobody wait, beside the deployment's own, is told to come back."""
    config = load_json(child_config_path(served.deployment.config.run_dir))
    harness = EngineHarness(config, Path(config.model.path))
    with record(directory, served.version) as store:
        async with (
            harness.engine() as engine,
            harness.gateway(store, engine, engine_wait_s=0.2) as url,
            client_of(url) as http,
        ):
            await until(lambda: is_away(http), within_s=30)
            check_put_off(await http.post(CHAT, json=QUICKLY))
