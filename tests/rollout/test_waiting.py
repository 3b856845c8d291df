"""What waits for a step is counted for whom it is: one policy's samples, or each owner's for themselves."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from openclaw_rl.config import Config, PoliciesConfig, RolloutConfig
from openclaw_rl.rollout.progress import progress_of
from openclaw_rl.rollout.samples import build_sample
from openclaw_rl.rollout.waiting import held_owners, waiting_samples
from openclaw_rl.store import Store
from openclaw_rl.supervision.process import LoopReporter
from openclaw_rl.types import LoopName, Method, Sample, TurnState
from tests.builders import Conversation, make_judgement
from tests.store.helpers import candidate, step_record

OWNERS = ("ann", "bob", "cora", "dan")


def give(store: Store, owner: str, count: int) -> None:
    """Ready samples of an owner, "" being nobody in particular."""
    talk = Conversation(store, f"session-{owner}")
    for number in range(count):
        turn = talk.turn(f"{owner}-{number}", owner=owner)
        store.turns.move(turn.turn_id, TurnState.AWAITING_NEXT_STATE)
        store.turns.set_next_state(turn.turn_id, "next", [{"role": "user", "content": "no"}])
        judgement = make_judgement(turn.turn_id)
        store.turns.record_judgement(judgement)
        sample = build_sample(turn, judgement, Method.COMBINE, retry=None, now=time.time())
        assert isinstance(sample, Sample)
        store.samples.add(sample)


@pytest.fixture
def owned(config: Config) -> Config:
    return config.model_copy(
        update={"policies": PoliciesConfig(per="user"), "rollout": RolloutConfig(batch_size=8, max_batch_wait_s=300)}
    )


def test_samples_of_several_owners_are_not_one_batch(store: Store, owned: Config) -> None:
    for owner in OWNERS:
        give(store, owner, 2)
    now = time.time()
    waiting = waiting_samples(store, owned, now)
    assert (waiting.count, waiting.due) == (8, False)
    assert waiting.why == "0 of 4 owners with samples have a batch that is due"
    progress = progress_of(store.status.counts(), waiting)
    assert progress.waiting_for() == f"requests from clients ({waiting.why})"
    assert progress.work is None  # nothing stands: nobody warns
    give(store, "eve", 8)
    assert waiting_samples(store, owned, now + 1).why == "1 of 5 owners with samples have a batch that is due"
    late = waiting_samples(store, owned, now + 400.0)
    assert late.due
    assert late.why == "5 of 5 owners with samples have a batch that is due"


def test_a_pinned_owners_batch_is_not_due_and_nobodys_samples_are_not_counted(store: Store, owned: Config) -> None:
    give(store, "ann", 8)
    give(store, "", 8)  # of before, for the shared policy
    store.versions.pin(0, "ann")
    waiting = waiting_samples(store, owned, time.time())
    assert (waiting.count, waiting.due) == (8, False)
    assert waiting.why == "0 of 1 owners with samples have a batch that is due"


def test_a_batch_of_whom_the_trainer_passes_over_is_not_due(store: Store, owned: Config) -> None:
    for owner in ("ann", "bob"):
        give(store, owner, 8)

    def due(after_s: float = 0.0) -> str:
        return waiting_samples(store, owned, time.time() + after_s).why.partition(" owners")[0]

    assert due() == "2 of 2"
    store.samples.commit_step(replace(step_record(1), owner="ann"), replace(candidate(1), owner="ann"))
    assert due() == "1 of 2"
    LoopReporter(store, LoopName.TRAINING).waiting("a file", put_off=["bob"])
    assert due() == "0 of 2"
    assert held_owners(store, time.time())["bob"] == "what failed for bob is tried again"
    assert due(after_s=60.0) == "1 of 2"  # the trainer is gone
    store.versions.serve(1)
    LoopReporter(store, LoopName.TRAINING).working("training step 2")
    assert due() == "2 of 2"


def test_with_one_policy_owners_leftovers_are_no_batch(store: Store, config: Config) -> None:
    give(store, "ann", 8)
    give(store, "", 1)
    waiting = waiting_samples(store, config, time.time())
    assert (waiting.count, waiting.due) == (1, False)
    assert waiting.why.startswith("1 of 8 samples")
