"""What the judge is fitted on shares no sentence, and no six words in a row, with what it is measured on."""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib.resources import files

import pytest

from openclaw_rl.evaluation.preferences import PREFERENCES
from openclaw_rl.evaluation.questions import HELD_OUT_QUESTIONS, TRAINING_QUESTIONS
from openclaw_rl.evaluation.simulated_user import _BRIDGES
from openclaw_rl.judging.calibrate import FOLLOWING, FOLLOWING_ZH
from openclaw_rl.judging.cases import Case, shipped_cases
from openclaw_rl.judging.text import content_text, sentences

RUN = 6
Words = tuple[str, ...]


def words_of(text: str) -> Words:
    return tuple(
        re.findall(r"[a-z0-9']+|[\u3400-\u9fff]|[^\s\w.,;:!?\"()/。，！？：；]", text.lower().replace("’", "'"))
    )


def sentence_set(texts: Iterable[str]) -> set[Words]:
    parts = (part for text in texts for part in (text, *sentences(text), *re.split(r"[:：]", text)))
    return {words for part in parts if (words := words_of(part))}


def runs(texts: Iterable[str]) -> set[Words]:
    every = (words_of(text) for text in texts)
    return {words[i : i + RUN] for words in every for i in range(len(words) - RUN + 1)}


def spoken(cases: Iterable[Case]) -> list[str]:
    return [content_text(m) for case in cases for m in case.next_state if m.get("role") == "user"]


def simulated_users_phrases() -> list[str]:
    phrases = list(_BRIDGES)
    for preference in PREFERENCES.values():
        for corrections in preference.corrections.values():
            phrases += corrections
        phrases += preference.second_corrections + preference.acceptances + preference.objections
        phrases.append(preference.told)
    phrases = [phrase.replace("{question}", "") for phrase in phrases]
    return phrases + [question.text for question in TRAINING_QUESTIONS + HELD_OUT_QUESTIONS]


def prompt_lines() -> list[str]:
    folder = files("openclaw_rl.judging") / "prompts"
    names = [entry.name for entry in folder.iterdir() if entry.name.startswith("verdict_")]
    assert len(names) == 2
    lines = [line for name in names for line in (folder / name).read_text(encoding="utf-8").splitlines()]
    said = [line.partition(": ")[2] for line in lines if line.startswith(("User: ", "Review: "))]
    return [line for line in said if line != "{reaction}"]


FITTED_ON = spoken(shipped_cases("calibration")) + prompt_lines() + list(FOLLOWING + FOLLOWING_ZH)
FITTED_ON += [case.task for case in shipped_cases("calibration")]
MEASURED_ON = {
    "simulated user": simulated_users_phrases(),
    "feedback": spoken(shipped_cases("feedback")) + [case.task for case in shipped_cases("feedback")],
    "held aside": spoken(shipped_cases("held_aside")),
}


@pytest.mark.parametrize("name", MEASURED_ON)
def test_no_sentence_is_shared(name: str) -> None:
    assert sentence_set(FITTED_ON) & sentence_set(MEASURED_ON[name]) == set()


@pytest.mark.parametrize("name", MEASURED_ON)
def test_no_six_words_in_a_row_are_shared(name: str) -> None:
    assert runs(FITTED_ON) & runs(MEASURED_ON[name]) == set()


def test_the_sets_are_as_large_as_they_should_be() -> None:
    assert len(shipped_cases("calibration")) >= 150
    assert len(shipped_cases("held_aside")) >= 60
    assert len(shipped_cases("feedback")) == 50
    assert len(simulated_users_phrases()) > 100


def test_the_checks_can_fail() -> None:
    phrase = PREFERENCES["terse"].acceptances[0]
    assert sentence_set([phrase.upper()]) & sentence_set(MEASURED_ON["simulated user"])
    long = next(phrase for phrase in simulated_users_phrases() if len(words_of(phrase)) > RUN)
    assert runs([f"Well, {long}"]) & runs(MEASURED_ON["simulated user"])
