"""`judge.kind = "verdict_logits"`: what the base model would write next, asked in two ways, under a logistic head.

A model of this size cannot reason its way to a verdict, but the log-odds of two verdict words behind a list of
examples tell one. They are taken relative to content-free input, since the words' own frequency is not news. The
head adds the plain measures of `features` (does the user repeat the question? ask only?), for the prompt shows the
reacting words alone: with task and answer in it SmolLM2 reads far worse (area under the curve 0.64, not 0.95).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Protocol

import torch

from openclaw_rl.judging.base import JudgeMisconfigured, JudgeUnavailable
from openclaw_rl.judging.cases import DATA, shipped_cases, user_examples
from openclaw_rl.judging.features import behaviour_digest, numbers, reaction_of
from openclaw_rl.judging.head import CLASSES, Head, head_from_json
from openclaw_rl.judging.prompt_files import CompletionPrompt, load_completion_prompt
from openclaw_rl.judging.reaction_judge import Verdict
from openclaw_rl.judging.text import head_tail
from openclaw_rl.serving.engines.protocol import EngineError, ScoreRequest, ScoreResult
from openclaw_rl.types import BASE_VERSION, Message

log = logging.getLogger(__name__)

PROBES = ("verdict_happy", "verdict_sentiment")
HEAD_FILE = "verdict_logits_head.json"
CONTENT_FREE = ("", "N/A", "...")
MAX_REACTION_CHARS = 240
ODDS_SCALE = 0.5
CONTENT_FREE_MARGIN = 0.3
"""Without a head for this model: nearer than this to the content-free odds (nats) is neutral."""


class ScoringEngine(Protocol):
    """The two things of an engine that are needed here."""

    async def render(
        self, messages: tuple[Message, ...], tools: tuple[Message, ...], *, generation_prompt: bool = True
    ) -> tuple[int, ...]:
        """Token ids of a chat."""
        ...

    async def score(self, request: ScoreRequest) -> ScoreResult:
        """Log-probabilities of given tokens."""
        ...

    async def close(self) -> None:
        """Let go of connections."""
        ...


async def log_odds(engine: ScoringEngine, prompt: CompletionPrompt, reaction: str) -> float:
    """log p(good word) − log p(bad word) of the base model behind the prompt, nats."""
    values = {"reaction": head_tail(" ".join(reaction.split()), MAX_REACTION_CHARS)}
    good, bad = [
        await engine.render(prompt.messages(word, values), (), generation_prompt=False)
        for word in (prompt.good, prompt.bad)
    ]
    start, end_good, end_bad = differing(good, bad)
    sums = []
    for ids in (good[:end_good], bad[:end_bad]):
        result = await engine.score(ScoreRequest(ids=ids, start=start, version=BASE_VERSION))
        sums.append(sum(result.logprobs))
    return sums[0] - sums[1]


def differing(a: Sequence[int], b: Sequence[int]) -> tuple[int, int, int]:
    """Where two sequences differ: the length of their common prefix, and the end in each of what differs.

    Both ends are beyond the prefix, also where one word's tokens begin the other's. What the two share at the end is
    the template's; so the two words of a prompt should not end in the same token.

    Raises:
        ValueError: if they are equal.
    """
    if a == b:
        raise ValueError("the two verdict words render to the same tokens")
    shorter = min(len(a), len(b))
    start = next((i for i in range(shorter) if a[i] != b[i]), shorter)
    back = 0
    while back < shorter - start - 1 and a[-1 - back] == b[-1 - back]:
        back += 1
    return start, len(a) - back, len(b) - back


def features_of(task: str, output: str, reaction: str, odds: Sequence[float]) -> list[float]:
    """The head's features: the probes' log-odds relative to content-free input, then the plain measures."""
    return [value * ODDS_SCALE for value in odds] + numbers(task, output, reaction_of(reaction))


def load_head() -> Head:
    """The head that comes with the package."""
    return head_from_json((DATA / HEAD_FILE).read_text(encoding="utf-8"))


class VerdictLogitsScorer:
    """Reads a user's words with the base weights of the policy's own engine."""

    kind = "verdict_logits"

    def __init__(self, engine: ScoringEngine, *, model: str, head: Head | None = None) -> None:
        """Check that the head was fitted to these prompts.

        A head knows one model. Another model is judged by the content-free odds alone, with a warning.

        Raises:
            JudgeMisconfigured: if the prompts or the features changed since the head was fitted.
        """
        self._engine = engine
        self._prompts = [load_completion_prompt(name) for name in PROBES]
        fitted = head or load_head()
        present = fitted_against(self._prompts, fitted.against.get("model", ""))
        stale = sorted(name for name, value in fitted.against.items() if present.get(name) != value)
        if stale:
            raise JudgeMisconfigured(f"the verdict head was fitted against another {', '.join(stale)}")
        self._head = fitted if fitted.against.get("model") == model else None
        if self._head is None:
            log.warning("no verdict head is fitted to this model: content-free odds alone decide")
        self._baselines: list[float] | None = None
        self._lock = asyncio.Lock()

    @property
    def version(self) -> str:
        """The head's name and hash, or those of the prompts where no head is used."""
        return self._head.version if self._head else "+".join(prompt.version for prompt in self._prompts)

    async def verdict(self, *, task: str, output: str, reaction: str) -> Verdict:
        """The likeliest of -1, 0, 1.

        Raises:
            JudgeUnavailable: if the engine cannot be asked now.
        """
        try:
            odds = await self.odds(reaction)
        except EngineError as error:
            raise JudgeUnavailable(error.code, "the engine, to score verdict words") from error
        named = {prompt.name: round(value, 4) for prompt, value in zip(self._prompts, odds, strict=True)}
        if self._head is None:
            return Verdict(score=content_free_verdict(odds), details={"by": "content_free_odds", "odds": named})
        row = torch.tensor([features_of(task, output, reaction, odds)])
        probabilities = self._head.probabilities(row)[0].tolist()
        best = max(range(len(CLASSES)), key=probabilities.__getitem__)
        labelled = {str(label): round(value, 4) for label, value in zip(CLASSES, probabilities, strict=True)}
        details = {"by": "verdict_logits", "odds": named, "probabilities": labelled}
        return Verdict(score=CLASSES[best], details=details)

    async def odds(self, reaction: str) -> list[float]:
        """The log-odds of each probe for the reacting words, less those of content-free input."""
        baselines = await self._content_free()
        words = reaction_of(reaction).words
        raw = [await log_odds(self._engine, prompt, words) for prompt in self._prompts]
        return [value - base for value, base in zip(raw, baselines, strict=True)]

    async def _content_free(self) -> list[float]:
        async with self._lock:
            if self._baselines is None:
                found = []
                for prompt in self._prompts:
                    values = [await log_odds(self._engine, prompt, text) for text in CONTENT_FREE]
                    found.append(sum(values) / len(values))
                self._baselines = found
            return self._baselines

    async def close(self) -> None:
        """Close the engine's connections."""
        await self._engine.close()


def content_free_verdict(odds: Sequence[float]) -> int:
    """The sign of the mean log-odds, 0 within the margin."""
    mean = sum(odds) / len(odds)
    return 0 if abs(mean) < CONTENT_FREE_MARGIN else 1 if mean > 0 else -1


def fitted_against(prompts: Sequence[CompletionPrompt], model: str) -> dict[str, str]:
    """What a head of verdict logits depends on: the prompts, the features, and the model by its name."""
    features = behaviour_digest(user_examples(shipped_cases("calibration")))
    return {"prompts": "+".join(prompt.version for prompt in prompts), "features": features, "model": model}
