"""The held-out questions: asked greedily, before and after, over the same public API as everything else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from openclaw_rl.evaluation.ledger import Entry, Purpose
from openclaw_rl.evaluation.preferences import Preference
from openclaw_rl.evaluation.questions import Question
from openclaw_rl.evaluation.talker import Ask, Talker


class EvaluationFailed(RuntimeError):
    """Some questions got no answer, so that there is no score."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldOutAnswer:
    """One question, the answer, and what the preference's rules say of it."""

    question: Question
    text: str
    finish_reason: str
    satisfied: bool
    on_topic: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldOutResult:
    """All answers of one model, and the shares of them that are as wished, on topic, and both."""

    model: str
    answers: tuple[HeldOutAnswer, ...]

    @property
    def score(self) -> float:
        """Share that keeps the preference."""
        return self._share(lambda answer: answer.satisfied)

    @property
    def topical(self) -> float:
        """Share that is on topic."""
        return self._share(lambda answer: answer.on_topic)

    @property
    def good_and_topical(self) -> float:
        """Share that is both."""
        return self._share(lambda answer: answer.satisfied and answer.on_topic)

    def _share(self, holds: Callable[[HeldOutAnswer], bool]) -> float:
        return sum(map(holds, self.answers)) / len(self.answers)


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldOutOptions:
    """How the questions are asked: greedily, `parallel` at once."""

    parallel: int = 8
    max_tokens: int = 96


def told_prompt(question: Question, preference: Preference) -> str:
    """The question with the preference stated below it, as somebody would who says it every time."""
    return f"{question.text}\n\n{preference.told}"


async def ask_held_out(
    talker: Talker,
    *,
    model: str,
    preference: Preference,
    questions: Sequence[Question],
    options: HeldOutOptions,
    told: bool = False,
    on_answer: Callable[[int, int], None] = lambda done, total: None,
) -> HeldOutResult:
    """Ask every question once, each in a conversation of its own, leaving no trace in the record.

    Args:
        talker: the client.
        model: `policy`, `base` or a version's name.
        preference: whose rules check the answers.
        questions: what to ask.
        options: how.
        told: state the preference in the prompt.
        on_answer: called with (answered, total) after each answer.

    Raises:
        EvaluationFailed: if a question got no answer.
    """
    gate = asyncio.Semaphore(options.parallel)
    done = 0

    async def ask(question: Question) -> Entry:
        nonlocal done
        async with gate:
            words = told_prompt(question, preference) if told else question.text
            purpose = Purpose.TOLD if told else Purpose.EVALUATION
            entry = await talker.ask(evaluation_ask(model, question, words, options.max_tokens, purpose))
        done += 1
        on_answer(done, len(questions))
        return entry

    entries = await asyncio.gather(*map(ask, questions))
    failed = [entry for entry in entries if not entry.answered]
    if failed:
        raise EvaluationFailed(
            f"{len(failed)} of {len(entries)} held-out questions got no answer from {model}: "
            f"{failed[0].error or 'the stream ended without a finish reason'}"
        )
    return HeldOutResult(
        model=model,
        answers=tuple(
            check_answer(question, entry, preference) for question, entry in zip(questions, entries, strict=True)
        ),
    )


def evaluation_ask(
    model: str, question: Question, words: str, max_tokens: int, purpose: Purpose = Purpose.EVALUATION
) -> Ask:
    """A greedy request that the server is told to keep nothing of."""
    return Ask(
        purpose=purpose,
        model=model,
        messages=({"role": "user", "content": words},),
        question=question.text,
        temperature=0.0,
        max_tokens=max_tokens,
        train=False,
    )


def check_answer(question: Question, entry: Entry, preference: Preference) -> HeldOutAnswer:
    """Apply the preference's rules to an answer."""
    return HeldOutAnswer(
        question=question,
        text=entry.text,
        finish_reason=entry.finish_reason or "",
        satisfied=preference.satisfied(entry.text),
        on_topic=preference.on_topic(question, entry.text),
    )
