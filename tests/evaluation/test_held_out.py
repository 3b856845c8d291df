"""The held-out questions: how they are asked and scored."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from openclaw_rl.evaluation.held_out import EvaluationFailed, HeldOutOptions, HeldOutResult, ask_held_out
from openclaw_rl.evaluation.ledger import Ledger
from openclaw_rl.evaluation.preferences import PREFERENCES
from openclaw_rl.evaluation.questions import Question
from openclaw_rl.evaluation.talker import talker
from tests.evaluation.fake_api import REFUSE, FakeApi, serving

TERSE = PREFERENCES["terse"]
QUESTIONS = (
    Question(text="What is a flute?", subject_words=("music", "wind")),
    Question(text="What is a cloud?", subject_words=("water", "vapor")),
    Question(text="What is a bridge?", subject_words=("road", "river")),
    Question(text="What is a tent?", subject_words=("camp", "shelter")),
)
ANSWERS = {
    "What is a flute?": "It makes music when you blow.",  # as wished and on topic
    "What is a cloud?": "I like the summer very much.",  # as wished only
    "What is a bridge?": "It crosses a river.\nIt carries a road.",  # on topic only
    "What is a tent?": "Well.\nNo idea.",  # neither
}


def ask(answer: Callable[[dict[str, Any]], str], *, told: bool = False) -> tuple[HeldOutResult, FakeApi, list[Any]]:
    progress: list[tuple[int, int]] = []

    async def go() -> tuple[HeldOutResult, FakeApi, list[Any]]:
        ledger = Ledger()
        async with (
            serving(FakeApi(answer, delay_s=0.005)) as api,
            talker(api.url, ledger=ledger, timeout_s=10.0) as client,
        ):
            result = await ask_held_out(
                client,
                model="policy",
                preference=TERSE,
                questions=QUESTIONS,
                options=HeldOutOptions(parallel=3, max_tokens=20),
                told=told,
                on_answer=lambda done, total: progress.append((done, total)),
            )
            return result, api, progress

    return asyncio.run(go())


def test_scores_by_hand() -> None:
    result, _, progress = ask(lambda body: ANSWERS[body["messages"][0]["content"]])
    assert result.score == 0.5
    assert result.topical == 0.5
    assert result.good_and_topical == 0.25
    assert [answer.text for answer in result.answers] == list(ANSWERS.values())
    assert progress == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_the_questions_are_asked_greedily_and_leave_no_trace() -> None:
    _, api, _ = ask(lambda body: "It is so.")
    assert api.most_open == 3
    for seen in api.seen:
        assert seen.body["temperature"] == 0
        assert seen.body["max_tokens"] == 20
        assert len(seen.body["messages"]) == 1
        assert seen.headers["x-no-train"] == "1"
        assert "x-session-id" not in seen.headers


def test_told_means_that_the_preference_stands_in_the_prompt() -> None:
    _, api, _ = ask(lambda body: "It is so.", told=True)
    prompts = {seen.body["messages"][0]["content"] for seen in api.seen}
    assert prompts == {f"{question.text}\n\n{TERSE.told}" for question in QUESTIONS}


def test_a_missing_answer_is_no_score() -> None:
    with pytest.raises(EvaluationFailed, match=r"1 of 4 .* policy"):
        ask(lambda body: REFUSE if "tent" in body["messages"][0]["content"] else "It is so.")
