"""Whose word counts: a person's before an environment's before a judge's; each is kept beside the others."""

from __future__ import annotations

import time
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.config import Config, TrainingConfig
from openclaw_rl.rollout.loop import run_pass
from openclaw_rl.store import Store
from openclaw_rl.store.feedback import agreement_of
from openclaw_rl.store.verdicts import environment_judgement, human_judgement, verdict_of
from openclaw_rl.types import Judgement, TurnState
from tests.builders import Conversation, make_config, make_judgement, state_of
from tests.rollout.test_feedback import SAMPLED, judge, passes, samples


def rewarded(turn_id: str, score: float, source: str = "tests") -> Judgement:
    return environment_judgement(turn_id, score, source=source, raw=score)


def reward(store: Store, turn_id: str, score: float, source: str = "tests", key: str | None = "k") -> Any:
    return store.feedback.record(rewarded(turn_id, score, source), key_id=key)


@pytest.mark.parametrize("order", list(permutations(["human", "environment", "judge"])))
def test_precedence_does_not_depend_on_who_came_first(order: tuple[str, ...]) -> None:
    said = {
        "human": human_judgement("t1", -1.0, None),
        "environment": rewarded("t1", 0.5),
        "judge": make_judgement("t1", 1.0, hint="Say less."),
    }
    everybody = [said[who] for who in order]
    assert verdict_of(everybody).score == -1.0
    assert verdict_of(everybody).hint == "Say less."
    assert verdict_of([said[who] for who in order if who != "human"]).score == 0.5
    assert verdict_of([said["judge"]]).score == 1.0


def test_the_latest_of_an_environment_counts() -> None:
    assert verdict_of([rewarded("t1", 1.0, "lint"), rewarded("t1", -1.0, "tests")]).score == -1.0


def test_a_reward_judges_the_last_turn_alone(store: Store, talk: Conversation, config: Config) -> None:
    talk.turn("t1")
    passes(store, config)
    assert reward(store, "t1", 0.75).repeated is False
    assert reward(store, "t1", 0.75).repeated is True
    passes(store, config)
    assert judge(store) == []
    assert samples(store)["t1"].reward == 0.75
    assert store.status.counts().counters["feedback_environment"] == 1
    assert len(store.turns.judgements()) == 1


def test_a_reward_beats_the_judge_and_a_person_beats_the_reward(
    store: Store, talk: Conversation, config: Config
) -> None:
    t1, _ = talk.chain("a", "b")
    passes(store, config)
    judge(store, 1.0)
    passes(store, config)
    reward(store, t1, -0.5)
    passes(store, config)
    assert state_of(store, t1) == SAMPLED
    store.feedback.record(human_judgement(t1, 1.0, None), key_id="k")
    passes(store, config)
    reward(store, t1, -1.0)
    passes(store, config)
    assert samples(store)[t1].reward == 1.0
    assert [one.kind for one in store.turns.judgements()] == ["scripted", "environment", "human", "environment"]


def test_a_reward_that_comes_too_late_is_recorded_only(store: Store, talk: Conversation, config: Config) -> None:
    t1, _ = talk.chain("a", "b")
    passes(store, config)
    judge(store, 1.0)
    passes(store, config)
    assert samples(store)[t1].reward == 1.0
    assert reward(store, t1, -1.0).too_late is True
    passes(store, config)
    assert state_of(store, t1) == SAMPLED


def test_the_same_word_twice_is_one_but_a_change_of_mind_is_heard(store: Store, talk: Conversation) -> None:
    talk.turn("t1")
    said = [
        store.feedback.record(human_judgement("t1", score, comment), key_id="k")
        for score, comment in ((1.0, None), (1.0, None), (-1.0, "Too long."), (-1.0, "Too long."), (1.0, None))
    ]
    assert [one is not None and one.repeated for one in said] == [False, True, False, True, False]
    assert reward(store, "t1", 1.0, "a").repeated is False
    assert reward(store, "t1", 1.0, "b").repeated is False
    assert reward(store, "t1", 1.0, "a").repeated is True


def test_which_turn_a_session_reward_is_about(store: Store, talk: Conversation) -> None:
    t1, t2 = talk.chain("a", "b")
    other = Conversation(store, "other")
    other.turn("o1")
    assert store.feedback.turn_in("s", None, key_id="k") == t2
    assert store.feedback.turn_in("s", t1, key_id="k") == t1
    assert store.feedback.turn_in("s", "o1", key_id="k") is None
    assert store.feedback.turn_in("s", None, key_id="somebody else") is None
    assert store.feedback.turn_in("s", None, key_id=None) == t2
    assert store.feedback.turn_in("nowhere", None, key_id="k") is None


# --- eval mode ---------------------------------------------------------------------------------------------


def test_without_training_answers_are_judged_and_no_sample_is_made(
    store: Store, talk: Conversation, tmp_path: Path
) -> None:
    config = make_config(tmp_path, training=TrainingConfig(enabled=False))
    t1, t2, _ = talk.chain("a", "b", "c")
    passes(store, config)
    assert judge(store, 1.0) == [t1, t2]
    passes(store, config)
    assert state_of(store, t1) == (TurnState.EXCLUDED, "not_training")
    assert store.samples.ready().count == 0
    assert len(store.turns.judgements()) == 2
    store.feedback.record(human_judgement(t1, 1.0, None), key_id="k")
    store.feedback.record(human_judgement(t2, -1.0, None), key_id="k")
    passes(store, config)
    agreement = store.feedback.agreement()
    assert (agreement.compared, agreement.agreed, agreement.opposed, agreement.rate) == (2, 1, 1, 0.5)


def test_agreement_by_hand() -> None:
    person = {"a": 1.0, "b": -0.5, "c": 0.0, "d": 1.0, "e": 1.0, "only person": 1.0}
    judges = {"a": 0.2, "b": 1.0, "c": 0.0, "d": None, "e": 0.0, "only judge": 1.0}
    found = agreement_of(person, judges)
    assert (found.compared, found.agreed, found.opposed, found.unscored) == (5, 2, 1, 1)
    assert found.rate == 2 / 5
    assert agreement_of({}, {}).rate is None


def test_signals_and_environments_are_no_judges(store: Store, talk: Conversation, config: Config) -> None:
    talk.turn("t1")
    reward(store, "t1", -1.0)
    store.feedback.record(human_judgement("t1", 1.0, None), key_id="k")
    assert store.feedback.agreement().compared == 0
    run_pass(store, config, time.time())
