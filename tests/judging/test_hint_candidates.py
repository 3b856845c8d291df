from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw_rl.evaluation.preferences import PREFERENCES
from openclaw_rl.evaluation.questions import TRAINING_QUESTIONS
from openclaw_rl.judging.hint_candidates import MAX_CHARS, REFUSED, malformed, screened, shortened, sift
from openclaw_rl.judging.hints import corrective_part
from openclaw_rl.judging.leaks import leak
from openclaw_rl.types import HUMAN, Judgement
from tests.builders import make_judgement, make_request, make_turn, user

TASK = "Explain tides."


@pytest.mark.parametrize(
    ("hint", "reason"),
    [
        ("Name the sea as well.", None),
        ("Shorter!", None),
        ("Keep it to one sentence. Use no list. Begin with the moon.", None),
        ("用中文。", None),
        ("要押韵。", None),
        ("再短一点。", None),
        ("Ответь короче.", None),
        ("👎", "no_words"),
        ("...", "no_words"),
        ("One. Two is here. Three is here. Four is here.", "too_long"),
        ("very " * 200, "too_long"),
        (r"Answer with \boxed{1} always.", "markers"),
        ("Use [HINT_START] here.", "markers"),
        ("Better.", "empty_talk"),
        ("Try harder and give a better answer.", "empty_talk"),
        ("Please read the user's question again.", "empty_talk"),
        ("Be accurate and helpful.", "empty_talk"),
        ("请认真回答用户的问题。", "empty_talk"),
        ("请重新回答。", "empty_talk"),
        ("Explain the tides!", "repeats_task"),
        ("Please answer properly: explain tides.", "repeats_task"),
    ],
)
def test_the_form_of_a_candidate(hint: str, reason: str | None) -> None:
    assert malformed(hint, task=TASK) == reason


def test_repeating_a_chinese_task() -> None:
    assert malformed("请解释潮汐。", task="请给我解释一下潮汐") == "repeats_task"
    assert malformed("请用一句话解释潮汐。", task="请给我解释一下潮汐") is None


def test_sifting_keeps_the_longest_first_and_counts_what_it_refuses() -> None:
    found = sift(["b", "long", "B!", "no", "no too"], lambda hint: "odd" if hint.startswith("no") else None)
    assert found.accepted == ("long", "B!", "b")
    assert found.refused == {"odd": 2}
    assert sift(["Be short.", "be short"], lambda hint: None).accepted == ("Be short.",)


def judged(*hints: str, score: float = -1.0, kind: str = "llm") -> Judgement:
    judgement = make_judgement(score=score)
    return dataclasses.replace(judgement, kind=kind, hint=hints[0] if hints else None, alternatives=hints[1:])


TURN = make_turn(
    request=make_request(messages=(user("What is the capital of Australia?"),)),
    answer={"role": "assistant", "content": "It is Sydney."},
)


def test_screening_keeps_what_may_teach_and_says_what_it_refused() -> None:
    found = screened(judged("It is Canberra.", "Be brief.", "Name the seat of government.", "Do better."), TURN)
    assert found.hints == ("Name the seat of government.", "Be brief.")
    assert found.details[REFUSED] == {"states_answer": 1, "empty_talk": 1}
    assert screened(found, TURN) == found  # nothing more to refuse


def test_screening_that_refuses_everything_leaves_the_score() -> None:
    found = screened(judged("It is Canberra."), TURN)
    assert (found.score, found.hint, found.hints) == (-1.0, None, ())
    without = judged()
    assert screened(without, TURN) is without


def test_what_was_refused_before_stays_counted() -> None:
    before = dataclasses.replace(judged("It is Canberra."), details={"by": "votes", REFUSED: {"too_long": 2}})
    assert screened(before, TURN).details == {"by": "votes", REFUSED: {"too_long": 2, "states_answer": 1}}


def test_an_accepted_response_is_the_answer() -> None:
    hint = "It is Sydney that to name first."
    turn = make_turn(answer={"role": "assistant", "content": "It is Sydney."})
    assert screened(judged(hint, score=-1.0), turn).hint == hint
    assert screened(judged(hint, score=1.0), turn).hint is None


def test_a_persons_long_comment_is_cut_to_what_a_hint_may_be() -> None:
    comment = "Use grams. Name the oven. Add the time. Thanks for the rest. It was fun."
    assert screened(judged(comment, kind=HUMAN), make_turn()).hint == "Use grams. Name the oven. Add the time."
    assert screened(judged(comment), make_turn()).hint is None
    assert len(shortened("a" * 2 * MAX_CHARS)) == MAX_CHARS


@pytest.mark.parametrize("name", sorted(PREFERENCES))
def test_the_demos_corrections_may_teach(name: str) -> None:
    """What the demo's users say gives nothing away, whatever the question."""
    texts = [text for group in PREFERENCES[name].corrections.values() for text in group]
    found = 0
    for number, question in enumerate(TRAINING_QUESTIONS):
        answer = f"{question.text.rstrip('?')} is a thing of this world that many people know something about."
        words = texts[number % len(texts)].format(start=" ".join(answer.split()[:6]))
        hint = corrective_part([user(words)], task=question.text)
        if hint is not None:
            found += 1
            assert malformed(hint, task=question.text) is None, hint
            assert leak(hint, task=question.text, response=answer) is None, hint
    assert found > 0.9 * len(TRAINING_QUESTIONS)


@given(st.text(max_size=80), st.text(max_size=80), st.text(max_size=80))
def test_any_text_is_judged(hint: str, task: str, response: str) -> None:
    assert malformed(hint, task=task) is None or isinstance(malformed(hint, task=task), str)
    assert leak(hint, task=task, response=response) in {None, "states_answer", "quotes_answer", "copies_response"}
