"""How often the system's judge saw what the user meant."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Agreement:
    """Of the reactions that were judged: how many signs were the user's own, the opposite, or no sign at all.

    `rate` takes a judgement without a sign (a score of 0, a tie, a failure) for a disagreement; None when
    nothing was judged.
    """

    judged: int
    agreed: int
    opposed: int
    silent: int

    @property
    def rate(self) -> float | None:
        """Agreed judgements as a share of all."""
        return self.agreed / self.judged if self.judged else None


def judge_agreement(verdicts: Mapping[str, int], scores: Mapping[str, float | None]) -> Agreement:
    """Compare the sign of each judgement with the verdict that the user formed on the same answer.

    Args:
        verdicts: the user's own verdict (+1 or -1) by turn id, of reactions put into words.
        scores: the judge's score by turn id, None where it ended without one.
    """
    agreed = opposed = silent = 0
    for turn_id in verdicts.keys() & scores.keys():
        score = scores[turn_id]
        if score is None or score == 0:
            silent += 1
        elif (score > 0) == (verdicts[turn_id] > 0):
            agreed += 1
        else:
            opposed += 1
    return Agreement(judged=agreed + opposed + silent, agreed=agreed, opposed=opposed, silent=silent)
