"""What fails for one owner's policy stops no other's."""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.config import LoraConfig
from openclaw_rl.rollout.waiting import PUT_OFF
from openclaw_rl.store import Store
from openclaw_rl.supervision.process import LoopReporter
from openclaw_rl.training.cycle import TRAINING_STEP
from openclaw_rl.training.leftovers import discard_leftovers
from openclaw_rl.training.own_steps import root_of
from openclaw_rl.training.pruning import prune
from openclaw_rl.training.publish import PublishError
from openclaw_rl.types import LoopName, PolicyVersion, VersionState
from tests.training.test_cycle import StorePublisher, fill, make_config, make_loop, set_pause
from tests.training.test_turns_of_owners import config_of, give, work_off
from tests.unreadable import FAILING, failing, open_to_all, without_rights


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store.open(tmp_path / "store.sqlite")
    yield opened
    opened.close()


@pytest.mark.skipif(not FAILING.exists(), reason="needs /proc/self/mem")
def test_one_owners_unreadable_checkpoint_stops_nobody_else(tmp_path: Path, store: Store) -> None:
    give(store, "ann", 0, 1)
    give(store, "bob", 10, 11)
    config = config_of(tmp_path)
    work_off(make_loop(config, store))
    for numbers in ((2, 3), (4, 5)):
        give(store, "ann", *numbers)
        give(store, "bob", *(10 + number for number in numbers))
    held = [one.turn_id for one in store.samples.claim(2, 60.0, "ann")]
    loop = make_loop(config, store)
    with failing(Path(store.samples.steps("ann")[-1].checkpoint) / "trainer_state.pt"):
        work_off(loop)
        assert [step.owner for step in store.samples.steps()] == ["ann", "bob", "bob", "bob"]
        waits = store.status.loops()[0].waiting_for
        assert waits is not None
        assert "trainer_state.pt to be readable (Input/output error)" in waits
    loop._put_off.done("ann")
    while loop.cycle():
        pass
    assert list(store.samples.steps("ann")[1].sample_ids) == held
    assert len(store.samples.steps("ann")) == 3
    assert store.versions.serving("bob").version == 4


@pytest.mark.parametrize("found", ["at its turn", "after a refused step"])
def test_one_owners_lost_checkpoints_stop_nobody_else(
    tmp_path: Path, store: Store, found: str, caplog: pytest.LogCaptureFixture
) -> None:
    give(store, "ann", 0, 1)
    give(store, "bob", 10, 11)
    config = config_of(tmp_path)
    work_off(make_loop(config, store))
    give(store, "ann", 2, 3)
    give(store, "bob", 12, 13)
    refusing = {"probes": 0, "max_kl_to_base": 1e-9}
    loop = make_loop(config_of(tmp_path, gate=refusing) if found == "after a refused step" else config, store)
    loop.resume()
    if found == "after a refused step":
        assert loop._turn_to("ann")  # it is read before it is lost
    set_pause(loop, 60.0)
    shutil.rmtree(root_of(config.checkpoints_dir, "ann"))
    while loop.cycle():
        pass
    owners = [step.owner for step in store.samples.steps()]
    assert owners[2:] == (["bob"] if found == "at its turn" else ["ann", "bob"])
    assert "none of the 1 checkpoints that training may go on from is whole" in caplog.text
    assert "none of the 1 checkpoints" in str(store.status.loops()[0].waiting_for)
    assert store.versions.serving("ann").version == 1
    store.versions.roll_back(0, "ann")  # as the message says
    loop._put_off.done("ann")
    give(store, "ann", 4, 5)
    assert loop.cycle()
    assert store.samples.steps()[-1].owner == "ann"


