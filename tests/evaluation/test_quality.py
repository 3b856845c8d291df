"""The log-probability of answers under the told base, with an engine whose numbers are known."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from openclaw_rl.evaluation.held_out import HeldOutAnswer
from openclaw_rl.evaluation.preferences import PREFERENCES
from openclaw_rl.evaluation.quality import answer_tokens, logprob_under_told_base, nats_below
from openclaw_rl.evaluation.questions import Question
from openclaw_rl.serving.engines.protocol import (
    ChatEvent,
    ChatRequest,
    EngineCapabilities,
    EngineHealth,
    ScoreRequest,
    ScoreResult,
)
from openclaw_rl.types import Message, PolicyVersion

END, NEWLINE = 1, 2
TOLD = PREFERENCES["terse"]


class CharacterEngine:
    """A token is a character's code; its log-probability is minus its code over 100. Only rendering and scoring."""

    def __init__(self) -> None:
        self.scored: list[ScoreRequest] = []

    @property
    def capabilities(self) -> EngineCapabilities:
        return EngineCapabilities(token_ids=True, logprobs=True, lora_versions=False, score=True, tools=False)

    def chat(self, request: ChatRequest) -> AsyncIterator[ChatEvent]:
        raise NotImplementedError

    async def render(
        self, messages: tuple[Message, ...], tools: tuple[object, ...], *, generation_prompt: bool = True
    ) -> tuple[int, ...]:
        ids: list[int] = []
        for message in messages:
            ids += [*map(ord, f"<{message['role']}>"), *map(ord, message["content"]), END, NEWLINE]
        return (*ids, *map(ord, "<assistant>")) if generation_prompt else tuple(ids)

    async def score(self, request: ScoreRequest) -> ScoreResult:
        self.scored.append(request)
        return ScoreResult(logprobs=tuple(-token / 100 for token in request.ids[request.start :]))

    async def load_version(self, version: PolicyVersion) -> None:
        raise NotImplementedError

    async def unload_version(self, version: int) -> None:
        raise NotImplementedError

    async def health(self) -> EngineHealth:
        raise NotImplementedError

    async def close(self) -> None:
        return None


def answer(text: str, finish: str) -> HeldOutAnswer:
    question = Question(text="What is a tent?", subject_words=("camp",))
    return HeldOutAnswer(question=question, text=text, finish_reason=finish, satisfied=True, on_topic=True)


def test_the_mean_is_taken_over_tokens_then_over_answers() -> None:
    engine = CharacterEngine()
    answers = [answer(" AB ", "stop"), answer("C", "length")]
    value = asyncio.run(logprob_under_told_base(engine, answers, TOLD, parallel=1))
    first = -(65 + 66 + END) / 100 / 3  # an answer that ended by itself, its end-of-turn token with it
    second = -67 / 100  # one that was cut off
    assert value == pytest.approx((first + second) / 2)
    assert all(request.version == 0 for request in engine.scored)
    prompt = "".join(map(chr, engine.scored[0].ids[: engine.scored[0].start]))
    assert prompt == f"<user>What is a tent?\n\n{TOLD.told}{chr(END)}{chr(NEWLINE)}<assistant>"


def test_the_answer_starts_where_it_leaves_the_prompt() -> None:
    assert answer_tokens((1, 2, 3), (1, 2, 3, 8, 9, 7, 6), closing=2, ended=True) == ((1, 2, 3, 8, 9, 7), 3)
    assert answer_tokens((1, 2, 3), (1, 2, 3, 8, 9, 7, 6), closing=2, ended=False) == ((1, 2, 3, 8, 9), 3)
    assert answer_tokens((1, 2, 3), (1, 2, 5, 8), closing=0, ended=True) == ((1, 2, 5, 8), 2)  # a merge at the border
    assert answer_tokens((1, 2), (1, 2, 7, 6), closing=2, ended=True) == ((1, 2, 7), 2)  # an empty answer
    with pytest.raises(ValueError, match="no answer tokens"):
        answer_tokens((1, 2), (1, 2, 7, 6), closing=2, ended=False)


def test_only_being_lower_counts() -> None:
    assert nats_below(-0.7, -1.0) == pytest.approx(0.3)
    assert nats_below(-0.7, -0.5) == 0.0


def test_no_answers_are_an_error() -> None:
    with pytest.raises(ValueError, match="no answers"):
        asyncio.run(logprob_under_told_base(CharacterEngine(), [], TOLD))
