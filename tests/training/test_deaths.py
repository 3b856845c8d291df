"""Batches over which the trainer dies: counted, singled out, rejected; and what does not count."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from sqlalchemy.exc import OperationalError

from openclaw_rl.config import Config, LossConfig, RolloutConfig
from openclaw_rl.config_sources import ConfigError
from openclaw_rl.store import Store
from openclaw_rl.store.outage import Patience
from openclaw_rl.supervision.process import LoopReporter, stop_event
from openclaw_rl.training import cycle
from openclaw_rl.training.deaths import Deaths, Stopped, count_killed, place_of, stop_told, units
from openclaw_rl.training.own_code import refusal
from openclaw_rl.types import LoopName, LoopStatus, Origin, Sample, SampleState
from tests.training.support import make_sample, tiny_config, tiny_trainer
from tests.training.test_cycle import fill, make_config, make_loop, work_off
from tests.training.test_turns_of_owners import give

HEAD = "import os, signal\ndef compute_loss(p, reference, rewards, advantages, config, *, samples):\n"
LOSS = {"opd_top_k": 0}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store.open(tmp_path / "store.sqlite")
    yield opened
    opened.close()


def config_with(tmp_path: Path, body: str, batch: int = 4, **training: Any) -> Config:
    """A loss of this body that is given the samples, and batches that are due at once."""
    (tmp_path / "mine.py").write_text(
        f"{HEAD}    ids = [one.turn_id for one in samples]\n    {body}\n    return -p\n"
    )
    path = f"{tmp_path / 'mine.py'}:compute_loss"
    config = make_config(tmp_path, custom_loss_function_path=path, loss=LOSS, **training)
    return config.model_copy(update={"rollout": RolloutConfig(batch_size=batch, max_batch_wait_s=1e-3)})


def lives(config: Config) -> bool:
    """A trainer works in a process of its own, as `loop.run` begins it; whether it came to an end by itself."""
    child = os.fork()
    if child == 0:
        torch.set_num_threads(1)  # the threads of the parent are not here, and would be waited for
        store = Store.open(config.store_path)
        count_killed(store, config.training)
        loop = make_loop(config, store)
        loop.resume()
        while loop.cycle() or loop.cycle():  # one that rejects all it claimed did nothing
            pass
        os._exit(0)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
            return not os.WIFSIGNALED(status)
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise AssertionError("the child neither died nor finished")


def deaths_until_done(config: Config, most: int = 12) -> int:
    """How often trainers died until one was through."""
    return next(number for number in range(most) if lives(config))


@pytest.mark.parametrize("batch", [1, 4])
def test_a_sample_that_kills_the_trainer_is_found_and_the_others_are_trained(tmp_path: Path, batch: int) -> None:
    torch.set_num_threads(1)
    body = "if 't1' in ids: os.kill(os.getpid(), signal.SIGKILL)"
    config = config_with(tmp_path, body, batch)
    store = Store.open(config.store_path)
    fill(store, 5)
    store.close()
    time.sleep(0.01)
    died = deaths_until_done(config)
    assert died == (3 if batch == 1 else 4)
    store = Store.open(config.store_path)
    counts = store.status.counts()
    assert counts.samples_by_state == {SampleState.TRAINED: 4, SampleState.REJECTED: 1}
    assert counts.counters["samples_rejected_kills_trainer"] == 1
    assert counts.counters["trainer_deaths"] == died
    assert {name for step in store.samples.steps() for name in step.sample_ids} == {"t0", "t2", "t3", "t4"}
    assert store.versions.serving().version == len(store.samples.steps())
    store.close()


def test_a_batch_that_is_too_large_as_a_whole_is_trained_in_parts(tmp_path: Path, store: Store) -> None:
    """Memory runs out: the process ends by the exception, and the next one begins anew."""
    config = config_with(tmp_path, "if len(ids) > 1: raise MemoryError")
    fill(store, 4)
    time.sleep(0.01)
    for _ in range(3):
        with pytest.raises(MemoryError):
            make_loop(config, store).run()
        assert store.samples.ready().count == 4
    work_off(make_loop(config, store))
    assert [step.sample_ids for step in store.samples.steps()] == [("t0",), ("t1",), ("t2",), ("t3",)]
    assert store.status.counts().samples_by_state == {SampleState.TRAINED: 4}
    assert store.deaths.of(["t0", "t1", "t2", "t3"]) == {}


def test_kills_at_other_places_single_nothing_out_and_success_clears(tmp_path: Path, store: Store) -> None:
    fill(store, 2)
    deaths = Deaths(store, tiny_config())
    claimed = store.samples.claim(2, 60.0)
    for place in ("computing gradients", "probing the new weights", "reading the hints", "evaluating") * 2:
        deaths.note(claimed, place)
    assert deaths.sift(claimed) == claimed
    deaths.survived(claimed)
    assert store.deaths.of(["t0", "t1"]) == {}
    for _ in range(3):
        deaths.note(claimed, "evaluating")
    assert deaths.sift(claimed) == claimed[:1]
    assert store.samples.ready().count == 1


def test_a_kill_while_alone_counts_for_nothing_before_there_are_enough(store: Store) -> None:
    fill(store, 1)
    deaths = Deaths(store, tiny_config(max_deaths=2))
    claimed = store.samples.claim(1, 60.0)
    deaths.note(claimed, "computing gradients")
    assert deaths.sift(claimed) == claimed
    deaths.note(claimed, "computing gradients")
    assert deaths.sift(claimed) == []
    assert store.status.counts().counters["samples_rejected_kills_trainer"] == 1


ORDINARY: list[Callable[[], Exception]] = [
    Stopped,
    lambda: ConfigError("no"),
    lambda: OSError(28, "no space left"),
    lambda: sqlite3.OperationalError("locked"),
    lambda: OperationalError("x", {}, sqlite3.OperationalError("locked")),
]


@pytest.mark.parametrize("error", ORDINARY)
def test_stops_and_outages_are_no_deaths(store: Store, error: Callable[[], Exception]) -> None:
    fill(store, 1)
    claimed, raised = store.samples.claim(1, 60.0), error()
    with pytest.raises(type(raised)), Deaths(store, tiny_config()).counted(claimed, lambda: "anywhere"):
        raise raised
    assert store.deaths.of(["t0"]) == {}
    with pytest.raises(IndexError), Deaths(store, tiny_config()).counted(claimed, lambda: "anywhere"):
        raise IndexError
    assert [death.place for death in store.deaths.of(["t0"])["t0"]] == ["anywhere"]


@pytest.mark.parametrize(
    ("said", "place"),
    [
        ("training step 12: computing gradients", "computing gradients"),
        ("evaluating version 3", "evaluating"),
        ("writing the checkpoint of step 3", None),
        ("committing step 3", None),
        ("loading the model", None),
        ("waiting", None),
        ("stopping", None),
    ],
)
def test_what_a_killed_trainer_last_said_is_the_place(store: Store, said: str, place: str | None) -> None:
    assert place_of(said) == place
    fill(store, 3)
    store.samples.claim(2, 60.0)
    now = time.time()
    store.status.report(
        LoopStatus(loop=LoopName.TRAINING, pid=1, heartbeat_at=now, activity=said, waiting_for=None, since=now)
    )
    count_killed(store, tiny_config())
    found = store.deaths.of(["t0", "t1", "t2"])
    assert sorted(found) == ([] if place is None else ["t0", "t1"])
    assert all((death.place, death.number, death.alone) == (place, 1, False) for of in found.values() for death in of)


def test_a_stop_is_said_while_the_trainer_is_busy(store: Store) -> None:
    stop, reporter = threading.Event(), LoopReporter(store, LoopName.TRAINING)
    reporter.working("training step 1: computing gradients")
    with stop_told(stop, reporter):
        stop.set()
        deadline = time.monotonic() + 10
        while store.status.loops()[0].activity != "stopping" and time.monotonic() < deadline:
            time.sleep(0.01)
        assert store.status.loops()[0].activity == "stopping"
    with stop_told(threading.Event(), reporter):  # and ends where nobody says stop
        pass


def test_a_stop_is_heard_while_the_main_thread_is_in_one_long_call() -> None:
    """A pass backward is one call into C, in which no handler of Python's runs; here, a slow hash is."""
    said: list[float] = []

    class Listening:
        def working(self, activity: str, **details: Any) -> None:
            assert activity == "stopping"
            said.append(time.monotonic())

        def waiting(self, waiting_for: str, **details: Any) -> None:
            raise AssertionError

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    stop, ended = stop_event(), 0.0
    try:
        with stop_told(stop, Listening()):
            threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGTERM)).start()
            while not stop.is_set():
                hashlib.pbkdf2_hmac("sha256", b"x", b"y", 3_000_000)
                ended = time.monotonic()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert len(said) == 1
    assert said[0] < ended


