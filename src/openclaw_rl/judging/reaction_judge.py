"""The judge for models that cannot write: a scorer for words, rules for tool results, the user's own hint."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from openclaw_rl.judging.base import output_of, task_of
from openclaw_rl.judging.hints import corrective_part
from openclaw_rl.judging.text import content_text
from openclaw_rl.judging.tool_rules import tools_verdict
from openclaw_rl.types import Judgement, JudgementOutcome, Message, Turn


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """-1, 0 or 1, with what it rests on (numbers and names, never the user's words)."""

    score: int
    details: Mapping[str, Any] = field(default_factory=dict)


class ReactionScorer(Protocol):
    """Reads what a user said after an answer."""

    @property
    def kind(self) -> str:
        """The judge's kind."""
        ...

    @property
    def version(self) -> str:
        """Name and content hash of what decides."""
        ...

    async def verdict(self, *, task: str, output: str, reaction: str) -> Verdict:
        """Judge the answer `output` to `task` by the words that followed."""
        ...

    async def close(self) -> None:
        """Let go of connections."""
        ...


class ReactionJudge:
    """A judge by rules for tools and by a scorer for words; the words decide where both are there.

    The hint is the corrective part of the user's own words, and only where they reject the answer: a request that
    follows an accepted answer is the next task, not a correction.
    """

    def __init__(self, scorer: ReactionScorer) -> None:
        self._scorer = scorer

    @property
    def kind(self) -> str:
        """The kind of the scorer."""
        return self._scorer.kind

    @property
    def prompt_version(self) -> str:
        """The version of the scorer."""
        return self._scorer.version

    async def judge(self, turn: Turn) -> Judgement:
        """Judge one turn; a next state without words and without results is neutral."""
        started = time.monotonic()
        next_state = turn.next_state or ()
        task = task_of(turn)
        verdict = await self._verdict(task, output_of(turn), next_state)
        return Judgement(
            turn_id=turn.turn_id,
            kind=self.kind,
            outcome=JudgementOutcome.SCORED,
            score=float(verdict.score),
            hint=corrective_part(next_state, task=task) if verdict.score < 0 else None,
            prompt_version=self.prompt_version,
            latency_s=time.monotonic() - started,
            details=verdict.details,
            created_at=time.time(),
        )

    async def _verdict(self, task: str, output: str, next_state: Sequence[Message]) -> Verdict:
        words = [content_text(message) for message in next_state if message.get("role") == "user"]
        reaction = "\n".join(word for word in words if word.strip())
        if reaction:
            return await self._scorer.verdict(task=task, output=output, reaction=reaction)
        results = [content_text(message) for message in next_state if message.get("role") == "tool"]
        if results:
            return Verdict(score=tools_verdict(results), details={"by": "tool_rules", "results": len(results)})
        return Verdict(score=0, details={"by": "empty_next_state"})

    async def close(self) -> None:
        """Close the scorer."""
        await self._scorer.close()
