"""From a judge model's replies to one outcome. Pure: no clock, no network.

A verdict is read from the judge's own words only. What it quotes of the conversation (fenced blocks, `>` lines, text
in quotation marks or backticks) and what it thinks before `</think>` cannot vote, and two different verdicts in one
reply are none.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from openclaw_rl.judging.hint_candidates import Candidates, malformed, sift
from openclaw_rl.types import JudgementOutcome

HINT_START = "[HINT_START]"
HINT_END = "[HINT_END]"

_THOUGHT = re.compile(r"^.*</think>", re.DOTALL)
_BLOCKS = re.compile(r"```.*?(?:```|\Z)|^[ \t]*>[^\n]*", re.DOTALL | re.MULTILINE)
_QUOTED = re.compile(r"`[^`\n]*`|\"[^\"\n]*\"|“[^”]*”|「[^」]*」")
_FENCE = re.compile(r"^\s*```(?:json)?\s*\n(.*?)\n\s*```\s*$", re.DOTALL)
_BOXED = re.compile(r"\\boxed\s*\{\s*([^{}]*?)\s*\}")
_HINT = re.compile(re.escape(HINT_START) + r"(.*?)" + re.escape(HINT_END), re.DOTALL)
_SCORES = {"1": 1, "+1": 1, "0": 0, "-1": -1, "−1": -1}
_MARKERS = re.compile(r"\\boxed|\[/?HINT_(?:START|END)\]|\[/?hint\]|</?think>|```", re.IGNORECASE)
_RULER = re.compile(r"-{5,}")  # the lines that part the sections of the judge's prompt
_FOUR = re.compile(r"-{1,4}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Vote:
    """One reply: a score and perhaps a hint, or the `problem` that makes it invalid (a word for the counters)."""

    score: int | None
    hint: str | None = None
    problem: str | None = None

    def __post_init__(self) -> None:
        if (self.score is None) != (self.problem is not None):
            raise ValueError("a vote has a score or a problem")


@dataclass(frozen=True, kw_only=True, slots=True)
class Tally:
    """What the votes come to; `counts` are the valid votes by score, `problems` the invalid ones by reason."""

    outcome: JudgementOutcome
    score: int | None
    hints: Candidates
    counts: dict[int, int]
    problems: dict[str, int]


def defuse(text: str) -> str:
    """Break the judge's own markers where they stand in text that it is shown, so that quoting it has no effect."""
    ruled = _RULER.sub(lambda match: "\u200b".join(_FOUR.findall(match.group())), text)
    return _MARKERS.sub(lambda match: match.group()[0] + "\u200b" + match.group()[1:], ruled)


def parse_vote(reply: str) -> Vote:
    """Read one reply: a JSON object with `score` and `hint`, or `\\boxed{}` with a hint between its markers."""
    if not reply.strip():
        return Vote(score=None, problem="empty_reply")
    own = _THOUGHT.sub("", reply)
    if "<think>" in own:
        return Vote(score=None, problem="unfinished_thought")
    structured = _structured(own)
    if structured is not None:
        return structured
    own = _BLOCKS.sub(" ", own)
    words = _QUOTED.sub(" ", _HINT.sub(" ", own))
    boxed = set(_BOXED.findall(words))
    if not boxed:
        return Vote(score=None, problem="no_verdict")
    if len(boxed) > 1:
        return Vote(score=None, problem="contradictory")
    score = _SCORES.get(boxed.pop())
    if score is None:
        return Vote(score=None, problem="unknown_verdict")
    hints = _HINT.findall(own)
    return Vote(score=score, hint=_clean(hints[-1]) if hints else None)


def settled(votes: Sequence[Vote], outstanding: int, *, threshold: float, min_valid: int) -> bool:
    """Say whether the score stands, whatever the `outstanding` votes will be: nobody need wait for them."""
    valid = Counter(vote.score for vote in votes if vote.score is not None)
    total = sum(valid.values())
    if total < max(1, min_valid):
        return False
    (_, most), *others = valid.most_common()
    second = others[0][1] if others else 0
    return most > second + outstanding and most / (total + outstanding) > threshold


def _structured(own: str) -> Vote | None:
    fenced = _FENCE.match(own)
    try:
        value = json.loads(fenced.group(1) if fenced else own)
    except ValueError:
        return None
    if not isinstance(value, dict):
        return None
    score = value.get("score")
    if isinstance(score, bool) or str(score).removesuffix(".0") not in _SCORES:
        return Vote(score=None, problem="unknown_verdict")
    hint = value.get("hint")
    return Vote(score=_SCORES[str(score).removesuffix(".0")], hint=_clean(hint) if isinstance(hint, str) else None)


def _clean(hint: str) -> str | None:
    return " ".join(hint.split()) or None


def aggregate(votes: Sequence[Vote], *, task: str, threshold: float, min_valid: int) -> Tally:
    """Count the votes.

    A score needs a share of the valid votes above `threshold` (all of them always suffice) and more votes than any
    other. No reply at all is FAILED, fewer than `min_valid` valid ones TOO_FEW_VALID, no such score TIE; none of
    these is a score of 0. The hint candidates are those of the votes that won.
    """
    valid = Counter(vote.score for vote in votes if vote.score is not None)
    problems = dict(Counter(vote.problem for vote in votes if vote.problem is not None))
    counts = dict(sorted(valid.items()))
    total = sum(valid.values())

    def unscored(outcome: JudgementOutcome) -> Tally:
        return Tally(outcome=outcome, score=None, hints=Candidates(), counts=counts, problems=problems)

    if not votes:
        return unscored(JudgementOutcome.FAILED)
    if total < max(1, min_valid):
        return unscored(JudgementOutcome.TOO_FEW_VALID)
    (score, most), *others = valid.most_common()
    share = most / total
    if (others and others[0][1] == most) or (share <= threshold and most < total):
        return unscored(JudgementOutcome.TIE)
    written = [vote.hint for vote in votes if vote.score == score and vote.hint]
    hints = sift(written, lambda hint: malformed(hint, task=task))
    return Tally(outcome=JudgementOutcome.SCORED, score=score, hints=hints, counts=counts, problems=problems)