def test_a_signal_to_a_forked_child_is_no_stop() -> None:
    """As the pool of an evaluation's forks and ends its workers; a later stop of our own is heard still."""
    said: list[str] = []
    heard = threading.Event()

    class Listening:
        def working(self, activity: str, **details: Any) -> None:
            said.append(activity)
            heard.set()

        def waiting(self, waiting_for: str, **details: Any) -> None:
            raise AssertionError

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    stop = stop_event()
    try:
        with stop_told(stop, Listening()):
            ready, tell = os.pipe()
            child = os.fork()
            if child == 0:
                os.write(tell, b"!")
                while not stop.is_set():
                    time.sleep(0.01)
                os._exit(0)
            os.read(ready, 1)
            os.kill(child, signal.SIGTERM)
            os.waitpid(child, 0)
            assert not heard.wait(0.5)
            os.kill(os.getpid(), signal.SIGTERM)
            assert heard.wait(10)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert said == ["stopping"]


def test_a_stop_between_two_looks_is_not_overwritten(tmp_path: Path, store: Store) -> None:
    """Who is killed thereafter must not be found at work on the batch."""
    said: list[str] = []

    class Stopping(LoopReporter):
        def working(self, activity: str, **details: Any) -> None:
            said.append(activity)
            if "computing gradients" in activity:
                loop._stop.set()

    fill(store, 2)
    loop = make_loop(make_config(tmp_path), store, Stopping(store, LoopName.TRAINING))
    loop.resume()
    with pytest.raises(Stopped):
        loop.cycle()
    assert said[-1] == "stopping"
    assert store.deaths.of(["t0", "t1"]) == {}


