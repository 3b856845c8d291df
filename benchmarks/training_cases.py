"""What is trained on: the three cases' samples, the same for every side."""

from __future__ import annotations

import dataclasses
import math
import random
from enum import StrEnum

from openclaw_rl.types import FinishReason, Sample, SamplingParams, TokenRecord

FIRST_TOKEN = 20
"""Token ids below it are the template's own."""


class Case(StrEnum):
    """EQUAL: 16 single turns of 128 + 128 tokens. MIXED: 16 of mixed lengths. SESSION: one of 10 turns."""

    EQUAL = "a"
    MIXED = "b"
    SESSION = "c"


NAMES = {Case.EQUAL: "equal", Case.MIXED: "mixed", Case.SESSION: "sessions"}


def samples_of(case: Case, vocabulary: int, *, quick: bool = False) -> list[Sample]:
    """Random tokens with rewards of ±1. The log-probabilities are none yet (see `with_old`). `quick`: a quarter."""
    chance = random.Random(5)
    shapes = _shapes(case, chance, quick)
    before: tuple[int, ...] = ()
    samples = []
    for number, (prompt, response) in enumerate(shapes):
        ids = tuple(chance.randrange(FIRST_TOKEN, vocabulary) for _ in range(prompt + response))
        prompt_ids = before + ids[:prompt]
        samples.append(_sample(number, prompt_ids, ids[prompt:], reward=1.0 if number % 3 else -1.0))
        if case is Case.SESSION:
            before = prompt_ids + ids[prompt:]
    return samples


def with_old(sample: Sample, logprobs: list[float]) -> Sample:
    """The sample with the log-probabilities of an engine that drew it from almost these weights: some ratios clip."""
    drift = [0.15 * math.sin(1.0 + place) for place in range(len(logprobs))]
    old = tuple(min(own + by, 0.0) for own, by in zip(logprobs, drift, strict=True))
    return dataclasses.replace(sample, tokens=dataclasses.replace(sample.tokens, logprobs=old))


def _shapes(case: Case, chance: random.Random, quick: bool) -> list[tuple[int, int]]:
    """How many tokens each turn adds: prompt, response."""
    turns = 4 if quick else 16
    if case is Case.EQUAL:
        return [(128, 128)] * turns
    if case is Case.SESSION:
        first, others = (250, 2) if quick else (1000, 9)
        return [(first + 60, 60), *[(60, 60)] * others]

    def length(median: float, spread: float, least: int, most: int) -> int:
        return min(max(round(chance.lognormvariate(math.log(median), spread)), least), most)

    return [(length(120, 0.8, 20, 600), length(50, 1.0, 3, 256)) for _ in range(turns)]


def _sample(number: int, prompt: tuple[int, ...], response: tuple[int, ...], reward: float) -> Sample:
    return Sample(
        turn_id=f"t{number}",
        session_id="s",
        messages=({"role": "user", "content": ""},),
        tools=(),
        tokens=TokenRecord(
            prompt_ids=prompt,
            response_ids=response,
            logprobs=(0.0,) * len(response),
            versions=(0,) * len(response),
        ),
        sampling=SamplingParams(temperature=1.0, max_tokens=len(response)),
        finish_reason=FinishReason.STOP,
        reward=reward,
        hint=None,
        created_at=0.0,
    )
