"""Judging again: what is not claimed is settled anew, what is trained is recorded only."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.config import Config, SignalWeights
from openclaw_rl.judging.base import JudgeUnavailable
from openclaw_rl.judging.replay import Replayed, replay
from openclaw_rl.rollout.loop import run_pass
from openclaw_rl.store import Store
from openclaw_rl.store.verdicts import human_judgement
from openclaw_rl.testing.scripted_judge import ScriptedJudge
from openclaw_rl.types import TurnState
from tests.builders import Conversation, make_config, make_judgement, state_of
from tests.store.helpers import candidate, step_record

WORSE = {"fine": "-1", "hm": "1", "broken": "error", "down": "unavailable"}


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return make_config(tmp_path)


def judged(store: Store, config: Config, *texts: str, scores: tuple[float, ...] = ()) -> list[str]:
    """Turns whose next states are these texts, judged and settled."""
    ids = Conversation(store).chain("start", *texts)[: len(texts)]
    for _ in range(2):
        run_pass(store, config, time.time())
    for turn, _ in store.turns.claim_for_judging(99, 60):
        score = scores[ids.index(turn.turn_id)] if scores else 1.0
        store.turns.record_judgement(make_judgement(turn.turn_id, score))
    run_pass(store, config, time.time())
    return ids


def replayed(store: Store, *, record: bool = True, **values: Any) -> Replayed:
    return asyncio.run(
        replay(
            ScriptedJudge(WORSE),
            store.replay.judged_since(0.0),
            weights=SignalWeights(**values),
            record=store.replay.record if record else None,
            workers=2,
        )
    )


def test_unclaimed_samples_are_judged_anew_and_excluded_ones_get_a_chance(store: Store, config: Config) -> None:
    liked, unclear = judged(store, config, "fine", "hm", scores=(1.0, 0.0))
    assert state_of(store, liked)[0] is TurnState.SAMPLED
    assert state_of(store, unclear) == (TurnState.EXCLUDED, "no_signal")
    report = replayed(store)
    assert (report.turns, report.changed, report.in_effect, report.recorded_only) == (2, 2, 2, 0)
    assert report.verdicts == {"1>-1": 1, "0>1": 1}
    run_pass(store, config, time.time())
    rewards = {sample.turn_id: sample.reward for sample in store.samples.claim(9, 60)}
    assert rewards == {liked: -1.0, unclear: 1.0}
    assert store.status.counts().counters["judgements_replayed"] == 2


@pytest.mark.parametrize("state", ["claimed", "trained"])
def test_what_is_trained_is_recorded_only(store: Store, config: Config, state: str) -> None:
    (turn,) = judged(store, config, "fine")
    store.samples.claim(1, 60)
    if state == "trained":
        store.samples.commit_step(step_record(1, turn), candidate(1))
    report = replayed(store)
    assert (report.in_effect, report.recorded_only) == (0, 1)
    run_pass(store, config, time.time())
    assert state_of(store, turn) == (TurnState.SAMPLED, None)
    assert store.status.counts().samples_by_state == {state: 1}
    assert [judgement.score for judgement in store.turns.judgements()] == [1.0, -1.0]


def test_a_persons_word_still_counts(store: Store, config: Config) -> None:
    (turn,) = judged(store, config, "fine")
    store.feedback.record(human_judgement(turn, 1.0, None), key_id="k")
    run_pass(store, config, time.time())
    replayed(store)
    run_pass(store, config, time.time())
    (sample,) = store.samples.claim(1, 60)
    assert sample.reward == 1.0


def test_without_recording_nothing_changes(store: Store, config: Config) -> None:
    (turn,) = judged(store, config, "fine")
    report = replayed(store, record=False)
    assert (report.changed, report.in_effect, report.recorded_only) == (1, 0, 0)
    assert state_of(store, turn) == (TurnState.SAMPLED, None)
    assert len(store.turns.judgements()) == 1


def test_failures_leave_what_was_there(store: Store, config: Config) -> None:
    ok, broken = judged(store, config, "fine", "broken")
    report = replayed(store)
    assert report.failures == {"scripted": 1}
    assert (report.turns, report.in_effect) == (2, 1)
    assert [one.score for one in store.turns.judgements() if one.turn_id == broken] == [1.0]
    assert state_of(store, broken) == (TurnState.SAMPLED, None)
    assert ok


def test_a_judge_that_is_down_from_the_start_is_an_error(store: Store, config: Config) -> None:
    judged(store, config, "down")
    with pytest.raises(JudgeUnavailable):
        replayed(store)


def test_only_what_was_served_since_then(store: Store, config: Config) -> None:
    judged(store, config, "fine", "hm")
    assert store.replay.judged_since(time.time() + 1) == []
    assert len(store.replay.judged_since(0.0)) == 2
    assert len(store.replay.judged_since(0.0, limit=1)) == 1


def test_nothing_is_kept_of_a_turn_that_was_deleted_meanwhile(store: Store) -> None:
    assert store.replay.record(make_judgement("gone")) is False
    assert store.turns.judgements() == []
    assert store.status.counts().counters["judgements_of_deleted_turns"] == 1


def test_a_hint_that_may_not_teach_is_refused_here_too(store: Store, config: Config) -> None:
    (turn,) = judged(store, config, "fine hint: Do better.")
    replayed(store)
    latest = store.turns.judgements()[-1]
    assert (latest.turn_id, latest.score, latest.hint) == (turn, -1.0, None)
    assert latest.details["hints_refused"] == {"empty_talk": 1}