def test_a_stop_before_the_evaluation_is_obeyed(tmp_path: Path, store: Store) -> None:
    (tmp_path / "mine.py").write_text("def score(version):\n    raise AssertionError\n")
    gate = {"evaluation_path": f"{tmp_path / 'mine.py'}:score", "min_evaluation": 0.5}
    said: list[str] = []

    class Stopping(LoopReporter):
        def working(self, activity: str, **details: Any) -> None:
            said.append(activity)
            if activity.startswith("writing the checkpoint"):
                loop._stop.set()

    fill(store, 2)
    loop = make_loop(make_config(tmp_path, gate=gate), store, Stopping(store, LoopName.TRAINING))
    loop.resume()
    with pytest.raises(Stopped, match="before a version was evaluated"):
        loop.cycle()
    assert said[-1] == "writing the checkpoint of step 1"


def test_the_companions_of_a_killer_that_is_found_are_suspects_no_longer(store: Store) -> None:
    fill(store, 4)
    deaths = Deaths(store, tiny_config())
    claimed = store.samples.claim(4, 60.0)
    for _ in range(3):
        deaths.note(claimed, "computing gradients, pass 2 of 3")
    deaths.note(claimed[3:], "evaluating")
    assert deaths.suspects() == {"t0", "t1", "t2", "t3"}
    assert deaths.sift(claimed) == claimed[:1]
    deaths.note(claimed[:1], "computing gradients, pass 1 of 1")  # alone, there is but one pass
    again = store.samples.claim(4, 60.0)
    assert deaths.sift([*claimed[:1], *again]) == again
    assert deaths.suspects() == set()
    assert [death.place for death in store.deaths.of(["t1", "t3"])["t3"]] == ["evaluating"]
    assert store.status.counts().counters["samples_rejected_kills_trainer"] == 1


