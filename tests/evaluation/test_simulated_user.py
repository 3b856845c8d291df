"""What the simulated user asks and how it reacts."""

import random
from collections.abc import Sequence

import pytest

from openclaw_rl.evaluation.preferences import PREFERENCES
from openclaw_rl.evaluation.questions import HELD_OUT_QUESTIONS, TRAINING_QUESTIONS, Question
from openclaw_rl.evaluation.simulated_user import SimulatedUser

BREAD = Question(text="What is bread made of?", subject_words=("flour", "yeast"))
LONG = "Bread is made of flour. It also holds water. Then there is yeast."


def make_user(name: str = "terse", seed: int = 0, session_lengths: Sequence[int] = (1, 2, 3)) -> SimulatedUser:
    return SimulatedUser(PREFERENCES[name], random.Random(seed), session_lengths=session_lengths)


@pytest.mark.parametrize("interactions", [1, 24, 48, len(TRAINING_QUESTIONS)])
def test_a_plan_asks_each_question_once_in_short_sessions(interactions: int) -> None:
    sessions = make_user().plan_sessions(interactions)
    asked = [question for session in sessions for question in session]
    assert len(asked) == len(set(asked)) == interactions
    assert not set(asked) & set(HELD_OUT_QUESTIONS)
    assert all(1 <= len(session) <= 3 for session in sessions)


def test_a_seed_repeats_the_user_and_another_seed_does_not() -> None:
    assert make_user(seed=1).plan_sessions(24) == make_user(seed=1).plan_sessions(24)
    assert make_user(seed=1).plan_sessions(24) != make_user(seed=2).plan_sessions(24)
    assert make_user(seed=1).react(BREAD, LONG, 1) == make_user(seed=1).react(BREAD, LONG, 1)


def test_more_interactions_than_questions_are_refused() -> None:
    with pytest.raises(ValueError, match="questions"):
        make_user().plan_sessions(len(TRAINING_QUESTIONS) + 1)


@pytest.mark.parametrize("lengths", [(), (0, 1)])
def test_session_lengths_are_checked(lengths: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="session_lengths"):
        make_user(session_lengths=lengths)


@pytest.mark.parametrize("attempt", [1, 2])
def test_a_good_answer_is_accepted_in_words(attempt: int) -> None:
    reaction = make_user().react(BREAD, "Bread is made of flour and water.", attempt)
    assert reaction.verdict == 1
    assert not reaction.retry
    assert reaction.words in PREFERENCES["terse"].acceptances


def test_a_long_answer_is_corrected_and_tried_again_once() -> None:
    user = make_user()
    first = user.react(BREAD, LONG, 1)
    assert (first.verdict, first.retry) == (-1, True)
    assert first.words in PREFERENCES["terse"].corrections["too long"]
    second = user.react(BREAD, LONG, 2)
    assert (second.verdict, second.retry) == (-1, False)
    assert second.words in PREFERENCES["terse"].second_corrections


@pytest.mark.parametrize("attempt", [1, 2])
def test_an_answer_that_misses_the_question_is_objected_to(attempt: int) -> None:
    reaction = make_user().react(BREAD, "Bread is a wonderful thing.", attempt)
    assert reaction.verdict == -1
    assert BREAD.text in reaction.words
    assert reaction.retry is (attempt == 1)


def test_a_user_who_minds_form_only_takes_an_answer_that_misses_the_question_and_still_corrects_a_long_one() -> None:
    user = SimulatedUser(PREFERENCES["terse"], random.Random(0), minds_topic=False)
    assert user.react(BREAD, "Bread is a wonderful thing.", 1).verdict == 1
    assert user.react(BREAD, LONG, 1).verdict == -1


def test_a_cold_answer_is_corrected_by_a_user_who_wants_warmth() -> None:
    user = make_user("warm")
    reaction = user.react(BREAD, "Bread is made of flour and water and little else.", 1)
    assert reaction.verdict == -1
    wordings = PREFERENCES["warm"].corrections["cold"]
    assert reaction.words in {words.format(start="Bread is made of flour and") for words in wordings}
    assert user.react(BREAD, "Great question! Bread is made of flour.", 2).verdict == 1


def test_phrases_vary_before_any_comes_again() -> None:
    user = make_user()
    phrases = PREFERENCES["terse"].corrections["too long"]
    words = [user.react(BREAD, LONG, 1).words for _ in phrases]
    assert sorted(words) == sorted(phrases)
    assert user.react(BREAD, LONG, 1).words in phrases


def test_the_reaction_and_the_next_question_make_one_message() -> None:
    user = make_user()
    reaction = user.react(BREAD, "Bread is made of flour and water.", 1)
    message = user.go_on(reaction, TRAINING_QUESTIONS[0])
    assert message.startswith(reaction.words)
    assert message.endswith(TRAINING_QUESTIONS[0].text)


def test_an_unknown_attempt_is_refused() -> None:
    with pytest.raises(ValueError, match="attempt"):
        make_user().react(BREAD, LONG, 3)


def test_the_user_thanks_for_a_second_try_and_leaves_a_refused_one_in_silence() -> None:
    user = make_user()
    good, bad = "Bread is made of flour and water.", LONG
    assert all(user.parts_in_words(user.react(BREAD, good, 2), 2) for _ in range(20))
    assert not any(user.parts_in_words(user.react(BREAD, bad, 2), 2) for _ in range(20))
    assert user.parts_in_words(user.react(BREAD, bad, 1), 1)
    assert {user.parts_in_words(user.react(BREAD, good, 1), 1) for _ in range(40)} == {True, False}
