"""What a trainer does whose last checkpoints are not what was written."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from openclaw_rl.config_sources import ConfigError
from openclaw_rl.policy_files import UnreadablePolicy
from openclaw_rl.store import Store
from openclaw_rl.store.outage import Patience
from openclaw_rl.supervision.process import LoopReporter
from openclaw_rl.training.checkpoint import load_checkpoint
from openclaw_rl.training.line import line_of
from openclaw_rl.training.recovery import DAMAGED, REASON, NoIntactCheckpoint
from openclaw_rl.types import LoopName, PolicyVersion, SampleState, VersionState
from tests.training.test_cycle import fill, make_config, make_loop, work_off
from tests.unreadable import FAILING, failing

STATE = "trainer_state.pt"
ADAPTER = "adapter/adapter_model.safetensors"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store.open(tmp_path / "store.sqlite")
    yield opened
    opened.close()


def cut(path: Path) -> None:
    """The first half of a file, as a full disk or a power cut leaves it."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


DAMAGES: list[Callable[[Path], None]] = [
    lambda path: cut(path / STATE),
    lambda path: cut(path / ADAPTER),
    lambda path: cut(path / "manifest.json"),
    shutil.rmtree,
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_training_goes_on_from_the_newest_whole_checkpoint(
    tmp_path: Path, store: Store, damage: Callable[[Path], None]
) -> None:
    fill(store, 6)
    work_off(make_loop(make_config(tmp_path), store))
    steps = store.samples.steps()
    assert [step.step for step in steps] == [1, 2, 3]
    for step in steps[1:]:
        damage(Path(step.checkpoint))

    again = make_loop(make_config(tmp_path), store)
    again.resume()
    whole = load_checkpoint(Path(steps[0].checkpoint))
    torch.testing.assert_close(again._trainer.state().weights, whole.weights, rtol=0, atol=0)
    assert store.versions.serving().version == 1
    assert store.status.counts().counters[DAMAGED] == 1  # of the two, one was in service

    fill(store, 2, first=6)
    assert again.cycle()
    assert store.versions.serving().version == 4
    assert store.status.counts().samples_by_state == {SampleState.TRAINED: 8}
    work_off(make_loop(make_config(tmp_path), store))  # and once more, past the damaged ones
    assert store.versions.serving().version == 4


def test_a_damaged_version_that_was_not_published_never_is(tmp_path: Path, store: Store) -> None:
    fill(store, 4)
    loop = make_loop(make_config(tmp_path), store)
    loop.resume()
    assert loop.cycle()
    loop._candidates.publisher.fail = 99  # type: ignore[attr-defined]
    assert loop.cycle()
    cut(Path(store.samples.steps()[-1].checkpoint) / STATE)
    make_loop(make_config(tmp_path), store).resume()
    states = {version.version: version.state for version in store.versions.all()}
    assert states == {0: VersionState.RETIRED, 1: VersionState.SERVING, 2: VersionState.REJECTED}


def test_without_any_whole_checkpoint_a_person_has_to_decide(tmp_path: Path, store: Store) -> None:
    fill(store, 4)
    config = make_config(tmp_path)
    work_off(make_loop(config, store))
    shutil.rmtree(config.checkpoints_dir)
    with pytest.raises(NoIntactCheckpoint, match="none of the 2 checkpoints"):
        make_loop(config, store).resume()
    assert store.versions.serving().version == 2


def test_a_lost_store_is_told_by_a_lone_checkpoint(tmp_path: Path, store: Store) -> None:
    fill(store, 2)
    config = make_config(tmp_path)
    work_off(make_loop(config, store))
    other = Store.open(tmp_path / "other.sqlite")
    try:
        with pytest.raises(ValueError, match="put the store back"):
            make_loop(config, other).resume()
    finally:
        other.close()
    assert (config.checkpoints_dir / "step-000001").is_dir()


# --- what a person took out of service -------------------------------------------------------------------------


def train(tmp_path: Path, store: Store, steps: int) -> None:
    """So many steps more, each on two new samples."""
    fill(store, 2 * steps, first=2 * len(store.samples.steps()))
    work_off(make_loop(make_config(tmp_path), store))


def damage_last(store: Store) -> None:
    cut(Path(store.samples.steps()[-1].checkpoint) / STATE)


def test_what_was_rolled_back_from_is_not_taken_up_past_a_damaged_checkpoint(
    tmp_path: Path, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    train(tmp_path, store, 3)
    store.versions.roll_back(1)
    train(tmp_path, store, 1)
    assert [version.basis for version in store.versions.all()] == [None, 0, 1, 2, 1]
    damage_last(store)
    again = make_loop(make_config(tmp_path), store)
    again.resume()
    assert store.versions.serving().version == 1
    whole = load_checkpoint(Path(store.samples.steps()[0].checkpoint))
    torch.testing.assert_close(again._trainer.state().weights, whole.weights, rtol=0, atol=0)
    assert "policy-v1, which it was built on, serves in its place" in caplog.text
    reasons = {version.version: version.reason for version in store.versions.all()}
    assert reasons == {0: None, 1: None, 2: "rolled_back", 3: "rolled_back", 4: "damaged"}


def test_what_is_whole_is_not_called_damaged(tmp_path: Path, store: Store) -> None:
    """Version 2 is no ancestor of version 3, and simply made room when 3 was put into service again."""
    train(tmp_path, store, 2)
    store.versions.roll_back(1)
    train(tmp_path, store, 1)
    for version in (2, 3):
        store.versions.roll_back(version)
    damage_last(store)
    make_loop(make_config(tmp_path), store).resume()
    assert store.versions.serving().version == 1
    assert {version.version: version.reason for version in store.versions.all()} == {
        0: None,
        1: None,
        2: None,
        3: REASON,
    }
    assert store.status.counts().counters[DAMAGED] == 1


def test_what_it_was_built_on_is_passed_over_where_a_person_took_it_out_of_service(
    tmp_path: Path, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    train(tmp_path, store, 3)
    for version in (2, 1, 3):  # the last one forward again
        store.versions.roll_back(version)
    assert store.versions.serving().reason is None
    damage_last(store)
    make_loop(make_config(tmp_path), store).resume()
    assert store.versions.serving().version == 1
    assert "taken out of service: policy-v2 (rolled_back)" in caplog.text


def test_nothing_is_chosen_where_only_what_was_rolled_back_from_is_whole(tmp_path: Path, store: Store) -> None:
    train(tmp_path, store, 1)
    store.versions.roll_back(0)
    train(tmp_path, store, 1)
    damage_last(store)
    with pytest.raises(NoIntactCheckpoint, match=r"none of the 1 checkpoints .* openclaw-rl policy rollback"):
        make_loop(make_config(tmp_path), store).resume()
    assert store.versions.serving().version == 2
    store.versions.roll_back(1)  # as the message says
    make_loop(make_config(tmp_path), store).resume()
    assert store.versions.serving().version == 1


def test_damage_lifts_no_pin(tmp_path: Path, store: Store) -> None:
    """The files that serve may be whole: only a trainer that goes on needs the others."""
    train(tmp_path, store, 2)
    store.versions.pin(2)
    damage_last(store)
    fill(store, 2, first=4)
    again = make_loop(make_config(tmp_path), store)
    again.resume()
    assert not again.cycle()
    assert "the pin on policy-v2" in str(store.status.loops()[0].waiting_for)
    pinned = store.versions.pinned()
    assert pinned is not None
    assert (pinned.version, pinned.state) == (2, VersionState.SERVING)
    store.versions.unpin()
    assert again.cycle()
    assert [one.basis for one in store.versions.all()][3] == 1  # it is found once training is to go on


@pytest.mark.parametrize("pinned", [1, 2])
def test_a_pin_that_is_set_while_a_checkpoint_is_read_is_not_lifted_by_its_damage(
    tmp_path: Path, store: Store, pinned: int
) -> None:
    train(tmp_path, store, 2)
    manifest = Path(store.samples.steps()[-1].checkpoint) / "manifest.json"
    manifest.unlink()
    os.mkfifo(manifest)

    def pin() -> None:
        with manifest.open("w") as file:  # opens when the trainer reads it
            store.versions.pin(pinned)
            file.write("torn")

    person = threading.Thread(target=pin, daemon=True)
    person.start()
    again = make_loop(make_config(tmp_path), store)
    again.resume()
    person.join(10)
    found = store.versions.pinned()
    assert found is not None
    assert (found.version, found.state) == (pinned, VersionState.SERVING)
    assert not again.cycle()
    assert DAMAGED not in store.status.counts().counters


def version(number: int, created_at: float, state: VersionState, basis: int | None = None) -> PolicyVersion:
    return PolicyVersion(version=number, state=state, path="x", step=number, created_at=created_at, basis=basis)


def test_on_what_an_old_version_was_built_is_told_by_when_that_was_in_service() -> None:
    """Version 3 was made at 30: 2 had been gone back from (at 25), and 1 served until 3 took its place (at 31)."""
    retired, serving = VersionState.RETIRED, VersionState.SERVING
    old = [version(1, 10.0, retired), version(2, 20.0, retired), version(3, 30.0, serving)]
    since = {1: 31.0, 2: 25.0, 3: 31.0}
    assert [one.version for one in line_of(3, old, since)] == [3, 1]
    newer = [*old, version(4, 40.0, VersionState.CANDIDATE), version(5, 50.0, VersionState.CANDIDATE, basis=2)]
    assert [one.version for one in line_of(4, newer, {**since, 4: 40.0, 5: 50.0})] == [4, 3, 1]  # 3 serves still
    assert [one.version for one in line_of(5, newer, {**since, 4: 40.0, 5: 50.0})] == [5, 2, 1]
    assert line_of(0, old, since) == []


# --- checkpoints that cannot be read -----------------------------------------------------------------------------

needs_failing = pytest.mark.skipif(not FAILING.exists(), reason="needs /proc/self/mem")


@needs_failing
@pytest.mark.parametrize("name", [STATE, ADAPTER, "manifest.json"])
def test_a_checkpoint_that_cannot_be_read_is_not_given_up(tmp_path: Path, store: Store, name: str) -> None:
    train(tmp_path, store, 2)
    checkpoint = Path(store.samples.steps()[-1].checkpoint)
    with failing(checkpoint / name), pytest.raises(UnreadablePolicy, match=name):
        make_loop(make_config(tmp_path), store).resume()
    assert store.versions.serving().version == 2
    assert DAMAGED not in store.status.counts().counters
    again = make_loop(make_config(tmp_path), store)
    again.resume()
    whole = load_checkpoint(checkpoint)
    torch.testing.assert_close(again._trainer.state().weights, whole.weights, rtol=0, atol=0)


@needs_failing
def test_a_trainer_waits_until_it_can_read_its_checkpoint_and_says_which(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "store.sqlite")
    train(tmp_path, store, 1)
    file = Path(store.samples.steps()[-1].checkpoint) / STATE
    told: list[str] = []

    class Listening(LoopReporter):
        def waiting(self, waiting_for: str, **details: Any) -> None:
            super().waiting(waiting_for, **details)
            told.append(waiting_for)

    loop = make_loop(make_config(tmp_path), store, Listening(store, LoopName.TRAINING))
    thread = threading.Thread(target=loop.run)
    deadline = time.monotonic() + 60
    with failing(file):
        thread.start()
        while not told and time.monotonic() < deadline and thread.is_alive():
            time.sleep(0.02)
    while not any("a batch" in words for words in told) and time.monotonic() < deadline and thread.is_alive():
        time.sleep(0.02)
    loop._stop.set()
    thread.join(30)
    assert not thread.is_alive()
    assert told[0].startswith(f"{file} to be readable (Input/output error): ")
    assert "move its checkpoint away" in told[0]
    assert any("a batch" in words for words in told)
    assert store.versions.serving().version == 1
    store.close()


@needs_failing
def test_a_checkpoint_that_stays_unreadable_is_said_once_and_asked_for_ever_more_seldom(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store.open(tmp_path / "store.sqlite")
    train(tmp_path, store, 1)
    done: list[str] = []

    class Listening(LoopReporter):
        def working(self, activity: str, **details: Any) -> None:
            done.append(activity)

    loop = make_loop(make_config(tmp_path), store, Listening(store, LoopName.TRAINING))
    stop = Counting(most=6)
    loop._stop = stop
    loop._patience = Patience(stop, loop._reporter.waiting, pause_s=1.0, max_pause_s=8.0)
    with failing(Path(store.samples.steps()[-1].checkpoint) / STATE):
        loop.run()
    assert stop.waited == [1.0, 2.0, 4.0, 8.0, 8.0, 8.0]
    said = [record.message for record in caplog.records if record.name == "openclaw_rl.store.outage"]
    assert len(said) == 1
    assert said[0].startswith("waiting for")
    assert done.count("resuming") == 1  # so that it is seen since when it waits
    store.close()


class Counting(threading.Event):
    """Waits for nothing, keeps how long it was to wait, and is set after so many times."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.waited: list[float] = []
        self._most = most

    def wait(self, timeout: float | None = None) -> bool:
        if threading.current_thread() is threading.main_thread() and timeout is not None:
            self.waited.append(timeout)
            if len(self.waited) == self._most:
                self.set()
        return self.is_set()


@needs_failing
def test_a_run_is_not_begun_from_what_may_not_be_read(tmp_path: Path, store: Store) -> None:
    train(tmp_path, store, 1)
    source = Path(store.samples.steps()[-1].checkpoint)
    (tmp_path / "new").mkdir()
    other = Store.open(tmp_path / "new" / "store.sqlite")
    loop = make_loop(make_config(tmp_path / "new", resume_from_checkpoint=str(source)), other)
    with (
        failing(source / STATE),
        pytest.raises(ConfigError, match=r"resume_from_checkpoint: .*trainer_state.pt cannot be read .*: make it"),
    ):
        loop.resume()
    loop.resume()
    assert other.samples.last_step() == 1
    other.close()


def test_a_damaged_candidate_of_the_base_leaves_the_base_in_service(tmp_path: Path, store: Store) -> None:
    fill(store, 2)
    loop = make_loop(make_config(tmp_path), store)
    loop.resume()
    loop._candidates.publisher.fail = 99  # type: ignore[attr-defined]
    assert loop.cycle()
    cut(Path(store.samples.steps()[-1].checkpoint) / STATE)
    fill(store, 2, first=2)
    work_off(make_loop(make_config(tmp_path), store))
    states = {version.version: version.state for version in store.versions.all()}
    assert states == {0: VersionState.RETIRED, 1: VersionState.REJECTED, 2: VersionState.SERVING}