def test_unrelated_kills_in_other_passes_split_no_batch(store: Store) -> None:
    fill(store, 2)
    deaths = Deaths(store, tiny_config())
    claimed = store.samples.claim(2, 60.0)
    for number in (1, 4, 6, 2):
        deaths.note(claimed, f"computing gradients, pass {number} of 7")
    assert deaths.sift(claimed) == claimed


def test_suspects_do_not_grow_too_old(store: Store) -> None:
    fill(store, 3)
    deaths = Deaths(store, tiny_config())
    for _ in range(3):
        deaths.note(store.samples.claim(2, 60.0), "evaluating")
        store.samples.release_claims()
    assert deaths.suspects() == {"t0", "t1"}
    assert store.samples.expire(before_version=5, spared=deaths.suspects()) == 1
    assert store.samples.ready().count == 2


def test_a_killed_trainer_died_over_the_batch_of_the_owner_at_work(store: Store) -> None:
    for owner, number in (("ann", 0), ("bob", 1)):
        give(store, owner, number)
        store.samples.claim(1, 60.0, owner)
    now = time.time()
    status = LoopStatus(
        loop=LoopName.TRAINING,
        pid=1,
        heartbeat_at=now,
        activity="training step 1: starting",
        waiting_for=None,
        since=now,
        details={"owner": "bob"},
    )
    store.status.report(status)
    count_killed(store, tiny_config())
    assert list(store.deaths.of(["t0", "t1"])) == ["t1"]


def test_a_step_says_whose_it_is_and_which_pass(tmp_path: Path, store: Store) -> None:
    said: list[tuple[str, Any]] = []

    class Listening(LoopReporter):
        def working(self, activity: str, **details: Any) -> None:
            said.append((activity, details.get("owner")))

    fill(store, 2)
    config = make_config(tmp_path, max_tokens_per_micro_batch=9)
    work_off(make_loop(config, store, Listening(store, LoopName.TRAINING)))
    passes = dict.fromkeys(words for words, _ in said if "computing gradients" in words)
    step = "training step 1: computing gradients"
    assert list(passes) == [f"{step}, pass 1 of 2", f"{step}, pass 2 of 2"]
    assert {owner for words, owner in said if words.startswith("training step")} == {""}


def test_a_record_that_is_locked_after_a_step_is_waited_for_and_the_step_is_kept(
    tmp_path: Path, store: Store
) -> None:
    fill(store, 2)
    loop = make_loop(make_config(tmp_path), store)
    loop._patience = Patience(loop._stop, loop._reporter.waiting, pause_s=0.01)
    survived, failures = loop._deaths.survived, [OSError(28, "no space left")]

    def failing_once(samples: Any) -> None:
        if failures:
            raise failures.pop()
        survived(samples)

    loop._deaths.survived = failing_once  # type: ignore[method-assign]
    work_off(loop)
    assert failures == []
    assert [step.sample_ids for step in store.samples.steps()] == [("t0", "t1")]


def sample_of(number: int, group: str | None, rollout: str | None = None) -> Sample:
    origin = Origin(key_id="k", group_id=group, task_id=group, step=0, rollout=rollout)
    return dataclasses.replace(make_sample(tiny_trainer(), number), origin=origin)


