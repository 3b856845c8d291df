"""The rules by which a preference is checked, and the words a user has for it."""

import pytest

from openclaw_rl.evaluation.preferences import (
    MARKUP,
    PREFERENCES,
    TOO_LONG,
    TOO_SHORT,
    UNFINISHED,
    Preference,
    count_sentences,
    is_on_topic,
    is_terse,
    is_warm,
    words_of,
)
from openclaw_rl.evaluation.questions import HELD_OUT_QUESTIONS, TRAINING_QUESTIONS, Question

BREAD = Question(text="What is bread made of?", subject_words=("flour", "yeast"))


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("", 0),
        ("Bread is made of flour.", 1),
        ("Bread is made of flour. Water is added.", 2),
        ("It rises at 3.5 degrees.", 1),
        ("It costs $1,200.50 a year.", 1),
        ("Dr. Smith bakes bread.", 1),
        ("Cereals, e.g. wheat and rye, are used.", 1),
        ("The U.S. Army eats bread.", 1),
        ("It was written by J. R. Tolkien.", 1),
        ("Well... it is made of flour.", 1),
        ("Is it bread? Yes!", 2),
        ('He said "bread." Then he left.', 2),
        ("A sentence. And a rest without an end", 2),
        ("Really?! It is.", 2),
        ("It is what I am and so am I. Bread is good.", 2),
    ],
)
def test_sentences_are_counted(text: str, sentences: int) -> None:
    assert count_sentences(text) == sentences


@pytest.mark.parametrize(
    "answer",
    [
        "Bread is made of flour, water and yeast.",
        "  Bread is made of flour, water and yeast.  ",
        "Bread is flour!",
        "About 3.5 percent of sea water is salt.",
        "Dr. Watson says it's flour.",
        " ".join(["word"] * 20) + ".",
        "Tides rise - and fall - with the moon.",
    ],
)
def test_terse_answers_are_accepted(answer: str) -> None:
    assert is_terse(answer)


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        ("", TOO_SHORT),
        ("Flour, mostly.", TOO_SHORT),
        (" ".join(["word"] * 21) + ".", TOO_LONG),
        ("Bread is made of flour. Water is added.", TOO_LONG),
        ("Bread is made of flour.\nWater is added.", TOO_LONG),
        ("Bread is made of flour,\nwater and yeast.", TOO_LONG),
        ("- Bread is made of flour.", MARKUP),
        ("1. Bread is made of flour.", MARKUP),
        ("# Bread is made of flour.", MARKUP),
        ("Bread is made of **flour** and water.", MARKUP),
        ("Bread is made of flour and", UNFINISHED),
        ("Bread is made of these things:", UNFINISHED),
    ],
)
def test_answers_that_are_not_terse_are_refused_with_their_fault(answer: str, fault: str) -> None:
    assert not is_terse(answer)
    assert PREFERENCES["terse"].fault(answer) == fault


@pytest.mark.parametrize(
    "answer",
    [
        "Great question! Bread is made of flour.",
        "Bread is made of flour and water. I hope this helps!",
        "I'm glad you asked. Bread is made of flour.",
        "Great question! Bread is made of flour and",
        "Bread is made of flour. Have a lovely day!",
        "Bread is made of flour. Let me know if you want to hear more.",
    ],
)
def test_warm_answers_are_accepted(answer: str) -> None:
    assert is_warm(answer)


@pytest.mark.parametrize(
    "answer",
    [
        "Bread is made of flour.",
        "Bread is made of flour. It was a great question for bakers in the past. It rises.",
        "Great question!",
        "Hope is the thing with feathers.",
    ],
)
def test_cold_answers_are_refused(answer: str) -> None:
    assert not is_warm(answer)


@pytest.mark.parametrize(
    ("answer", "on_topic"),
    [
        ("Bread is made of flour.", True),
        ("FLOURS and water.", True),
        ("What is bread made of? Flour.", True),
        ("What is bread made of?", False),
        ("Bread is made of bread.", False),
        ("It is made of bread and dreams.", False),
        ("The sunflower is yellow.", False),
        ("", False),
    ],
)
def test_on_topic_needs_a_subject_word_at_the_start_of_a_word(answer: str, on_topic: bool) -> None:
    assert is_on_topic(BREAD, answer) is on_topic


def test_an_echo_is_off_topic_even_where_the_question_holds_a_subject_word() -> None:
    question = Question(text="Why does the moon pull the water?", subject_words=("moon", "gravity"))
    assert not is_on_topic(question, "Why does the moon pull the water?")
    assert not is_on_topic(question, "The moon does pull the water.")
    assert is_on_topic(question, "The moon pulls by gravity.")


@pytest.mark.parametrize("questions", [TRAINING_QUESTIONS, HELD_OUT_QUESTIONS])
def test_no_question_holds_its_own_subject_words(questions: tuple[Question, ...]) -> None:
    for question in questions:
        assert not is_on_topic(question, question.text)
        asked = [word.lower() for word in words_of(question.text)]
        for start in question.subject_words:
            assert not any(word.startswith(start) for word in asked), question


def test_question_sets_are_large_and_disjoint() -> None:
    training = {question.text.casefold() for question in TRAINING_QUESTIONS}
    held_out = {question.text.casefold() for question in HELD_OUT_QUESTIONS}
    assert len(training) == len(TRAINING_QUESTIONS) >= 120
    assert len(held_out) == len(HELD_OUT_QUESTIONS) >= 40
    assert not training & held_out


@pytest.mark.parametrize("preference", PREFERENCES.values(), ids=PREFERENCES.keys())
def test_every_preference_has_many_different_words(preference: Preference) -> None:
    corrections = [phrase for phrases in preference.corrections.values() for phrase in phrases]
    assert len(set(corrections)) == len(corrections) >= 8
    assert len(set(preference.acceptances)) >= 8
    assert len(set(preference.objections)) >= 8
    assert len(set(preference.second_corrections)) >= 4
    assert all("{question}" in phrase for phrase in preference.objections)


def test_every_fault_of_a_terse_answer_has_its_corrections() -> None:
    assert set(PREFERENCES["terse"].corrections) == {TOO_LONG, MARKUP, UNFINISHED, TOO_SHORT}
    assert len(PREFERENCES["terse"].corrections[TOO_LONG]) >= 12
