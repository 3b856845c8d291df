"""A deployment with the real loops: the scripted engine and judge, and a tiny model for the trainer."""

from __future__ import annotations

import json
import os
import signal
import socket
from pathlib import Path

import openai
import pytest

from openclaw_rl.config import Config, EngineConfig, JudgeConfig, ModelConfig, ServingConfig
from openclaw_rl.store import Store
from openclaw_rl.supervision.deployment import Deployment, DeploymentError
from openclaw_rl.supervision.state import Phase, process_alive
from openclaw_rl.supervision.status import Condition, collect
from openclaw_rl.testing.tiny_model import build_tiny_model
from openclaw_rl.types import LoopName
from tests.supervision.waiting import eventually


@pytest.fixture
def config(tmp_path: Path) -> Config:
    script = tmp_path / "script.json"
    script.write_text(json.dumps([{"text": "a fine answer"}]))
    return Config(
        run_dir=tmp_path / "run",
        model=ModelConfig(path=str(tmp_path / "model")),
        serving=ServingConfig(port=0),
        engine=EngineConfig(kind="scripted", script=script),
        judge=JudgeConfig(kind="scripted"),
    )


def ask(url: str, text: str) -> str:
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=30) as client:
        answer = client.chat.completions.create(model="policy", messages=[{"role": "user", "content": text}])
        return answer.choices[0].message.content or ""


def test_the_real_loops_serve_while_the_trainer_is_killed_and_end_together(config: Config) -> None:
    build_tiny_model(Path(config.model.path))
    with Deployment(config) as deployment:
        pids = deployment.pids()
        assert set(pids) == set(LoopName) - {LoopName.DRIVER}
        assert ask(deployment.url, "a question") == "a fine answer"

        os.kill(pids[LoopName.TRAINING], signal.SIGKILL)
        assert ask(deployment.url, "another question") == "a fine answer"
        eventually(lambda: deployment.state.children["training"].restarts == 1, "the trainer is restarted")
        report = next(loop for loop in collect(config.run_dir).loops if loop.loop == "training")
        assert report.condition in {Condition.STARTING, Condition.WORKING, Condition.WAITING}
        assert report.last_exit is not None
        assert "SIGKILL" in report.last_exit
        state = deployment.state
    assert deployment.state.phase is Phase.STOPPED
    assert not process_alive(state.pid, state.created_at)
    assert not any(child.pid and process_alive(child.pid, child.created_at) for child in state.children.values())

    store = Store.open(config.store_path)
    assert sum(store.status.counts().turns_by_state.values()) == 2
    store.close()
    logs = "".join(path.read_text() for path in config.logs_dir.iterdir())
    assert "question" not in logs
    assert "fine answer" not in logs


def test_a_deployment_that_cannot_start_says_why(config: Config) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        taken = config.model_copy(update={"serving": ServingConfig(port=port)})
        with pytest.raises(DeploymentError, match=rf"serving\.port {port}"):
            Deployment(taken).__enter__()


def test_what_was_not_started_has_no_url(config: Config) -> None:
    deployment = Deployment(config)
    assert deployment.stop() is None
    with pytest.raises(DeploymentError, match="not started"):
        _ = deployment.url