def test_groups_are_tried_whole() -> None:
    samples = [
        sample_of(0, "a"),
        sample_of(1, "b"),
        sample_of(2, "a"),
        sample_of(3, "c", "r1"),
        sample_of(4, "c", "r2"),
    ]

    def parts(**loss: Any) -> list[list[str]]:
        return [[one.turn_id for one in unit] for unit in units(samples, LossConfig(**loss))]

    assert parts() == [["t0"], ["t1"], ["t2"], ["t3", "t4"]]
    assert parts(baseline="group") == [["t0", "t2"], ["t1"], ["t3", "t4"]]
    assert parts(normalise="batch") == [["t0", "t1", "t2", "t3", "t4"]]


def test_a_loss_that_raises_over_some_data_costs_that_batch_and_the_run_goes_on(tmp_path: Path, store: Store) -> None:
    config = config_with(tmp_path, "if 't1' in ids: raise KeyError('x')", batch=2)
    fill(store, 4)
    work_off(make_loop(config, store))
    counts = store.status.counts()
    assert counts.samples_by_state == {SampleState.TRAINED: 2, SampleState.REJECTED: 2}
    assert counts.counters["samples_rejected_custom_loss_raised_KeyError"] == 2
    assert counts.counters["steps_refused"] == 1
    assert "trainer_deaths" not in counts.counters
    assert [step.sample_ids for step in store.samples.steps()] == [("t2", "t3")]


@pytest.mark.parametrize("kind", ["SystemExit", "KeyboardInterrupt"])
def test_a_loss_that_ends_the_process_is_as_one_that_raises(tmp_path: Path, store: Store, kind: str) -> None:
    config = config_with(tmp_path, f"if 't1' in ids: raise {kind}(3)", batch=2)
    fill(store, 4)
    work_off(make_loop(config, store))
    counts = store.status.counts()
    assert counts.counters[f"samples_rejected_custom_loss_raised_{kind}"] == 2
    assert [step.sample_ids for step in store.samples.steps()] == [("t2", "t3")]


def test_what_ends_the_process_in_a_step_is_a_death(store: Store) -> None:
    fill(store, 1)
    claimed = store.samples.claim(1, 60.0)
    with pytest.raises(SystemExit), Deaths(store, tiny_config()).counted(claimed, lambda: "anywhere"):
        raise SystemExit(0)
    assert [death.place for death in store.deaths.of(["t0"])["t0"]] == ["anywhere"]


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: you"),
        RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes."),
    ],
)
def test_memory_that_runs_out_is_no_refusal(error: Exception) -> None:
    with pytest.raises(type(error)):
        refusal("custom_loss", "x", error)
    assert refusal("custom_loss", "x", RuntimeError("shapes differ")) == "custom_loss_raised_RuntimeError"


@pytest.mark.parametrize(
    ("error", "kind"), [("RuntimeError('x')", "RuntimeError"), ("PermissionError(13, 'x')", "PermissionError")]
)
def test_an_evaluation_that_raises_refuses_its_version_and_the_run_goes_on(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch, error: str, kind: str
) -> None:
    monkeypatch.setattr(cycle, "EVALUATION_PAUSE_S", 0.01)
    (tmp_path / "mine.py").write_text(
        f"def score(version):\n    if 'step-000001' in str(version): raise {error}\n    return 1.0\n"
    )
    gate = {"evaluation_path": f"{tmp_path / 'mine.py'}:score", "min_evaluation": 0.5}
    fill(store, 4)
    work_off(make_loop(make_config(tmp_path, gate=gate), store))
    first = store.versions.get(1)
    assert first is not None
    assert first.reason == f"evaluation_raised_{kind}"
    assert store.versions.serving().version == 2
    counts = store.status.counts()
    assert counts.counters[f"samples_rejected_evaluation_raised_{kind}"] == 2
    assert counts.samples_by_state == {SampleState.TRAINED: 2, SampleState.REJECTED: 2}
