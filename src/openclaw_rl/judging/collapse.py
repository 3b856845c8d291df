"""Scores that have collapsed around one value: a judge that says the same of everything teaches nothing."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from statistics import fmean, pstdev

from openclaw_rl.judging.text import content_text
from openclaw_rl.types import Judgement, Turn

MAX_STD = 0.02
"""Standard deviation of the window, on the scale of -1 to 1, at which its scores are all but equal."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Seen:
    score: float
    empty: bool
    few_votes: bool


class ScoreWatch:
    """Watches the judge's own scores, before signals are added; judgements without a score are no scores."""

    def __init__(self, window: int, *, votes: int = 1) -> None:
        self._seen: deque[_Seen] = deque(maxlen=window)
        self._votes = votes
        self.warning: str | None = None

    def saw(self, judgement: Judgement, turn: Turn) -> bool:
        """Take one more judgement; True when the window has just collapsed. `warning` stays while it is so."""
        if judgement.score is None:
            return False
        empty = not any(content_text(message).strip() for message in turn.next_state or ())
        few = judgement.details.get("by") == "votes" and sum(judgement.details["counts"].values()) < self._votes
        self._seen.append(_Seen(score=judgement.score, empty=empty, few_votes=few))
        before = self.warning
        self.warning = self._sentence() if self._collapsed() else None
        return before is None and self.warning is not None

    def _collapsed(self) -> bool:
        full = len(self._seen) == self._seen.maxlen
        return full and pstdev(seen.score for seen in self._seen) <= MAX_STD

    def _sentence(self) -> str:
        number = len(self._seen)
        mean = fmean(seen.score for seen in self._seen)
        empty = sum(seen.empty for seen in self._seen)
        few = sum(seen.few_votes for seen in self._seen)
        return (
            f"the last {number} scores are all about {mean:+.2f}. Check: is the next state empty (in {empty} of "
            f"them)? does the prompt, or the head, match the judge's model? are there enough votes ({few} had fewer "
            "than judge.votes)? openclaw-rl judge try shows raw outputs"
        )