@pytest.mark.parametrize(
    ("lora", "words"),
    [
        ({"alpha": 16.0}, "it was trained with training.lora.alpha = 8, not 16"),
        ({"rank": 2}, "training.lora differs from that of the checkpoint"),
        ({"target_modules": ("q_proj",)}, "training.lora differs from that of the checkpoint"),
    ],
)
def test_an_owner_whose_checkpoint_does_not_fit_training_lora_any_more_stops_nobody_else(
    tmp_path: Path, store: Store, lora: dict[str, Any], words: str
) -> None:
    give(store, "ann", 0, 1)
    work_off(make_loop(config_of(tmp_path), store))
    give(store, "ann", 2, 3)
    give(store, "bob", 10, 11)
    other = LoraConfig(**{"rank": 4, "alpha": 8.0, "dropout": 0.2, **lora})
    loop = make_loop(config_of(tmp_path, lora=other), store)
    set_pause(loop, 60.0)
    work_off(loop)
    assert [step.owner for step in store.samples.steps()] == ["ann", "bob"]
    (said,) = store.status.loops()
    waits = str(said.waiting_for)
    assert said.details[PUT_OFF] == ["ann"]
    assert words in waits
    assert waits.endswith("begin anew with openclaw-rl policy rollback base --user ann")
    assert store.versions.serving("ann").version == 1
    store.versions.roll_back(0, "ann")  # as it says
    loop._put_off.done("ann")
    while loop.cycle():
        pass
    assert [step.owner for step in store.samples.steps()] == ["ann", "bob", "ann"]


def test_one_owners_directory_that_cannot_be_written_stops_nobody_else(tmp_path: Path, store: Store) -> None:
    for numbers in ((0, 1), (2, 3)):
        give(store, "ann", *numbers)
        give(store, "bob", *(10 + number for number in numbers))
    held = [one.turn_id for one in store.samples.claim(2, 60.0, "ann")]
    config = config_of(tmp_path)
    root = root_of(config.checkpoints_dir, "ann")
    root.parent.mkdir()
    root.write_text("no directory")
    loop = make_loop(config, store)
    set_pause(loop, 60.0)
    work_off(loop)
    assert [step.owner for step in store.samples.steps()] == ["bob", "bob"]
    assert store.samples.claiming_owners() == ["ann"]
    assert len(store.status.spans(TRAINING_STEP)) == 2  # nothing is trained that cannot be kept
    assert f"{root} to be writable" in str(store.status.loops()[0].waiting_for)
    root.unlink()
    loop._put_off.done("ann")
    while loop.cycle():
        pass
    assert [list(step.sample_ids) for step in store.samples.steps("ann")] == [held, ["t2", "t3"]]


def test_one_owners_directory_that_cannot_be_looked_into_stops_nobody_else(
    tmp_path: Path, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    give(store, "ann", 0, 1)
    config = config_of(tmp_path)
    work_off(make_loop(config, store))
    give(store, "bob", 10, 11)
    give(store, "ann", 2, 3)
    with without_rights(root_of(config.checkpoints_dir, "ann")):
        assert discard_leftovers(config.checkpoints_dir, store, 1) == []
        prune(config, store, "ann")
    assert "is not removed" in caplog.text
    assert "are not pruned" in caplog.text
    open_to_all(tmp_path)
    loop = make_loop(config, store)
    set_pause(loop, 60.0)
    with without_rights(root_of(config.checkpoints_dir, "ann")):
        work_off(loop)
        assert [step.owner for step in store.samples.steps()] == ["ann", "bob"]
        assert "to be readable (Permission denied)" in str(store.status.loops()[0].waiting_for)
    loop._put_off.done("ann")
    while loop.cycle():
        pass
    assert [step.owner for step in store.samples.steps()] == ["ann", "bob", "ann"]


class Once(LoopReporter):
    """Does something when a checkpoint is about to be written, the first time."""

    def __init__(self, store: Store, then: Callable[[], object]) -> None:
        super().__init__(store, LoopName.TRAINING)
        self._then: Callable[[], object] | None = then

    def working(self, activity: str, **details: Any) -> None:
        super().working(activity, **details)
        if activity.startswith("writing the checkpoint") and self._then is not None:
            self._then()
            self._then = None


def test_a_step_that_cannot_be_kept_gives_back_its_own_samples_and_no_other_owners(
    tmp_path: Path, store: Store
) -> None:
    give(store, "ann", 0, 1)
    give(store, "bob", 10, 11)
    store.samples.claim(2, 60.0, "bob")
    config = config_of(tmp_path)
    root = root_of(config.checkpoints_dir, "ann")

    def lose() -> None:
        root.rmdir()
        root.write_text("no directory")

    loop = make_loop(config, store, Once(store, lose))
    set_pause(loop, 60.0)
    loop._put_off.put("bob", "something of bob's")
    work_off(loop)
    assert store.samples.steps() == []
    assert store.samples.claiming_owners() == ["bob"]
    assert store.samples.ready("ann").count == 2
    assert store.status.loops()[0].activity == "waiting"
    assert f"{root} to be writable" in str(loop._put_off.words("ann"))


def test_where_nobodys_checkpoints_can_be_written_nobody_is_put_off_and_nothing_is_computed(
    tmp_path: Path, store: Store
) -> None:
    give(store, "ann", 0, 1)
    give(store, "bob", 10, 11)
    config = config_of(tmp_path)
    loop = make_loop(config, store)
    work_off(loop)
    for owner, number in (("ann", 2), ("bob", 12), ("cora", 20)):
        give(store, owner, number, number + 1)
    open_to_all(tmp_path)
    with without_rights(config.checkpoints_dir, 0o555):
        for _ in range(3):
            with pytest.raises(PermissionError) as caught:
                loop.cycle()
            assert caught.value.filename == str(config.checkpoints_dir)
    assert loop._put_off.owners() == set()
    assert len(store.status.spans(TRAINING_STEP)) == 2
    work_off(loop)
    assert sorted(step.owner for step in store.samples.steps()) == ["ann", "ann", "bob", "bob", "cora"]


def test_a_process_that_may_open_no_more_files_puts_nobody_off(tmp_path: Path, store: Store) -> None:
    """Only another process cures it: this one has to end."""
    give(store, "ann", 0, 1)
    loop = make_loop(config_of(tmp_path), store)
    loop.resume()
    assert loop._turn_to("ann")
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, before[1]))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            loop.cycle()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert loop._put_off.owners() == set()


