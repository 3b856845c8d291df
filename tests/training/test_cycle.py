"""The cycle over a real store and a tiny policy, and what SIGKILL leaves of it."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from openclaw_rl.config import Config, LoraConfig, RolloutConfig, TeacherConfig
from openclaw_rl.config_sources import ConfigError
from openclaw_rl.policy_files import verify_manifest
from openclaw_rl.store import Store
from openclaw_rl.supervision.process import LoopReporter
from openclaw_rl.training.cycle import TrainingLoop
from openclaw_rl.training.gatekeeper import KnownAnswer
from openclaw_rl.training.pruning import prune
from openclaw_rl.training.publish import PublishError, VersionRefused
from openclaw_rl.training.trainer import TeacherPrompt, Trainer
from openclaw_rl.types import LoopName, PolicyVersion, Sample, SampleState, VersionState
from tests.outages import Lock
from tests.training.support import into_store, make_sample, tiny_config, tiny_model, tiny_trainer


class StorePublisher:
    """Publishes in the store alone, as if the engine had loaded the version at once."""

    def __init__(self, store: Store, fail: int = 0) -> None:
        self._store = store
        self.fail = fail

    def publish(self, version: PolicyVersion, heartbeat: Callable[[], None]) -> None:
        heartbeat()
        if self.fail:
            self.fail -= 1
            raise PublishError("the engine is away")
        assert version.path is not None
        verify_manifest(Path(version.path))
        self._store.versions.serve(version.version)


class KillingReporter(LoopReporter):
    """Kills this process, as nobody can catch, when the loop says that it does what begins with `at`."""

    def __init__(self, store: Store, at: str) -> None:
        super().__init__(store, LoopName.TRAINING)
        self._at = at

    def working(self, activity: str, **details: Any) -> None:
        super().working(activity, **details)
        if activity.startswith(self._at):
            os.kill(os.getpid(), signal.SIGKILL)

    def waiting(self, waiting_for: str, **details: Any) -> None:
        super().waiting(waiting_for, **details)
        if waiting_for.startswith(self._at):
            os.kill(os.getpid(), signal.SIGKILL)


def make_config(run_dir: Path, *, batch: int = 2, **training: Any) -> Config:
    rollout = RolloutConfig(batch_size=batch)
    if "gate" in training:
        training["gate"] = {"probes": 0, **training["gate"]}
    return Config(run_dir=run_dir, rollout=rollout, training=tiny_config(**training))


def own_prompt(sample: Sample) -> tuple[int, ...]:
    return sample.tokens.prompt_ids


def make_loop(
    config: Config,
    store: Store,
    reporter: LoopReporter | None = None,
    fail: int = 0,
    prompt: TeacherPrompt = own_prompt,
) -> TrainingLoop:
    trainer = Trainer(
        config=config.training,
        model=tiny_model(),
        reference=None if config.training.use_lora else tiny_model(),
        offload_to=config.run_dir,
        base_path="tiny",
        teacher_prompt=prompt,
    )
    return TrainingLoop(
        config=config,
        store=store,
        trainer=trainer,
        publisher=StorePublisher(store, fail),
        reporter=reporter or LoopReporter(store, LoopName.TRAINING),
        stop=threading.Event(),
    )


def fill(store: Store, count: int, first: int = 0) -> None:
    trainer = tiny_trainer()
    for number in range(first, first + count):
        into_store(store, make_sample(trainer, number, reward=1.0 if number % 2 else -1.0))


def set_pause(loop: TrainingLoop, pause_s: float) -> None:
    """How long what failed is put off, at first."""
    loop._put_off._pause_s = pause_s


def work_off(loop: TrainingLoop) -> None:
    """Resume, then cycle until nothing is left to do."""
    loop.resume()
    while loop.cycle():
        pass


@pytest.fixture
def store(tmp_path: Path) -> Any:
    opened = Store.open(tmp_path / "store.sqlite")
    yield opened
    opened.close()


def test_a_batch_becomes_a_version_in_service(tmp_path: Path, store: Store) -> None:
    fill(store, 5)
    work_off(make_loop(make_config(tmp_path), store))
    steps = store.samples.steps()
    assert [step.sample_ids for step in steps] == [("t0", "t1"), ("t2", "t3")]
    assert store.samples.ready().count == 1
    states = [(v.name, v.state) for v in store.versions.all()]
    assert states == [
        ("base", VersionState.RETIRED),
        ("policy-v1", VersionState.RETIRED),
        ("policy-v2", VersionState.SERVING),
    ]
    assert [span.name for span in store.status.spans("training_step")] == ["training_step"] * 2
    (status,) = store.status.loops()
    assert status.waiting_for is not None
    assert "1 of 2 samples" in status.waiting_for
    assert steps[0].metrics["mean_reward"] == 0.0


def test_a_version_not_yet_published_is_published_before_the_next_step(tmp_path: Path, store: Store) -> None:
    fill(store, 4)
    loop = make_loop(make_config(tmp_path), store, fail=2)
    set_pause(loop, 0.3)
    loop.resume()
    assert loop.cycle()
    assert store.versions.serving().version == 0
    time.sleep(0.3)
    assert not loop.cycle()
    assert len(store.samples.steps()) == 1
    assert store.status.loops()[0].waiting_for == "another try to publish policy-v1: the engine is away"
    assert not loop.cycle()  # the pause grows
    time.sleep(0.6)
    assert loop.cycle()
    assert store.versions.serving().version == 2
    assert store.status.counts().counters["publish_failures"] == 2


class RefusingPublisher(StorePublisher):
    """An engine that will not have these versions."""

    def __init__(self, store: Store, *refused: int) -> None:
        super().__init__(store)
        self._refused = refused

    def publish(self, version: PolicyVersion, heartbeat: Callable[[], None]) -> None:
        if version.version in self._refused:
            raise VersionRefused(f"the engine refuses {version.name}")
        super().publish(version, heartbeat)


def adapter_after(trainer: Trainer) -> list[torch.Tensor]:
    return list(trainer.state().weights.values())


@pytest.mark.parametrize("refused", [(1,), (2,), (1, 2)])
def test_a_version_that_the_engine_refuses_is_given_up_with_its_weights(
    tmp_path: Path, store: Store, refused: tuple[int, ...]
) -> None:
    fill(store, 4)
    loop = make_loop(make_config(tmp_path), store)
    loop._candidates.publisher = RefusingPublisher(store, *refused)
    before = {0: adapter_after(loop._trainer)}
    loop.resume()
    for step in (1, 2):
        assert loop.cycle()
        before[step] = adapter_after(loop._trainer)
        assert loop._trainer.step_number == step
        if step in refused:
            for now, good in zip(before[step], before[step - 1], strict=True):
                torch.testing.assert_close(now, good, rtol=0, atol=0)
    states = {version.version: version.state for version in store.versions.all()}
    assert [version for version, state in states.items() if state is VersionState.REJECTED] == list(refused)
    assert store.versions.serving().version == max({0, 1, 2} - set(refused))
    assert store.status.counts().counters["versions_refused"] == len(refused)
    assert store.status.counts().samples_by_state == {SampleState.TRAINED: 4}

    again = make_loop(make_config(tmp_path), store)  # one that starts anew is where this one was
    again.resume()
    assert again._trainer.step_number == 2
    for now, last in zip(adapter_after(again._trainer), before[2], strict=True):
        torch.testing.assert_close(now, last, rtol=0, atol=0)
    fill(store, 2, first=4)
    assert again.cycle()
    assert store.versions.serving().version == 3


def test_a_version_that_the_gate_refuses_is_kept_and_training_goes_back(tmp_path: Path, store: Store) -> None:
    fill(store, 2)
    loop = make_loop(make_config(tmp_path, gate={"max_kl_to_base": 1e-9}), store)
    fresh = adapter_after(loop._trainer)
    work_off(loop)
    counts = store.status.counts()
    assert counts.samples_by_state == {SampleState.REJECTED: 2}
    assert counts.counters["samples_rejected_kl_to_base"] == 2
    assert counts.counters["steps_refused"] == 1
    assert store.versions.serving().version == 0
    refused = store.versions.get(1)
    assert refused is not None
    assert (refused.state, refused.reason) == (VersionState.REJECTED, "kl_to_base")
    assert refused.path is not None
    verify_manifest(Path(refused.path))  # there to be looked at
    for now, good in zip(adapter_after(loop._trainer), fresh, strict=True):
        torch.testing.assert_close(now, good, rtol=0, atol=0)

    fill(store, 2, first=2)
    again = make_loop(make_config(tmp_path), store)
    work_off(again)
    assert store.versions.serving().name == "policy-v2"  # the refused one's name is not used again


def test_an_evaluation_has_the_last_word(tmp_path: Path, store: Store) -> None:
    (tmp_path / "mine.py").write_text(
        "def score(adapter):\n    return 1.0 if (adapter / 'adapter_config.json').is_file() else 0.0\n"
    )
    fill(store, 4)
    path = f"{tmp_path / 'mine.py'}:score"
    loop = make_loop(make_config(tmp_path, gate={"evaluation_path": path, "min_evaluation": 1.0}), store)
    loop.resume()
    assert loop.cycle()
    assert store.versions.serving().version == 1
    assert store.samples.steps()[0].metrics["evaluation"] == 1.0
    strict = make_loop(make_config(tmp_path, gate={"evaluation_path": path, "min_evaluation": 1.5}), store)
    strict.resume()
    assert strict.cycle()
    assert store.versions.serving().version == 1
    assert store.versions.get(2).reason == "evaluation"  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match="has no attribute"):
        make_loop(make_config(tmp_path, gate={"evaluation_path": path + "s", "min_evaluation": 1.0}), store)


def test_the_gate_reads_with_the_last_hints_and_the_accepted_answers(tmp_path: Path, store: Store) -> None:
    trainer = tiny_trainer()
    plain = [KnownAnswer(prompt_ids=(1,), response_ids=(2,))]
    for number, hint in enumerate(["a", "b", "a", "c", "d", None]):
        into_store(store, make_sample(trainer, number, reward=1.0, hint=hint))
    loop = make_loop(make_config(tmp_path, batch=6, gate={"probes": 0}), store)
    loop._plain_answers = tuple(plain)
    assert loop._known_answers() == tuple(plain)
    work_off(loop)
    assert store.samples.recent_hints(3) == ["a", "c", "d"]
    accepted = loop._known_answers()
    assert len(accepted) == 4
    turn = store.turns.get("t5")
    assert turn is not None
    assert accepted[0].response_ids == turn.tokens.response_ids


def test_after_a_rollback_training_goes_on_from_the_version_in_service(tmp_path: Path, store: Store) -> None:
    fill(store, 4)
    loop = make_loop(make_config(tmp_path), store)
    loop.resume()
    assert loop.cycle()
    first = adapter_after(loop._trainer)
    assert loop.cycle()
    store.versions.roll_back(1)
    assert not loop.cycle()  # nothing to train, and yet it takes the weights of version 1
    assert loop._trainer.step_number == 2
    for now, good in zip(adapter_after(loop._trainer), first, strict=True):
        torch.testing.assert_close(now, good, rtol=0, atol=0)
    fill(store, 2, first=4)
    assert loop.cycle()
    assert store.versions.serving().version == 3


def test_a_rollback_during_a_step_undoes_the_step(tmp_path: Path, store: Store) -> None:
    fill(store, 4)

    class RollingBack(LoopReporter):
        def working(self, activity: str, **details: Any) -> None:
            if activity == "committing step 2":
                store.versions.roll_back(0)

    loop = make_loop(make_config(tmp_path), store, RollingBack(store, LoopName.TRAINING))
    loop.resume()
    assert loop.cycle()
    assert loop.cycle()
    assert [step.step for step in store.samples.steps()] == [1]
    assert store.samples.ready().count == 2
    assert store.versions.serving().version == 0
    assert store.status.counts().counters["steps_overtaken"] == 1
    loop._reporter = LoopReporter(store, LoopName.TRAINING)
    assert loop.cycle()
    assert [step.sample_ids for step in store.samples.steps()] == [("t0", "t1"), ("t2", "t3")]
    assert store.versions.serving().version == 2


def test_a_pin_holds_training_and_is_said(tmp_path: Path, store: Store) -> None:
    fill(store, 4)
    loop = make_loop(make_config(tmp_path), store)
    loop.resume()
    assert loop.cycle()
    store.versions.pin(0)
    assert not loop.cycle()
    assert "the pin on base" in str(store.status.loops()[0].waiting_for)
    assert store.versions.serving().version == 0
    store.versions.unpin()
    assert loop.cycle()
    assert store.versions.serving().version == 2


def test_no_step_is_taken_while_the_policy_is_used(tmp_path: Path, store: Store) -> None:
    fill(store, 2)
    loop = make_loop(make_config(tmp_path, window={"idle_s": 3600.0}), store)
    loop.resume()
    assert not loop.cycle()
    assert "3600 s without a request" in str(store.status.loops()[0].waiting_for)
    assert store.samples.ready().count == 2


def test_no_step_is_taken_while_the_gateway_marks_use(tmp_path: Path, store: Store) -> None:
    """What is not in the record counts, too: the requests there are older than the window."""
    fill(store, 2)
    config = make_config(tmp_path, window={"idle_s": 0.2})
    loop = make_loop(config, store)
    loop.resume()
    time.sleep(0.3)
    later = time.time() + 3600.0
    config.last_use_path.touch()
    os.utime(config.last_use_path, (later, later))
    assert not loop.cycle()
    assert "without a request" in str(store.status.loops()[0].waiting_for)
    os.utime(config.last_use_path, (1000.0, 1000.0))
    assert loop.cycle()


def test_a_batch_that_a_dead_trainer_held_is_not_held_on_to_while_the_window_is_closed(
    tmp_path: Path, store: Store
) -> None:
    """Else nothing of it could be deleted until then."""
    fill(store, 5)
    held = [one.turn_id for one in store.samples.claim(2, 0.0)]
    for batch in (2, 99):  # due, and not due
        loop = make_loop(make_config(tmp_path, batch=batch, window={"idle_s": 3600.0}), store)
        loop.resume()
        assert not loop.cycle()
        assert "3600 s without a request" in str(store.status.loops()[0].waiting_for)
    assert store.samples.claiming_owners() == [""]
    session = store.turns.get(held[0])
    assert session is not None
    loop = make_loop(make_config(tmp_path), store)
    loop.resume()
    assert loop.cycle()
    assert [list(step.sample_ids) for step in store.samples.steps()] == [held]
    store.samples.claim(2, 0.0)
    shut = make_loop(make_config(tmp_path, window={"idle_s": 3600.0}), store)
    shut.resume()
    assert not shut.cycle()
    store.erasure.delete([session.request.session_id], trainer_lives=True)
    assert store.samples.ready().count == 0


def test_what_cannot_be_trained_is_rejected_alone(tmp_path: Path, store: Store) -> None:
    fill(store, 1)
    into_store(store, make_sample(tiny_trainer(), 1, prompt=200, response=50))
    sample = make_sample(tiny_trainer(), 2, prompt=5, response=2)
    broken = dataclasses.replace(sample, tokens=dataclasses.replace(sample.tokens, prompt_ids=(5, 70)))
    into_store(store, broken)
    work_off(make_loop(make_config(tmp_path, batch=3), store))
    assert [step.sample_ids for step in store.samples.steps()] == [("t0", "t1")]
    assert store.status.counts().counters["samples_rejected_unknown_token"] == 1


def test_stale_samples_expire(tmp_path: Path, store: Store) -> None:
    fill(store, 3)
    loop = make_loop(make_config(tmp_path, max_staleness=1), store)
    loop.resume()
    loop.cycle()
    fill(store, 2, first=3)
    loop.cycle()  # step 2, on one sample of version 0 and one more
    assert store.samples.ready().count == 1
    loop.cycle()
    assert store.status.counts().samples_by_state == {SampleState.TRAINED: 4, SampleState.EXPIRED: 1}


def test_stopping_in_the_middle_of_a_step_gives_the_samples_back(tmp_path: Path, store: Store) -> None:
    fill(store, 2)
    stop = threading.Event()
    loop = make_loop(make_config(tmp_path), store)
    loop._stop = stop

    class StoppingReporter(LoopReporter):
        def working(self, activity: str, **details: Any) -> None:
            if "gradients" in activity:
                stop.set()

    loop._reporter = StoppingReporter(store, LoopName.TRAINING)
    loop.run()
    assert store.samples.ready().count == 2
    assert store.samples.steps() == []


def test_stopping_before_a_version_is_in_service_leaves_it_to_the_next_start(tmp_path: Path, store: Store) -> None:
    fill(store, 2)
    config = make_config(tmp_path)
    loop = make_loop(config, store)

    class StoppingReporter(LoopReporter):
        def working(self, activity: str, **details: Any) -> None:
            if activity.startswith("committing"):
                loop._stop.set()

    loop._reporter = StoppingReporter(store, LoopName.TRAINING)
    loop.run()
    assert store.versions.serving().name == "base"
    work_off(make_loop(config, store))
    assert store.versions.serving().name == "policy-v1"


KILL_POINTS = [
    "training step 1: starting",
    "training step 2: computing gradients",
    "writing the checkpoint of step 1",
    "committing step 2",
    "the engine to load policy-v1",
    "the engine to load policy-v2",
]


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    """A store with four samples, and the weights that a trainer nobody kills makes of them."""
    torch.set_num_threads(1)
    directory = tmp_path_factory.mktemp("straight")
    store = Store.open(directory / "four.sqlite")
    fill(store, 4)
    store.close()
    config = make_config(directory)
    store = copy_of(directory / "four.sqlite", config)
    work_off(make_loop(config, store))
    path = store.versions.serving().path
    store.close()
    assert path is not None
    return directory / "four.sqlite", (Path(path) / "adapter_model.safetensors").read_bytes()


def copy_of(filled: Path, config: Config) -> Store:
    """Open a copy of a store that nobody has open."""
    shutil.copy(filled, config.store_path)
    return Store.open(config.store_path)


@pytest.mark.parametrize("at", KILL_POINTS)
def test_sigkill_loses_nothing_and_trains_nothing_twice(
    tmp_path: Path, straight: tuple[Path, bytes], at: str
) -> None:
    """A trainer killed at `at`, then another: four samples, two steps, each sample in exactly one of them."""
    filled, weights = straight
    config = make_config(tmp_path)
    copy_of(filled, config).close()
    assert die_at(config, at) == signal.SIGKILL
    store = Store.open(config.store_path)
    claimed = store.status.counts().samples_by_state.get(SampleState.CLAIMED, 0)
    assert claimed == (0 if at.startswith("the engine") else 2)
    work_off(make_loop(config, store))
    assert [step.sample_ids for step in store.samples.steps()] == [("t0", "t1"), ("t2", "t3")]
    assert store.status.counts().samples_by_state == {SampleState.TRAINED: 4}
    assert store.versions.serving().name == "policy-v2"
    path = store.versions.serving().path
    assert path is not None
    assert (Path(path) / "adapter_model.safetensors").read_bytes() == weights
    assert sorted(p.name for p in config.checkpoints_dir.iterdir()) == ["step-000001", "step-000002"]
    store.close()


def test_what_was_trained_may_be_deleted_between_a_death_and_the_next_start(tmp_path: Path) -> None:
    """The checkpoint that the dead trainer did not commit is known by the store's id: the samples are gone."""
    config = make_config(tmp_path)
    store = Store.open(config.store_path)
    fill(store, 2)
    store.close()
    assert die_at(config, "committing step 1") == signal.SIGKILL
    store = Store.open(config.store_path)
    store.erasure.delete(["s"], trainer_lives=False)
    work_off(make_loop(config, store))
    assert list(config.checkpoints_dir.iterdir()) == []
    fill(store, 2, first=2)
    work_off(make_loop(config, store))
    assert [step.sample_ids for step in store.samples.steps()] == [("t2", "t3")]
    store.close()


