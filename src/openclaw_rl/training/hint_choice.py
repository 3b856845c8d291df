"""Which hint of a sample the teacher reads, decided when a batch is built.

Candidates that make the teacher's prompt too long for its context are out. Of several that are left the first (the
longest) is taken, or the one that is closest to what the student does: for each candidate, take at each position of
the response the student's k likeliest tokens and those of the teacher under that candidate; the overlap is the share
that they have in common, averaged over the response (OpenClaw-RL, arXiv 2603.10165, second version: selection by
sequence). A teacher that is close can be followed; one far off pulls towards tokens that the student never draws.

With one candidate nothing is computed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from openclaw_rl.serving.engines.protocol import InvalidEngineRequest
from openclaw_rl.training.batch import TokenSequence
from openclaw_rl.training.scorer import Mode, Scorer
from openclaw_rl.training.teacher import Teacher
from openclaw_rl.types import Sample

TOO_LONG = "hint_too_long"
"""No candidate leaves the teacher's prompt and the response within the context."""
NOT_RENDERED = "hint_not_rendered"
"""The chat template refuses the messages with the hint in them."""

CHUNK = 64
"""Tokens whose distributions exist at once."""

PromptOf = Callable[[Sample], Sequence[int]]
"""The teacher's prompt ids for a sample with one hint."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """Samples with one hint each, or none, and what the record of the step says of it.

    `hinted`: for each sample with a hint `candidate`, the index among `Sample.hints`, and where candidates were
    compared `overlaps`, index to overlap. `excluded`: samples that lost their hint term, and why.
    """

    samples: tuple[Sample, ...]
    hinted: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    excluded: Mapping[str, str] = field(default_factory=dict)

    def record(self, scored_by: str) -> dict[str, Any]:
        """As a step's record keeps it; empty where no sample had a hint."""
        if not self.hinted and not self.excluded:
            return {}
        hinted = {turn_id: dict(chosen) for turn_id, chosen in self.hinted.items()}
        return {"scored_by": scored_by, "hinted": hinted, "excluded": dict(self.excluded)}


class HintChooser:
    """Chooses with one teacher and one student."""

    def __init__(
        self, *, prompt: PromptOf, scorer: Scorer, teacher: Teacher, context_length: int, top_k: int, max_tokens: int
    ) -> None:
        """`top_k`: how many likeliest tokens are compared, 0 to take the first; `max_tokens` in one forward pass."""
        self._prompt = prompt
        self._scorer = scorer
        self._teacher = teacher
        self._limit = min(context_length, teacher.context_length or context_length)
        self._top_k = top_k
        self._max_tokens = max_tokens

    def obstacle(self, sample: Sample) -> str | None:
        """Why the teacher can read none of a sample's hints, or None; None too where there is no hint."""
        return self._readable(sample)[1]

    def choose(self, samples: Sequence[Sample], progress: Callable[[], None]) -> Choice:
        """One hint for each sample that has any and can be read under it."""
        chosen: list[Sample] = []
        hinted: dict[str, Mapping[str, Any]] = {}
        excluded: dict[str, str] = {}
        for sample in samples:
            prompts, obstacle = self._readable(sample)
            if obstacle is not None:
                excluded[sample.turn_id] = obstacle
            elif len(prompts) > 1 and self._top_k:
                overlaps = self._overlaps(sample, prompts, progress)
                best = max(overlaps, key=lambda index: (overlaps[index], -index))
                hinted[sample.turn_id] = {
                    "candidate": best,
                    "overlaps": {str(index): round(value, 6) for index, value in overlaps.items()},
                }
            elif prompts:
                hinted[sample.turn_id] = {"candidate": min(prompts)}
            taken = hinted.get(sample.turn_id)
            hint = None if taken is None else sample.hints[taken["candidate"]]
            chosen.append(dataclasses.replace(sample, hint=hint, alternatives=()))
        return Choice(samples=tuple(chosen), hinted=hinted, excluded=excluded)

    def _readable(self, sample: Sample) -> tuple[dict[int, Sequence[int]], str | None]:
        """The teacher's prompts by index of the candidate; and, where there are candidates and no prompt, why."""
        prompts: dict[int, Sequence[int]] = {}
        obstacle: str | None = None
        for index, hint in enumerate(sample.hints):
            try:
                prompt = self._prompt(dataclasses.replace(sample, hint=hint, alternatives=()))
            except InvalidEngineRequest:
                obstacle = NOT_RENDERED
                continue
            if len(prompt) + len(sample.tokens.response_ids) > self._limit:
                obstacle = TOO_LONG
                continue
            prompts[index] = prompt
        return prompts, None if prompts else obstacle

    def _overlaps(
        self, sample: Sample, prompts: Mapping[int, Sequence[int]], progress: Callable[[], None]
    ) -> dict[int, float]:
        response = sample.tokens.response_ids
        length = len(response)
        own = TokenSequence(prompt_ids=sample.tokens.prompt_ids, response_ids=response, start=0)
        hidden = self._scorer.hidden_row(
            [own], Mode.TEACHER, length=length, max_tokens=self._max_tokens, progress=progress
        )
        student = top_ids(hidden, self._scorer.log_distribution, self._top_k)
        read = [
            TokenSequence(prompt_ids=tuple(prompt), response_ids=response, start=place * length)
            for place, prompt in enumerate(prompts.values())
        ]
        row = self._teacher.read(read, length=length * len(read), max_tokens=self._max_tokens, progress=progress)
        rows = torch.split(row, length)
        return {
            index: overlap(student, top_ids(row, self._teacher.log_distribution, self._top_k))
            for index, row in zip(prompts, rows, strict=True)
        }


def top_ids(hidden: Tensor, distribution: Callable[[Tensor, Tensor], Tensor], k: int) -> Tensor:
    """The k likeliest tokens at R positions, [R, k], from hidden states [R, H]; no temperature changes them."""
    found = []
    with torch.no_grad():
        for piece in torch.split(hidden, CHUNK):
            warmth = torch.ones(piece.shape[0], device=piece.device)
            found.append(distribution(piece, warmth).topk(k, dim=-1).indices)
    return torch.cat(found)


def overlap(one: Tensor, other: Tensor) -> float:
    """The share of ids [R, k] that two have in common at each position, averaged over R positions: 0 to 1."""
    common = (one.unsqueeze(-1) == other.unsqueeze(-2)).any(-1)
    return float(common.double().mean())
