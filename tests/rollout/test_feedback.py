"""What people say and do about answers: feedback beats the judge, signals weigh what they are told to."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.config import Config
from openclaw_rl.rollout.loop import run_pass
from openclaw_rl.store import Store
from openclaw_rl.store.verdicts import human_judgement, verdict_of
from openclaw_rl.types import ExclusionReason, JudgementOutcome, Sample, SignalKind, TurnState
from tests.builders import Conversation, make_config, make_judgement, state_of, user
from tests.store.helpers import candidate, step_record

SAMPLED = (TurnState.SAMPLED, None)
JUDGING = (TurnState.JUDGING, None)


def passes(store: Store, config: Config, number: int = 2) -> None:
    for _ in range(number):
        run_pass(store, config, time.time())


def rate(store: Store, turn_id: str, score: float, comment: str | None = None, key: str | None = "k") -> Any:
    return store.feedback.record(human_judgement(turn_id, score, comment), key_id=key)


def judge(store: Store, score: float | None = 1.0, **values: Any) -> list[str]:
    """The judge judges everything that it can claim."""
    claimed = [turn.turn_id for turn, _ in store.turns.claim_for_judging(99, 60)]
    for turn_id in claimed:
        store.turns.record_judgement(make_judgement(turn_id, score, **values))
    return claimed


def samples(store: Store) -> dict[str, Sample]:
    return {sample.turn_id: sample for sample in store.samples.claim(99, 60)}


# --- feedback ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["served", "awaiting", "excluded"])
def test_last_turn_is_judged_by_feedback_alone(store: Store, talk: Conversation, config: Config, when: str) -> None:
    talk.turn("t1")
    if when != "served":
        passes(store, config)
    if when == "excluded":
        store.sessions.end("k", "s", "ended_by_client")
        passes(store, config)
        assert state_of(store, "t1") == (TurnState.EXCLUDED, "no_next_state")
    rate(store, "t1", -0.5, "Too long.")
    assert judge(store) == []  # a judge has nothing to read
    passes(store, config)
    assert judge(store) == []
    sample = samples(store)["t1"]
    assert (sample.reward, sample.hint) == (-0.5, "Too long.")


def test_feedback_beats_a_judgement_that_came_first(store: Store, talk: Conversation, config: Config) -> None:
    t1, _ = talk.chain("a", "b")
    passes(store, config)
    assert judge(store, 1.0) == [t1]
    passes(store, config)
    assert state_of(store, t1) == SAMPLED
    assert rate(store, t1, -1.0).too_late is False
    passes(store, config)
    assert judge(store) == []
    assert samples(store)[t1].reward == -1.0
    counters = store.status.counts().counters
    assert (counters["samples_withdrawn"], counters["feedback"]) == (1, 1)


def test_feedback_beats_a_judgement_that_comes_later(store: Store, talk: Conversation, config: Config) -> None:
    t1, _ = talk.chain("a", "b")
    passes(store, config)
    rate(store, t1, -1.0)
    passes(store, config)
    assert state_of(store, t1) == JUDGING  # its next state may hold a hint
    assert judge(store, 1.0, hint="Say less.") == [t1]
    passes(store, config)
    sample = samples(store)[t1]
    assert (sample.reward, sample.hint) == (-1.0, "Say less.")


@pytest.mark.parametrize("state", ["claimed", "trained"])
def test_feedback_that_comes_too_late_is_recorded_only(
    store: Store, talk: Conversation, config: Config, state: str
) -> None:
    t1, _ = talk.chain("a", "b")
    passes(store, config)
    judge(store, 1.0)
    passes(store, config)
    assert samples(store)[t1].reward == 1.0
    if state == "trained":
        store.samples.commit_step(step_record(1, t1), candidate(1))
    assert rate(store, t1, -1.0).too_late is True
    passes(store, config)
    assert state_of(store, t1) == SAMPLED
    assert store.status.counts().samples_by_state == {state: 1}
    assert [one.kind for one in store.turns.judgements()] == ["scripted", "human"]


def test_latest_feedback_counts_and_each_piece_is_taken_once(
    store: Store, talk: Conversation, config: Config
) -> None:
    talk.turn("t1")
    passes(store, config)
    rate(store, "t1", 1.0)
    passes(store, config)
    assert state_of(store, "t1") == SAMPLED
    rate(store, "t1", 0.0)
    passes(store, config, 3)
    assert state_of(store, "t1") == (TurnState.EXCLUDED, "no_signal")
    assert all(moved == 0 for moved in run_pass(store, config, time.time()).values())
    rate(store, "t1", -1.0)
    passes(store, config)
    assert samples(store)["t1"].reward == -1.0


def test_next_state_after_feedback_still_brings_its_hint(store: Store, talk: Conversation, config: Config) -> None:
    talk.turn("t1")
    passes(store, config)
    rate(store, "t1", -1.0)
    passes(store, config)
    assert state_of(store, "t1") == SAMPLED
    talk.turn("t2", [user("No, one sentence.")], parent="t1")
    passes(store, config)
    assert judge(store, -1.0, hint="One sentence.") == ["t1"]
    passes(store, config)
    sample = samples(store)["t1"]
    assert (sample.reward, sample.hint) == (-1.0, "One sentence.")


def test_next_state_of_a_claimed_sample_changes_nothing(store: Store, talk: Conversation, config: Config) -> None:
    talk.turn("t1")
    passes(store, config)
    rate(store, "t1", -1.0)
    passes(store, config)
    assert list(samples(store)) == ["t1"]
    talk.turn("t2", [user("No.")], parent="t1")
    passes(store, config)
    store.turns.set_next_state("t1", "t2", [user("No.")])
    assert state_of(store, "t1") == SAMPLED


def test_what_cannot_be_trained_stays_excluded(store: Store, talk: Conversation, config: Config) -> None:
    turn = talk.turn("t1")
    store.turns.move(turn.turn_id, TurnState.EXCLUDED, reason=ExclusionReason.GREEDY)
    rate(store, "t1", 1.0)
    passes(store, config)
    assert state_of(store, "t1") == (TurnState.EXCLUDED, "greedy")


def test_feedback_belongs_to_the_key_or_to_an_admin(store: Store, talk: Conversation) -> None:
    talk.turn("t1")
    assert rate(store, "t1", 1.0, key="other") is None
    assert rate(store, "t2", 1.0) is None
    assert store.turns.judgements() == []
    assert rate(store, "t1", 1.0, key=None).turn_id == "t1"


@pytest.mark.parametrize(
    ("score", "comment", "judged", "hint"),
    [
        (-1.0, None, "Say less.", "Say less."),
        (-1.0, "Shorter.", "Say less.", "Shorter."),
        (-1.0, "  ", "Say less.", "Say less."),
        (0.0, None, "Say less.", "Say less."),
        (1.0, None, "Say less.", None),
        (1.0, "Great.", None, None),
    ],
)
def test_whose_hint_counts(score: float, comment: str | None, judged: str | None, hint: str | None) -> None:
    human, other = human_judgement("t1", score, comment), make_judgement("t1", 1.0, hint=judged)
    for order in ([human, other], [other, human]):
        assert (verdict_of(order).score, verdict_of(order).hint) == (score, hint)
    assert verdict_of([other]) is other


def test_failed_judge_leaves_the_verdict_to_the_person(store: Store, talk: Conversation, config: Config) -> None:
    t1, _ = talk.chain("a", "b")
    passes(store, config)
    judge(store, outcome=JudgementOutcome.FAILED)
    passes(store, config)
    assert state_of(store, t1) == (TurnState.EXCLUDED, "judge_failed")
    rate(store, t1, 1.0)
    passes(store, config)
    assert samples(store)[t1].reward == 1.0


# --- signals -----------------------------------------------------------------------------------------------


def regenerate(talk: Conversation, turn_id: str) -> None:
    request = talk.turn(f"{turn_id}b", sibling_of=turn_id).request
    with talk.store._database.write() as connection:
        from openclaw_rl.store.lineage import add_signal

        add_signal(connection, SignalKind.REGENERATED, turn_id, request.turn_id, time.time())


def test_signals_weigh_nothing_by_default(store: Store, talk: Conversation, config: Config) -> None:
    talk.turn("t1")
    regenerate(talk, "t1")
    passes(store, config)
    assert state_of(store, "t1") == (TurnState.AWAITING_NEXT_STATE, None)


def test_signal_with_a_weight_brings_a_silent_turn_to_the_judge(
    store: Store, talk: Conversation, tmp_path: Path
) -> None:
    config = make_config(tmp_path, judge={"signals": {"regenerated": -0.5}})
    talk.turn("t1")
    regenerate(talk, "t1")
    passes(store, config)
    ((turn, _),) = store.turns.claim_for_judging(9, 60)
    assert (turn.turn_id, [one.kind for one in turn.signals]) == ("t1", [SignalKind.REGENERATED])
    assert not turn.next_state


def test_user_who_does_not_come_back_has_abandoned_the_answer(
    store: Store, talk: Conversation, config: Config
) -> None:
    talk.turn("t1")
    passes(store, config)
    run_pass(store, config, time.time() + config.rollout.idle_timeout_s + 1)
    assert state_of(store, "t1") == (TurnState.EXCLUDED, "no_next_state")
    assert [one.kind for one in store.lineage.signals("t1")] == [SignalKind.ABANDONED]


def test_session_that_was_ended_is_not_abandoned(store: Store, talk: Conversation, config: Config) -> None:
    talk.turn("t1")
    store.sessions.end("k", "s", "ended_by_client")
    passes(store, config)
    assert state_of(store, "t1") == (TurnState.EXCLUDED, "no_next_state")
    assert store.lineage.signals("t1") == ()


# --- at least one ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at_least_one", [False, True])
def test_at_least_one(store: Store, talk: Conversation, tmp_path: Path, at_least_one: bool) -> None:
    config = make_config(tmp_path, rollout={"at_least_one": at_least_one})
    t1, t2, t3 = talk.chain("a", "b", "c")
    passes(store, config)
    judge(store, 0.0)
    passes(store, config)
    assert samples(store) == {}  # the session goes on
    store.sessions.end("k", "s", "ended_by_client")
    passes(store, config, 3)
    kept = samples(store)
    assert list(kept) == ([t2] if at_least_one else [])
    assert [state_of(store, turn)[1] for turn in (t1, t3)] == ["no_signal", "no_next_state"]
    if at_least_one:
        assert (kept[t2].reward, kept[t2].hint) == (0.0, None)


def test_session_with_a_sample_keeps_no_other(store: Store, talk: Conversation, tmp_path: Path) -> None:
    config = make_config(tmp_path, rollout={"at_least_one": True})
    t1, t2, _ = talk.chain("a", "b", "c")
    passes(store, config)
    claimed = [turn.turn_id for turn, _ in store.turns.claim_for_judging(9, 60)]
    assert claimed == [t1, t2]
    store.turns.record_judgement(make_judgement(t1, 1.0))
    store.turns.record_judgement(make_judgement(t2, 0.0))
    store.sessions.end("k", "s", "ended_by_client")
    passes(store, config, 3)
    assert list(samples(store)) == [t1]


def test_a_comment_that_gives_the_answer_away_is_no_hint(store: Store, talk: Conversation, config: Config) -> None:
    talk.turn("t1")
    rate(store, "t1", -1.0, 'Write: "A poem is a short text whose words are chosen for their sound and sense."')
    passes(store, config)
    sample = samples(store)["t1"]
    assert (sample.reward, sample.hint) == (-1.0, None)
    assert store.status.counts().counters["hints_refused_quotes_answer"] == 1
