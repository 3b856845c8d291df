"""What holds when several processes share the store, and when one of them is killed."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from openclaw_rl.store import Store
from openclaw_rl.types import TurnState
from tests.builders import Conversation, state_of
from tests.store.helpers import to_judging, to_sample

ROOT = Path(__file__).parents[2]
Worker = subprocess.Popen[str]


@contextmanager
def workers(job: str, path: Path, number: int = 1) -> Iterator[list[Worker]]:
    """Processes that begin the same job at the same moment; killed at the end if they still run."""
    command = [sys.executable, "-m", "tests.store.worker", job, str(path)]
    started = [
        subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(number)
    ]
    watchdog = threading.Timer(60.0, kill_all, [started])
    watchdog.start()
    try:
        for process in started:
            assert read_line(process) == "ready"
        for process in started:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        yield started
    finally:
        watchdog.cancel()
        for process in started:
            process.kill()
            process.communicate()


def kill_all(started: list[Worker]) -> None:
    for process in started:
        process.kill()


def read_line(process: Worker) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def outputs(started: list[Worker]) -> list[list[str]]:
    said = [process.communicate(timeout=60)[0].split() for process in started]
    assert [process.returncode for process in started] == [0] * len(started)
    return said


def check_consistent(store: Store, path: Path) -> None:
    counts = store.status.counts()
    assert sum(counts.turns_by_state.values()) == counts.counters["turns_served"]
    assert sum(counts.samples_by_state.values()) == counts.turns_by_state.get("sampled", 0)
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
    connection.close()


def test_two_processes_never_share_a_turn_or_a_sample(store: Store, path: Path) -> None:
    turns = [f"t{number}" for number in range(30)]
    samples = [f"s{number}" for number in range(30)]
    to_judging(store, *turns)
    to_sample(store, *samples)
    with workers("claim_all", path, 2) as started:
        one, two = outputs(started)
    assert sorted(one + two) == sorted(turns + samples)
    assert store.status.counts().samples_by_state == {"claimed": 30}


def test_loops_that_start_together_create_one_store(path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        stores = list(pool.map(Store.open, [path] * 8))
    assert [version.version for version in stores[0].versions.all()] == [0]
    for store in stores:
        store.close()


def test_a_writer_killed_inside_a_transaction_leaves_nothing_of_it(store: Store, path: Path) -> None:
    talk = Conversation(store)
    talk.turn("t1")
    talk.turn("t2")
    to_sample(store, "t3")
    with workers("half_a_transaction", path) as (process,):
        assert read_line(process) == "inside"
        assert state_of(store, "t1") == (TurnState.SERVED, None), "nobody sees what is not committed"
        process.kill()
        process.wait(timeout=10)
    assert [state_of(store, turn)[0].value for turn in ("t1", "t2", "t3")] == ["served", "served", "sampled"]
    assert store.samples.ready().count == 1
    store.turns.move("t1", TurnState.AWAITING_NEXT_STATE)  # the lock died with its holder
    check_consistent(store, path)


def test_a_trainer_killed_at_any_moment_trains_each_sample_once(store: Store, path: Path) -> None:
    said = []
    for steps_before_the_kill in (1, 3):  # killed, started again, killed again
        with workers("train_forever", path) as (process,):
            said += [int(read_line(process)) for _ in range(steps_before_the_kill)]
            process.kill()
            process.wait(timeout=10)
        check_consistent(store, path)
    steps = store.samples.steps()
    assert [record.step for record in steps] == list(range(1, len(steps) + 1))
    assert set(said) <= {record.step for record in steps}, "what was said to be committed is"
    trained = [turn_id for record in steps for turn_id in record.sample_ids]
    assert len(trained) == len(set(trained)) == store.status.counts().samples_by_state["trained"]
    assert len(store.versions.all()) == len(steps) + 1
