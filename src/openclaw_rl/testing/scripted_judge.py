"""A fake judge (`judge.kind = "scripted"`): verdicts by a table of keywords, for tests and quick trials.

It judges nothing; a test that uses it decides the verdicts by what its client says.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import MappingProxyType

from openclaw_rl.judging.base import JudgeError, JudgeUnavailable
from openclaw_rl.judging.text import content_text
from openclaw_rl.types import Judgement, JudgementOutcome, Turn

DEFAULT_TABLE: Mapping[str, str] = MappingProxyType(
    {
        "[good]": "1",
        "[bad]": "-1",
        "[neutral]": "0",
        "[tie]": "tie",
        "[too few]": "too_few_valid",
        "[fail]": "error",
        "[down]": "unavailable",
    }
)
"""Keyword in the next state → a score, an outcome, or an error to raise. The first that is found counts."""

HINT_MARK = "hint:"
"""What follows it in the next state is the hint."""


class ScriptedJudge:
    """Verdicts by keyword; a next state without any keyword is neutral."""

    kind = "scripted"
    prompt_version = "scripted@1"

    def __init__(self, table: Mapping[str, str] = DEFAULT_TABLE) -> None:
        self._table = table

    async def judge(self, turn: Turn) -> Judgement:
        """Look the verdict up.

        Raises:
            JudgeError: where the table says `error`.
            JudgeUnavailable: where the table says `unavailable`.
        """
        text = "\n".join(content_text(message) for message in turn.next_state or ())
        verdict = next((value for keyword, value in self._table.items() if keyword in text.lower()), "0")
        if verdict == "error":
            raise JudgeError("scripted", "the script says that this fails")
        if verdict == "unavailable":
            raise JudgeUnavailable("scripted", "the script says that the judge is down")
        scored = verdict.lstrip("-").isdigit()
        _, marked, hint = text.partition(HINT_MARK)
        return Judgement(
            turn_id=turn.turn_id,
            kind=self.kind,
            outcome=JudgementOutcome.SCORED if scored else JudgementOutcome(verdict),
            score=float(verdict) if scored else None,
            hint=hint.strip() or None if scored and marked else None,
            prompt_version=self.prompt_version,
            latency_s=0.0,
            created_at=time.time(),
        )

    async def close(self) -> None:
        """Nothing is held open."""
