"""Deployments of dummy loops, each a process of its own, ended after the test whatever it did."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from openclaw_rl.config import Config
from openclaw_rl.config_render import write_private_json
from openclaw_rl.config_sources import Setting, resolve
from openclaw_rl.supervision.state import Phase, SupervisorState, read_state
from tests.supervision.waiting import eventually

SCRIPT = Path(__file__).with_name("dummy_deployment.py")


class DummyDeployment:
    """A supervisor of dummy loops in `run_dir`."""

    def __init__(self, run_dir: Path, model: str = "any") -> None:
        self.config = dummy_config(run_dir, model)
        self.run_dir = run_dir
        run_dir.mkdir(exist_ok=True)
        path = run_dir / "requested.json"
        write_private_json(self.config, path)
        self.process = subprocess.Popen(
            [sys.executable, str(SCRIPT), str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    @property
    def state(self) -> SupervisorState:
        state = read_state(self.run_dir)
        assert state is not None
        return state

    def wait_ready(self) -> SupervisorState:
        return eventually(self._ready, "ready")

    def _ready(self) -> SupervisorState | None:
        assert self.process.poll() is None, self.process.communicate()
        state = read_state(self.run_dir)
        ready = state is not None and state.pid == self.process.pid and state.phase is Phase.READY
        return state if ready else None


def dummy_config(run_dir: Path, model: str = "any") -> Config:
    chosen = {
        "run_dir": str(run_dir),
        "model.path": model,
        "serving.port": 0,
        "supervisor.restart_backoff_s": 0.2,
        "supervisor.shutdown_timeout_s": 3.0,
        "supervisor.ready_timeout_s": 30.0,
    }
    return resolve([Setting(key=key, value=value, source="test") for key, value in chosen.items()]).config


@pytest.fixture
def deploy(tmp_path: Path) -> Iterator[type[DummyDeployment]]:
    """`deploy(run_dir)` starts one; it is killed at the end, and its loops end with it."""
    started: list[DummyDeployment] = []

    class Tracked(DummyDeployment):
        def __init__(self, run_dir: Path, model: str = "any") -> None:
            super().__init__(run_dir, model)
            started.append(self)

    yield Tracked
    for deployment in started:
        if deployment.process.poll() is None:
            deployment.process.kill()
        deployment.process.communicate()
