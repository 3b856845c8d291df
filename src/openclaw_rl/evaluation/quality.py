"""How much language the policy lost: its answers under the base that is told the preference.

A policy that learns a preference by growing empty or odd gives answers that the base, told the preference, would
hardly have given. The measure is the mean over answers of the log-probability per token (nats) under that told
base, compared with the told base's own answers; only being lower counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from openclaw_rl.evaluation.held_out import HeldOutAnswer, told_prompt
from openclaw_rl.evaluation.preferences import Preference
from openclaw_rl.serving.engines.protocol import Engine, ScoreRequest
from openclaw_rl.types import BASE_VERSION


async def logprob_under_told_base(
    engine: Engine,
    answers: Sequence[HeldOutAnswer],
    preference: Preference,
    *,
    parallel: int = 2,
    on_answer: Callable[[int, int], None] = lambda done, total: None,
) -> float:
    """Mean over `answers` of their log-probability per token (nats) under the base that is told the preference.

    An answer that ended by itself is scored with its end-of-turn token, one that was cut off without it.

    Raises:
        ValueError: if there is no answer to score.
        EngineError: if the engine cannot render or score.
    """
    if not answers:
        raise ValueError("no answers to score")
    gate = asyncio.Semaphore(parallel)
    done = 0

    async def one(answer: HeldOutAnswer) -> float:
        nonlocal done
        async with gate:
            value = await _mean_logprob(engine, answer, preference)
        done += 1
        on_answer(done, len(answers))
        return value

    values = await asyncio.gather(*map(one, answers))
    return sum(values) / len(values)


def nats_below(told_base: float, policy: float) -> float:
    """How far the policy's answers are below the told base's own (nats per token); never negative."""
    return max(0.0, told_base - policy)


async def _mean_logprob(engine: Engine, answer: HeldOutAnswer, preference: Preference) -> float:
    """Log-probability per token of one answer after the told prompt."""
    user = {"role": "user", "content": told_prompt(answer.question, preference)}
    text = answer.text.strip()
    prompt = await engine.render((user,), ())
    whole = await engine.render((user, {"role": "assistant", "content": text}), (), generation_prompt=False)
    empty = await engine.render((user, {"role": "assistant", "content": ""}), (), generation_prompt=False)
    closing = len(empty) - len(prompt)
    ids, start = answer_tokens(prompt, whole, closing=closing, ended=answer.finish_reason == "stop")
    result = await engine.score(ScoreRequest(ids=ids, start=start, version=BASE_VERSION))
    return sum(result.logprobs) / len(result.logprobs)


def answer_tokens(
    prompt: Sequence[int], whole: Sequence[int], *, closing: int, ended: bool
) -> tuple[tuple[int, ...], int]:
    """The tokens up to the answer's last one, and where the answer starts.

    Args:
        prompt: the rendered prompt, up to where an answer begins.
        whole: the same with the answer and what the template writes after it.
        closing: how many tokens the template writes after an answer; the first of them ends the turn.
        ended: keep that first one, because the answer ended by itself.

    Raises:
        ValueError: if nothing of the answer remains to be scored.
    """
    start = 0
    while start < min(len(prompt), len(whole)) and prompt[start] == whole[start]:
        start += 1
    end = len(whole) - closing + (1 if ended and closing > 0 else 0)
    if start < 1 or end <= start:
        raise ValueError(f"no answer tokens: the answer starts at {start} and ends at {end}")
    return tuple(whole[:end]), start
