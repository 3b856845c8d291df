"""Turns brought to a given place in their life, by the public methods only."""

from __future__ import annotations

import time

from openclaw_rl.rollout.samples import build_sample
from openclaw_rl.store import Store
from openclaw_rl.types import (
    Method,
    PolicyVersion,
    Sample,
    StepRecord,
    TurnState,
    VersionState,
)
from tests.builders import Conversation, make_judgement, user


def to_judging(store: Store, *turn_ids: str) -> None:
    """Served turns with a next state, waiting for the judge."""
    talk = Conversation(store)
    for turn_id in turn_ids:
        talk.turn(turn_id)
        store.turns.move(turn_id, TurnState.AWAITING_NEXT_STATE)
        store.turns.set_next_state(turn_id, f"{turn_id}-next", [user("No.")])


def to_sample(store: Store, *turn_ids: str) -> list[Sample]:
    """Turns that became ready samples, the first the oldest."""
    to_judging(store, *turn_ids)
    made = []
    for number, turn_id in enumerate(turn_ids):
        turn = store.turns.get(turn_id)
        assert turn is not None
        sample = build_sample(turn, make_judgement(turn_id), Method.COMBINE, now=1000.0 + number)
        assert isinstance(sample, Sample)
        store.samples.add(sample)
        made.append(sample)
    return made


def step_record(step: int, *turn_ids: str) -> StepRecord:
    """A committed step that trained these."""
    return StepRecord(
        step=step,
        version=step,
        sample_ids=turn_ids,
        metrics={"loss": 0.5},
        checkpoint=f"checkpoints/step-{step:06d}",
        seconds=1.5,
        created_at=time.time(),
    )


def candidate(version: int) -> PolicyVersion:
    """A version that waits to be served."""
    path = f"checkpoints/step-{version:06d}/adapter"
    return PolicyVersion(
        version=version, state=VersionState.CANDIDATE, path=path, step=version, created_at=time.time()
    )
