from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw_rl.judging.base import JudgeMisconfigured, JudgeUnavailable
from openclaw_rl.judging.prompt_files import load_completion_prompt, load_prompt
from openclaw_rl.judging.verdict_logits import VerdictLogitsScorer, differing, load_head, log_odds
from openclaw_rl.serving.engines.protocol import EngineUnavailable, ScoreRequest, ScoreResult
from openclaw_rl.types import Message


class WordEngine:
    """One token a word; behind a reaction that says nice, the good words are the likelier ones."""

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.asked: list[ScoreRequest] = []
        self.down = False

    async def render(
        self, messages: tuple[Message, ...], tools: tuple[Message, ...], *, generation_prompt: bool = True
    ) -> tuple[int, ...]:
        text = "".join(f"<{message['content']}>" for message in messages)
        return tuple(self.token(piece) for piece in re.findall(r" ?\w+|.", text, re.DOTALL))

    def token(self, piece: str) -> int:
        if piece not in self.pieces:
            self.pieces.append(piece)
        return self.pieces.index(piece)

    def text(self, ids: Sequence[int]) -> str:
        return "".join(self.pieces[token] for token in ids)

    async def score(self, request: ScoreRequest) -> ScoreResult:
        if self.down:
            raise EngineUnavailable("loading")
        self.asked.append(request)
        reaction = self.text(request.ids[: request.start]).rsplit("\n\n", 1)[-1]
        word = self.text(request.ids[request.start :])
        good = word in {" happy", " positive"}
        weight = 2.0 if "nice" in reaction else -2.0 if "awful" in reaction else 0.5
        total = weight if good else -weight
        return ScoreResult(logprobs=(total - 5.0,))

    async def close(self) -> None: ...


def test_log_odds_by_hand() -> None:
    engine = WordEngine()
    prompt = load_completion_prompt("verdict_happy")
    assert asyncio.run(log_odds(engine, prompt, "nice")) == pytest.approx(4.0)
    assert asyncio.run(log_odds(engine, prompt, "awful")) == pytest.approx(-4.0)
    assert [engine.text(request.ids[request.start :]) for request in engine.asked[:2]] == [" happy", " unhappy"]
    assert {request.version for request in engine.asked} == {0}


def test_odds_are_relative_to_content_free_input() -> None:
    scorer = VerdictLogitsScorer(WordEngine(), model="smollm2")
    assert asyncio.run(scorer.odds("nice")) == pytest.approx([3.0, 3.0])
    assert asyncio.run(scorer.odds("plain")) == pytest.approx([0.0, 0.0])


def test_verdicts_follow_the_odds() -> None:
    scorer = VerdictLogitsScorer(WordEngine(), model="smollm2")

    async def score(reaction: str) -> int:
        return (await scorer.verdict(task="Sing.", output="La.", reaction=reaction)).score

    assert asyncio.run(score("That was nice of you.")) == 1
    assert asyncio.run(score("That was awful of you.")) == -1


def test_another_model_is_judged_by_content_free_odds(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        scorer = VerdictLogitsScorer(WordEngine(), model="some/other")
    assert "no verdict head" in caplog.text
    verdict = asyncio.run(scorer.verdict(task="t", output="o", reaction="plain"))
    assert (verdict.score, verdict.details["by"]) == (0, "content_free_odds")
    assert asyncio.run(scorer.verdict(task="t", output="o", reaction="nice")).score == 1
    assert "verdict_happy@" in scorer.version


def test_a_head_for_other_prompts_is_refused() -> None:
    head = load_head()
    stale = replace(head, against={**head.against, "prompts": "verdict_happy@000000000000"})
    with pytest.raises(JudgeMisconfigured, match="prompts"):
        VerdictLogitsScorer(WordEngine(), model="smollm2", head=stale)


def test_an_engine_that_is_away_is_no_verdict() -> None:
    engine = WordEngine()
    engine.down = True
    scorer = VerdictLogitsScorer(engine, model="smollm2")
    with pytest.raises(JudgeUnavailable):
        asyncio.run(scorer.verdict(task="t", output="o", reaction="nice"))
    engine.down = False
    assert asyncio.run(scorer.verdict(task="t", output="o", reaction="nice")).score == 1


@given(
    st.lists(st.integers(0, 3)), st.lists(st.integers(0, 3)), st.lists(st.integers(0, 3)), st.lists(st.integers(0, 3))
)
def test_differing_finds_what_differs(before: list[int], a: list[int], b: list[int], after: list[int]) -> None:
    one, two = before + a + after, before + b + after
    if one == two:
        with pytest.raises(ValueError, match="same tokens"):
            differing(one, two)
        return
    start, end_one, end_two = differing(one, two)
    assert one[:start] == two[:start]
    assert one[end_one:] == two[end_two:]
    assert one[start:end_one] != two[start:end_two]


def test_braces_in_what_is_filled_in_are_not_places() -> None:
    prompt = load_prompt("llm_judge")
    values = dict.fromkeys(("task", "conversation", "tools", "output", "next_state"), "{conversation} {x}")
    assert "{conversation} {x}" in prompt.messages(values)[-1]["content"]
    completion = load_completion_prompt("verdict_happy")
    assert completion.messages(" happy", {"reaction": "{reaction}"})[-1]["content"].endswith(
        "User: {reaction}\nThe user was happy"
    )