def test_a_batch_that_was_not_full_does_not_grow_by_a_death(tmp_path: Path) -> None:
    config = make_config(tmp_path, batch=3)
    config = config.model_copy(update={"rollout": RolloutConfig(batch_size=3, max_batch_wait_s=1e-3)})
    store = Store.open(config.store_path)
    fill(store, 2)
    store.close()
    assert die_at(config, "training step 1: computing gradients") == signal.SIGKILL
    store = Store.open(config.store_path)
    fill(store, 2, first=2)
    time.sleep(0.01)
    work_off(make_loop(config, store))
    assert [step.sample_ids for step in store.samples.steps()] == [("t0", "t1"), ("t2", "t3")]
    store.close()


def die_at(config: Config, at: str) -> int:
    """Run the loop in a process of its own, which kills itself at `at`; returns the signal that it died of."""
    child = os.fork()
    if child == 0:
        torch.set_num_threads(1)  # the threads of the parent are not here, and would be waited for
        store = Store.open(config.store_path)
        work_off(make_loop(config, store, KillingReporter(store, at)))
        os._exit(0)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise AssertionError("the child neither died nor finished")


def test_a_trainer_waits_for_a_record_that_is_locked_and_trains_each_sample_once(tmp_path: Path) -> None:
    """The lock is taken in the middle of a step and again before its commit; no step is lost or done twice."""
    path = tmp_path / "store.sqlite"
    outside = Store.open(path)
    fill(outside, 4)
    store = Store.open(path, patience_s=0.1)
    lock = Lock(path)

    class LockingReporter(LoopReporter):
        """Has the record locked for a while when the loop says that it commits step 1, and when it begins step 2."""

        def __init__(self) -> None:
            super().__init__(store, LoopName.TRAINING)
            self.locked: list[str] = []

        def working(self, activity: str, **details: Any) -> None:
            if activity in {"committing step 1", "training step 2: starting"} and activity not in self.locked:
                self.locked.append(activity)
                lock.take()
                threading.Timer(0.5, lock.release).start()

    reporter = LockingReporter()
    loop = make_loop(make_config(tmp_path), store, reporter)
    thread = threading.Thread(target=loop.run)
    thread.start()
    deadline = time.monotonic() + 60
    while len(outside.samples.steps()) < 2 and time.monotonic() < deadline and thread.is_alive():
        time.sleep(0.05)
    loop._stop.set()
    thread.join(30)
    assert not thread.is_alive()
    assert reporter.locked == ["committing step 1", "training step 2: starting"]
    steps = outside.samples.steps()
    assert [step.step for step in steps] == [1, 2]
    trained = [turn_id for step in steps for turn_id in step.sample_ids]
    assert len(trained) == len(set(trained)) == 4
    assert all(span.ended_at is not None for span in outside.status.spans())
    lock.close()
    store.close()
    outside.close()


