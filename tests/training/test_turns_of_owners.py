"""Several owners' policies in one trainer: whose turn it is, and that each learns as if it were alone."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from openclaw_rl.config import Config, LoraConfig, PoliciesConfig, RolloutConfig
from openclaw_rl.store import Store
from openclaw_rl.store.ready_owners import OwnerReady
from openclaw_rl.training.checkpoint import load_checkpoint
from openclaw_rl.training.cycle import HINTS_TOLD, TrainingLoop
from openclaw_rl.training.due import due_since, next_owner
from openclaw_rl.training.own_steps import OwnSteps, root_of
from openclaw_rl.types import VersionState
from tests.builders import Conversation, make_judgement
from tests.training.support import make_sample, tiny_config, tiny_trainer
from tests.training.test_cycle import die_at, make_loop

SCHEDULED = {"schedule": "linear", "schedule_steps": 4, "lora": LoraConfig(rank=4, alpha=8.0, dropout=0.2)}


def config_of(run_dir: Path, *, states: int = 4, **training: Any) -> Config:
    return Config(
        run_dir=run_dir,
        rollout=RolloutConfig(batch_size=2),
        policies=PoliciesConfig(per="user", states_in_memory=states),
        training=tiny_config(**{**SCHEDULED, **training}),
    )


def give(store: Store, owner: str, *numbers: int, hint: str | None = None, version: int = 0) -> None:
    """Ready samples of an owner, as the loops before training would write them."""
    trainer = tiny_trainer()
    trainer.step_number = version
    for number in numbers:
        sample = make_sample(trainer, number, reward=1.0 if number % 2 else -1.0, hint=hint)
        conversation = Conversation(store, f"session-{owner}")
        turn = conversation.turn(sample.turn_id, tokens=sample.tokens, owner=owner)
        store.turns.move(turn.turn_id, turn.state.__class__.AWAITING_NEXT_STATE)
        store.turns.set_next_state(turn.turn_id, "next", [{"role": "user", "content": "no"}])
        store.turns.record_judgement(make_judgement(turn.turn_id, sample.reward or 0.0, sample.hint))
        store.samples.add(sample)


def work_off(loop: TrainingLoop) -> None:
    loop.resume()
    while loop.cycle():
        pass


def last_state(store: Store, owner: str) -> dict[str, Any]:
    step = store.samples.steps(owner)[-1]
    state = load_checkpoint(Path(step.checkpoint))
    return {
        "weights": state.weights,
        "rng": state.rng,
        "averages": state.averages,
        "optimizer": state.optimizer["state"],
        "trained": state.trained,
        "gate": state.gate,
    }


def assert_same(one: Any, other: Any) -> None:
    """The same, bit for bit."""
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_same(one[key], other[key])
    else:
        assert one == other


@pytest.fixture
def store(tmp_path: Path) -> Any:
    opened = Store.open(tmp_path / "store.sqlite")
    yield opened
    opened.close()


@pytest.mark.parametrize("states", [1, 4])
def test_two_owners_in_turn_are_each_as_if_alone(tmp_path: Path, store: Store, states: int) -> None:
    (tmp_path / "both").mkdir()
    for numbers in ((0, 1), (2, 3), (4, 5)):
        give(store, "ann", *numbers)
        give(store, "bob", *(10 + number for number in numbers))
    work_off(make_loop(config_of(tmp_path / "both", states=states), store))
    assert [step.owner for step in store.samples.steps()] == ["ann", "bob"] * 3
    assert store.versions.serving("ann").version == 5
    assert store.versions.serving("bob").version == 6
    assert store.versions.serving("cora").version == 0
    assert store.versions.serving("").version == 0
    for owner, first in (("ann", 0), ("bob", 10)):
        alone = Store.open(tmp_path / f"{owner}.sqlite")
        give(alone, owner, *range(first, first + 6))
        work_off(make_loop(config_of(tmp_path / owner, states=states), alone))
        assert len(alone.samples.steps()) == 3
        assert_same(last_state(store, owner), last_state(alone, owner))
        mine, lonely = store.samples.steps(owner), alone.samples.steps()
        assert [step.metrics for step in mine] == [step.metrics for step in lonely]
        alone.close()


def test_checkpoints_lie_apart_and_no_name_is_a_path(tmp_path: Path, store: Store) -> None:
    owner = "../../etc/passwd"
    give(store, owner, 0, 1)
    config = config_of(tmp_path)
    work_off(make_loop(config, store))
    (step,) = store.samples.steps()
    root = root_of(config.checkpoints_dir, owner)
    assert root.parent == config.checkpoints_dir
    assert Path(step.checkpoint) == (root / "step-000001").resolve()
    assert root_of(config.checkpoints_dir, "") == config.checkpoints_dir


@pytest.mark.parametrize("at", ["training step 3", "committing step 3"])
def test_a_kill_loses_nothing_and_trains_nothing_twice(tmp_path: Path, at: str) -> None:
    config = config_of(tmp_path)
    store = Store.open(config.store_path)
    for numbers in ((0, 1), (2, 3)):
        give(store, "ann", *numbers)
        give(store, "bob", *(10 + number for number in numbers))
    store.close()  # nothing is open while the process is doubled
    assert die_at(config, at) == signal.SIGKILL
    store = Store.open(config.store_path)
    assert len(store.samples.steps()) == 2
    work_off(make_loop(config, store))
    trained = [(step.owner, step.sample_ids) for step in store.samples.steps()]
    assert trained == [
        ("ann", ("t0", "t1")), ("bob", ("t10", "t11")), ("ann", ("t2", "t3")), ("bob", ("t12", "t13"))
    ]  # fmt: skip
    alone = Store.open(tmp_path / "alone.sqlite")
    give(alone, "ann", 0, 1, 2, 3)
    work_off(make_loop(config_of(tmp_path / "alone"), alone))
    assert_same(last_state(store, "ann"), last_state(alone, "ann"))
    for opened in (alone, store):
        opened.close()


def test_the_gate_reads_an_owner_by_its_own_hints_and_answers(store: Store) -> None:
    give(store, "ann", 1, hint="be brief")
    give(store, "bob", 3, hint="be kind")
    for owner in ("ann", "bob"):
        store.samples.claim(1, 60.0, owner)
    assert store.samples.recent_hints(HINTS_TOLD, "ann") == ["be brief"]
    assert store.samples.recent_hints(HINTS_TOLD, "bob") == ["be kind"]
    assert store.samples.recent_hints(HINTS_TOLD) == []


def test_a_pin_stops_its_owner_alone(tmp_path: Path, store: Store) -> None:
    give(store, "ann", 0, 1)
    give(store, "bob", 10, 11)
    store.versions.pin(0, "ann")
    loop = make_loop(config_of(tmp_path), store)
    work_off(loop)
    assert [step.owner for step in store.samples.steps()] == ["bob"]
    assert store.versions.pinned("ann") is not None
    assert store.versions.pinned("bob") is None
    store.versions.unpin("ann")
    work_off(loop)
    assert [step.owner for step in store.samples.steps()] == ["bob", "ann"]


def test_a_rollback_is_its_owners_alone(tmp_path: Path, store: Store) -> None:
    give(store, "ann", 0, 1)
    give(store, "bob", 10, 11)
    loop = make_loop(config_of(tmp_path), store)
    work_off(loop)
    store.versions.roll_back(0, "ann")
    assert store.versions.serving("ann").version == 0
    assert store.versions.serving("bob").version == 2
    assert {v.version: v.state for v in store.versions.all()} == {
        0: VersionState.SERVING,
        1: VersionState.RETIRED,
        2: VersionState.SERVING,
    }
    give(store, "ann", 2, 3)
    work_off(loop)
    assert loop._trainer.weights_version == 3
    with pytest.raises(PermissionError):
        store.versions.roll_back(2, "ann")


def test_a_claim_takes_one_owners_samples(store: Store) -> None:
    give(store, "ann", 0)
    give(store, "bob", 10)
    assert [one.turn_id for one in store.samples.claim(8, 60.0, "ann")] == ["t0"]
    assert [(one.owner, one.count) for one in store.samples.ready_owners(2)] == [("bob", 1)]


def test_a_batch_that_a_dead_trainer_held_is_its_owners_next_one(tmp_path: Path, store: Store) -> None:
    """First of all, as it was, whoever else has waited longer, and whatever has come in since."""
    give(store, "ann", 0, 1)
    give(store, "bob", 10, 11)
    held = [one.turn_id for one in store.samples.claim(2, 60.0, "bob")]
    give(store, "bob", 12, 13)
    assert store.samples.claiming_owners() == ["bob"]
    assert store.samples.take_up_claims(60.0, "ann") == []
    loop = make_loop(config_of(tmp_path), store)
    loop.resume()
    assert loop.cycle()
    assert [(step.owner, list(step.sample_ids)) for step in store.samples.steps()] == [("bob", held)]
    assert store.samples.claiming_owners() == []
    while loop.cycle():
        pass
    assert [step.owner for step in store.samples.steps()] == ["bob", "ann", "bob"]


def test_a_held_batch_of_a_pinned_owner_stops_nobody(tmp_path: Path, store: Store) -> None:
    give(store, "ann", 0, 1)
    give(store, "bob", 10, 11)
    store.samples.claim(2, 60.0, "ann")
    store.versions.pin(0, "ann")
    work_off(make_loop(config_of(tmp_path), store))
    assert [step.owner for step in store.samples.steps()] == ["bob"]


# --- whose turn it is --------------------------------------------------------------------------------------


def waiting(owner: str, count: int, oldest: float, full_at: float | None, last: float | None = None) -> OwnerReady:
    return OwnerReady(owner=owner, count=count, oldest_created_at=oldest, full_at=full_at, last_step_at=last)


def test_due_since() -> None:
    config = RolloutConfig(batch_size=2, max_batch_wait_s=100.0)
    assert due_since(waiting("a", 1, 10.0, None), 50.0, config) is None
    assert due_since(waiting("a", 1, 10.0, None), 111.0, config) == 110.0
    assert due_since(waiting("a", 3, 10.0, 40.0), 50.0, config) == 40.0


@settings(max_examples=60)
@given(st.lists(st.integers(min_value=0, max_value=12), min_size=1, max_size=6), st.data())
def test_nobody_starves(backlogs: list[int], data: st.DataObject) -> None:
    """While an owner waits with a due batch, each other owner has at most one turn, whatever comes meanwhile."""
    config = RolloutConfig(batch_size=1)
    samples = {f"o{index}": [0.0] * count for index, count in enumerate(backlogs)}
    last: dict[str, float] = {}
    passed: dict[str, list[str]] = {owner: [] for owner in samples}
    for moment in range(1, 40):
        now = float(moment)
        arriving = data.draw(st.sampled_from(sorted(samples)))
        samples[arriving] += [now - 0.5] * data.draw(st.integers(min_value=0, max_value=3))
        ready = [
            waiting(owner, len(created), created[0], created[0], last.get(owner))
            for owner, created in samples.items()
            if created
        ]
        chosen = next_owner(ready, now, config)
        assert (chosen is None) == (not ready)
        for owner, created in samples.items():
            if owner == chosen:
                del created[0]
                last[owner], passed[owner] = now, []
            elif created and chosen is not None:
                passed[owner].append(chosen)
                assert len(passed[owner]) == len(set(passed[owner]))
            else:
                passed[owner] = []


@given(st.sets(st.integers(min_value=1, max_value=30)))
def test_own_steps_count_what_is_ones_own(numbers: set[int]) -> None:
    own = OwnSteps.of(sorted(numbers), 30)
    assert own.taken(30) == len(numbers)
    assert own.and_then(31).taken(31) == len(numbers) + 1


def test_one_owners_claim_gives_nothing_of_anothers_back(store: Store) -> None:
    """What a dead trainer held of an owner is that owner's next batch, as it was."""
    give(store, "ann", 0)
    give(store, "bob", 1)
    held = store.samples.claim(1, lease_s=0.01, owner="ann")
    time.sleep(0.05)
    assert len(store.samples.claim(1, 60.0, owner="bob")) == len(held) == 1
    assert store.samples.claiming_owners() == ["ann", "bob"]
