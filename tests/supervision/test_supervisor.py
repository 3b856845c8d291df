"""The supervisor with real processes: restarts, shutdown, exclusion, and its own sudden death."""

from __future__ import annotations

import os
import signal
import stat
import threading
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.config_sources import ConfigError
from openclaw_rl.supervision.state import (
    ChildPhase,
    Phase,
    SupervisorState,
    child_config_path,
    process_alive,
)
from openclaw_rl.supervision.status import Condition, collect, render
from openclaw_rl.supervision.supervisor import Supervisor
from tests.supervision.conftest import DummyDeployment, dummy_config
from tests.supervision.waiting import eventually

LOOPS = {"engine", "gateway", "rollout", "judging", "training"}


def alive(state: SupervisorState) -> list[str]:
    return [
        name
        for name, child in state.children.items()
        if child.pid is not None and process_alive(child.pid, child.created_at)
    ]


def trainer_waits(run_dir: Path) -> bool:
    report = next(loop for loop in collect(run_dir).loops if loop.loop == "training")
    return report.condition is Condition.WAITING and report.text == "waiting for nothing in particular"


def test_a_killed_loop_comes_back_and_is_told_of_and_a_stop_leaves_nothing(deploy: Any, tmp_path: Path) -> None:
    deployment: DummyDeployment = deploy(tmp_path / "run")
    first = deployment.wait_ready()
    assert set(alive(first)) == LOOPS
    assert stat.S_IMODE(child_config_path(deployment.run_dir).stat().st_mode) == 0o600

    victim = first.children["training"].pid
    assert victim is not None
    os.kill(victim, signal.SIGKILL)

    def told() -> str | None:
        line = render(collect(deployment.run_dir))
        return line if "restarting in" in line else None

    assert "training  killed by signal 9 (SIGKILL) at" in eventually(told, "status tells of the death")

    def back() -> SupervisorState | None:
        child = deployment.state.children["training"]
        return deployment.state if child.restarts == 1 and child.phase is ChildPhase.RUNNING else None

    second = eventually(back, "the trainer is restarted")
    assert set(alive(second)) == LOOPS
    assert second.children["training"].pid != victim
    others = LOOPS - {"training"}
    assert {name: second.children[name].pid for name in others} == {name: first.children[name].pid for name in others}

    eventually(lambda: trainer_waits(deployment.run_dir), "status has the new trainer's word")

    deployment.process.send_signal(signal.SIGTERM)
    assert deployment.process.wait(10) == 0
    assert alive(second) == []
    assert deployment.state.phase is Phase.STOPPED
    report = collect(deployment.run_dir)
    assert not report.running
    assert "no deployment in" in report.headline


def test_a_second_supervisor_is_told_who_holds_the_directory(deploy: Any, tmp_path: Path) -> None:
    first: DummyDeployment = deploy(tmp_path / "run")
    first.wait_ready()
    second: DummyDeployment = deploy(tmp_path / "run")
    assert second.process.wait(20) == 2
    _, error = second.process.communicate()
    assert f"in use by the deployment with pid {first.process.pid}" in error
    assert set(alive(first.state)) == LOOPS


def test_the_loops_end_with_a_supervisor_that_is_killed_and_the_next_one_starts(deploy: Any, tmp_path: Path) -> None:
    first: DummyDeployment = deploy(tmp_path / "run")
    state = first.wait_ready()
    os.kill(first.process.pid, signal.SIGKILL)
    first.process.wait(5)
    report = collect(first.run_dir)
    assert not report.running
    assert "is gone without a word" in report.headline
    second: DummyDeployment = deploy(tmp_path / "run")
    after = second.wait_ready()
    assert alive(state) == []
    assert set(alive(after)) == LOOPS
    second.process.send_signal(signal.SIGINT)  # and not the fixture's SIGKILL, which a stubborn loop survives
    assert second.process.wait(10) == 0


def test_a_loop_that_outlives_its_killed_supervisor_is_ended_by_the_next(deploy: Any, tmp_path: Path) -> None:
    first: DummyDeployment = deploy(tmp_path / "run", "stubborn")
    state = first.wait_ready()
    eventually(lambda: trainer_waits(first.run_dir), "the trainer handles signals")
    os.kill(first.process.pid, signal.SIGKILL)
    first.process.wait(5)
    eventually(lambda: alive(state) == ["training"], "all but the stubborn one end by themselves")
    second: DummyDeployment = deploy(tmp_path / "run", "stubborn")
    after = second.wait_ready()
    assert alive(state) == []
    assert set(alive(after)) == LOOPS


