"""What `status` says of the judge: which it is, how often it agrees with people, what is wrong with its scores."""

from __future__ import annotations

from dataclasses import dataclass

from openclaw_rl.store.feedback import JudgeAgreement
from openclaw_rl.types import LoopStatus


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgeReport:
    """Counts of agreement as in `JudgeAgreement`; `agreement` is their rate, None where nobody has rated anything.

    `down_since` and `next_try_at` (seconds since the epoch) are there while what the judge needs is down.
    """

    kind: str | None
    compared: int
    agreed: int
    opposed: int
    unscored: int
    agreement: float | None
    warning: str | None
    down_since: float | None
    next_try_at: float | None

    def words(self) -> list[str]:
        """One line on the agreement, and one more where something is wrong."""
        if self.agreement is None:
            lines = [f"{self.kind or 'not seen yet'}, nobody has rated an answer that it judged"]
        else:
            of_these = f"{self.agreed} of {self.compared} answers that people rated"
            against = f", against them on {self.opposed}" if self.opposed else ""
            lines = [f"{self.kind or 'not seen yet'}, agrees on {of_these} ({self.agreement:.0%}){against}"]
        return [*lines, f"warning: {self.warning}"] if self.warning else lines


def judge_report(agreement: JudgeAgreement, said: LoopStatus | None) -> JudgeReport:
    """What the record and the judging loop's own word come to."""
    details = {} if said is None else said.details
    return JudgeReport(
        kind=details.get("kind"),
        compared=agreement.compared,
        agreed=agreement.agreed,
        opposed=agreement.opposed,
        unscored=agreement.unscored,
        agreement=agreement.rate,
        warning=details.get("warning"),
        down_since=details.get("down_since"),
        next_try_at=details.get("next_try_at"),
    )
