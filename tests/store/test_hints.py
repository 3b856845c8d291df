"""Hint candidates and who read them, as the store keeps them."""

from __future__ import annotations

import dataclasses

from openclaw_rl.judging.hint_candidates import REFUSED
from openclaw_rl.store import Store
from openclaw_rl.types import TurnState
from tests.builders import Conversation, make_judgement
from tests.store.helpers import candidate, step_record, to_sample


def test_candidates_come_back_in_their_order_and_refusals_are_counted(store: Store) -> None:
    Conversation(store).turn("t1")
    judgement = dataclasses.replace(
        make_judgement("t1", -1.0, "The longest one."),
        alternatives=("Shorter.", "更短。"),
        details={REFUSED: {"states_answer": 2, "empty_talk": 1}},
    )
    store.turns.record_judgement(judgement)
    assert store.turns.judgements() == [judgement]
    counters = store.status.counts().counters
    assert (counters["hints_refused_states_answer"], counters["hints_refused_empty_talk"]) == (2, 1)


def test_a_sample_keeps_its_candidates(store: Store) -> None:
    (made,) = to_sample(store, "t1")
    assert made.alternatives == ()
    Conversation(store).turn("t2")
    store.turns.move("t2", TurnState.AWAITING_NEXT_STATE)
    store.turns.move("t2", TurnState.JUDGING)
    several = dataclasses.replace(made, turn_id="t2", hint="Be short.", alternatives=("Brief.",))
    store.samples.add(several)
    claimed = {sample.turn_id: sample for sample in store.samples.claim(9, 60.0)}
    assert claimed["t2"].hints == ("Be short.", "Brief.")
    assert claimed["t1"].alternatives == ()


def test_a_step_says_who_read_its_hints(store: Store) -> None:
    to_sample(store, "t1", "t2")
    store.samples.claim(2, 60.0)
    teacher = {"scored_by": "policy-v3", "chosen": {"t1": {"candidate": 1, "overlaps": [0.25, 0.5]}}}
    store.samples.commit_step(dataclasses.replace(step_record(1, "t1"), teacher=teacher), candidate(1))
    store.samples.commit_step(step_record(2, "t2"), candidate(2))
    assert [step.teacher for step in store.samples.steps()] == [teacher, {}]