def test_a_candidate_that_cannot_be_published_stops_its_owner_alone(tmp_path: Path, store: Store) -> None:
    class Unreadable(StorePublisher):
        def publish(self, version: PolicyVersion, heartbeat: Callable[[], None]) -> None:
            if version.owner == "ann" and self.fail:
                self.fail -= 1
                raise PublishError("a file cannot be read")
            super().publish(version, heartbeat)

    for numbers in ((0, 1), (2, 3)):
        give(store, "ann", *numbers)
        give(store, "bob", *(10 + number for number in numbers))
    loop = make_loop(config_of(tmp_path), store)
    loop._candidates.publisher = Unreadable(store, fail=1)
    set_pause(loop, 60.0)
    work_off(loop)
    assert [step.owner for step in store.samples.steps()] == ["ann", "bob", "bob"]
    assert store.status.counts().counters["publish_failures"] == 1
    assert "another try to publish policy-v1" in str(store.status.loops()[0].waiting_for)
    loop._put_off.done("ann")
    while loop.cycle():
        pass
    assert store.versions.serving("ann").version == 4
    assert store.versions.serving("bob").version == 3


def test_what_was_made_under_another_setting_waits_until_it_is_set_back(tmp_path: Path, store: Store) -> None:
    """An owner's version must not be opened to everybody; the shared policy serves nobody while there are owners."""
    give(store, "ann", 0, 1)
    fill(store, 2, first=20)
    owned, shared = config_of(tmp_path), make_config(tmp_path)
    for config in (owned, shared):
        loop = make_loop(config, store, fail=1)  # as if it had been killed before it published
        set_pause(loop, 60.0)
        work_off(loop)
    assert [step.owner for step in store.samples.steps()] == ["ann", ""]
    states = [[one.state for one in store.versions.all()][1:]]
    for config in (owned, shared):
        work_off(make_loop(config, store))
        states.append([one.state for one in store.versions.all()][1:])
    candidate, serving = VersionState.CANDIDATE, VersionState.SERVING
    assert states == [[candidate, candidate], [serving, candidate], [serving, serving]]


def test_an_owners_waiting_candidate_does_not_hold_the_shared_policy(tmp_path: Path, store: Store) -> None:
    """`policies.per` was set back to none while a version of ann's waited."""
    give(store, "ann", 0, 1)
    loop = make_loop(config_of(tmp_path), store, fail=99)
    set_pause(loop, 60.0)
    work_off(loop)
    fill(store, 2, first=20)
    work_off(make_loop(make_config(tmp_path), store))
    assert [step.owner for step in store.samples.steps()] == ["ann", ""]
    assert [one.state for one in store.versions.all()][1:] == [VersionState.CANDIDATE, VersionState.SERVING]
