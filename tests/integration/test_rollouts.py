"""A deployment with tasks and no users: groups are made, trained whole, and a kill costs nothing."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from openclaw_rl.cli import main
from openclaw_rl.store import Store
from openclaw_rl.supervision.deployment import Deployment
from openclaw_rl.supervision.state import read_state
from openclaw_rl.supervision.status import collect
from tests.integration.support import deployment_config
from tests.supervision.waiting import eventually

TASKS, EACH = 6, 4
GENERATE = """
from openclaw_rl.rollout.extension_contracts import RolloutResult

async def generate(task, policy):
    answer = await policy.chat(task.messages, max_tokens=6)
    return RolloutResult(reward=float(len(answer.text) % 5), ended=answer.finish_reason)
"""


def driver_pid(run_dir: Path) -> int | None:
    state = read_state(run_dir)
    child = state.children.get("driver") if state is not None else None
    return child.pid if child is not None and child.alive else None


def test_tasks_are_tried_in_groups_and_trained(tmp_path: Path, tiny_path: Path) -> None:
    (tmp_path / "mine.py").write_text(GENERATE)
    lines = [f'{{"id": "t{number}", "prompt": "Say {number}."}}\n' for number in range(TASKS)]
    (tmp_path / "tasks.jsonl").write_text("".join(lines))
    config = deployment_config(
        tmp_path / "run",
        tiny_path,
        rollout={
            "tasks": tmp_path / "tasks.jsonl",
            "custom_generate_function_path": f"{tmp_path}/mine.py:generate",
            "rollouts_per_task": EACH,
            "reward_range": [0.0, 4.0],
            "batch_size": EACH,
        },
        training={
            "method": "binary_rl",
            "max_staleness": 100,
            "loss": {"w_opd": 0.0, "baseline": "group", "normalise": "group"},
        },
    )
    with Deployment(config) as deployment:
        run_dir = deployment.config.run_dir
        store = Store.open(deployment.config.store_path)
        try:
            eventually(lambda: store.rollouts.counts().rollouts.get("finished", 0) >= 3, "rollouts are made")
            before = eventually(lambda: driver_pid(run_dir), "the driver lives")
            os.kill(before, signal.SIGKILL)
            eventually(lambda: store.rollouts.counts().rollouts == {"finished": TASKS * EACH}, "all are made, once")
            eventually(lambda: store.samples.steps(), "a group is trained")
            for step in store.samples.steps():
                assert len({groups_of(store, turn_id) for turn_id in step.sample_ids}) == 1
                assert len(step.sample_ids) == EACH
            said = next(loop for loop in collect(run_dir).loops if loop.loop == "driver")
            assert said.restarts == 1
            assert main(["status", "--run-dir", str(run_dir)]) == 0
        finally:
            store.close()


def groups_of(store: Store, turn_id: str) -> str:
    turn = store.turns.get(turn_id)
    assert turn is not None
    session = turn.request.session_id
    return store.rollouts.group_of_sessions([session])[session]