def test_a_step_keeps_who_read_the_hints_and_counts_those_that_did_not_fit(tmp_path: Path, store: Store) -> None:
    trainer = tiny_trainer()
    into_store(store, make_sample(trainer, 0, hint="hm"))
    into_store(store, make_sample(trainer, 1, hint="hm", prompt=252, response=4))
    work_off(make_loop(make_config(tmp_path), store, prompt=lambda sample: (*sample.tokens.prompt_ids, 1)))
    (step,) = store.samples.steps()
    assert step.teacher == {
        "scored_by": "base",
        "hinted": {"t0": {"candidate": 0}},
        "excluded": {"t1": "hint_too_long"},
    }
    assert store.status.counts().counters["hints_excluded_hint_too_long"] == 1


def test_the_checkpoint_of_a_frozen_teacher_is_never_pruned(tmp_path: Path, store: Store) -> None:
    fill(store, 8)
    frozen = TeacherConfig(kind="frozen", version=1)
    config = make_config(tmp_path, keep_checkpoints=1, teacher=frozen)
    work_off(make_loop(config, store))
    assert {path.name for path in config.checkpoints_dir.iterdir()} == {"step-000001", "step-000004"}


def test_refused_steps_do_not_crowd_out_what_serving_was_built_on(tmp_path: Path, store: Store) -> None:
    fill(store, 6)
    config = make_config(tmp_path, keep_checkpoints=2)
    work_off(make_loop(config, store))
    fill(store, 6, first=6)
    refusing = make_config(tmp_path, keep_checkpoints=2, gate={"max_kl_to_last": 1e-12})
    work_off(make_loop(refusing, store))
    assert store.versions.serving().version == 3
    prune(config, store, "")
    kept = {path.name for path in config.checkpoints_dir.iterdir()}
    assert kept == {"step-000002", "step-000003", "step-000005", "step-000006"}


def test_a_run_does_not_go_on_at_another_scale(tmp_path: Path, store: Store) -> None:
    """The same numbers times another alpha are a policy that nobody trained, and that no answer was drawn from."""
    fill(store, 2)
    work_off(make_loop(make_config(tmp_path), store))
    other = make_config(tmp_path, lora=LoraConfig(rank=4, alpha=80.0))
    with pytest.raises(ConfigError, match=r"goes on from .*step-000001: .*training\.lora\.alpha = 8, not 80"):
        make_loop(other, store).resume()
    make_loop(make_config(tmp_path), store).resume()