def test_a_loop_that_does_not_end_is_killed_in_time(deploy: Any, tmp_path: Path) -> None:
    deployment: DummyDeployment = deploy(tmp_path / "run", "stubborn")
    state = deployment.wait_ready()
    eventually(lambda: trainer_waits(deployment.run_dir), "the trainer handles signals")
    deployment.process.send_signal(signal.SIGINT)
    assert deployment.process.wait(10) == 0
    assert alive(state) == []
    last_exit = deployment.state.children["training"].last_exit
    assert last_exit is not None
    assert last_exit.signal == signal.SIGKILL


def test_the_engine_does_not_wait_for_a_trainer_that_does_not_end(deploy: Any, tmp_path: Path) -> None:
    deployment: DummyDeployment = deploy(tmp_path / "run", "stubborn")
    deployment.wait_ready()
    eventually(lambda: trainer_waits(deployment.run_dir), "the trainer handles signals")
    deployment.process.send_signal(signal.SIGINT)
    assert deployment.process.wait(10) == 0
    ends = {name: child.last_exit for name, child in deployment.state.children.items()}
    engine, gateway, trainer = ends["engine"], ends["gateway"], ends["training"]
    assert engine is not None
    assert gateway is not None
    assert trainer is not None
    # The trainer has all of the 3 s; two of them passed before the engine was told when it waited for all others.
    assert gateway.at <= engine.at < trainer.at - 1.5


def test_a_configuration_that_a_loop_cannot_honour_ends_the_start(deploy: Any, tmp_path: Path) -> None:
    deployment: DummyDeployment = deploy(tmp_path / "run", "impossible")
    output, _ = deployment.process.communicate(timeout=20)
    assert deployment.process.returncode == 2
    assert "engine cannot run with this configuration: there is no such model" in output
    assert alive(deployment.state) == []


def test_a_state_that_cannot_be_written_stops_nothing_and_is_told_later(deploy: Any, tmp_path: Path) -> None:
    deployment: DummyDeployment = deploy(tmp_path / "run")
    first = deployment.wait_ready()
    # As a full disk does: the file that is to replace supervisor.json cannot be made, for a folder has its name.
    obstacle = deployment.run_dir / f".supervisor.json.{deployment.process.pid}"
    obstacle.mkdir()
    victim = first.children["training"].pid
    assert victim is not None
    os.kill(victim, signal.SIGKILL)
    said = deployment.process.stdout
    assert said is not None
    eventually(lambda: "status shows old news" in said.readline(), "the supervisor says what it cannot write")
    assert deployment.state.children["training"].pid == victim
    obstacle.rmdir()

    def told() -> bool:
        child = deployment.state.children["training"]
        return child.restarts == 1 and child.pid not in {None, victim}

    eventually(told, "the state is written again, and the trainer was restarted meanwhile")
    assert set(alive(deployment.state)) == LOOPS


def test_a_run_dir_that_cannot_be_used_is_one_sentence(tmp_path: Path) -> None:
    occupied = tmp_path / "file"
    occupied.write_text("")
    for run_dir in (occupied, occupied / "below"):
        with pytest.raises(ConfigError, match="cannot use run_dir"):
            Supervisor(dummy_config(run_dir), lambda _: None).run(threading.Event())


def test_what_was_learned_on_one_model_is_not_put_on_another(deploy: Any, tmp_path: Path) -> None:
    first: DummyDeployment = deploy(tmp_path / "run", "one")
    first.wait_ready()
    (tmp_path / "run" / "checkpoints" / "step-000001").mkdir(parents=True)
    first.process.send_signal(signal.SIGTERM)
    assert first.process.wait(10) == 0
    second: DummyDeployment = deploy(tmp_path / "run", "another")
    assert second.process.wait(20) == 2
    _, error = second.process.communicate()
    assert "has learned on the model one, not on another" in error
    third: DummyDeployment = deploy(tmp_path / "run", "one")
    third.wait_ready()
