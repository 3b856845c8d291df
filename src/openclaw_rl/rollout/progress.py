"""What the rollout loop waits for, in one sentence, and when to say it aloud."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from openclaw_rl.rollout.waiting import WaitingSamples
from openclaw_rl.store.status import Counts
from openclaw_rl.types import SampleState, TurnState


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """What is there and what is missing at one moment; `why` is `WaitingSamples`' sentence."""

    awaiting: int
    judging: int
    ready: int
    due: bool
    why: str
    reasons: Mapping[str, int]
    claimed: int = 0
    trained: int = 0

    @property
    def work(self) -> tuple[int, ...] | None:
        """What other loops have to do and have done, which changes when they go forward; None where it is their turn
        for nothing: the user's next message may come tomorrow, and a batch that is in training is being worked on."""
        if self.judging or (self.due and not self.claimed):
            return (self.judging, self.ready, self.claimed, self.trained)
        return None

    def sentence(self) -> str:
        """For example: "3 turns wait for a next state, 1 is being judged; 5 of 8 samples; …; excluded: 2 greedy"."""
        excluded = ", ".join(f"{number} {reason}" for reason, number in sorted(self.reasons.items()))
        parts = [
            f"{_turns(self.awaiting, 'waits', 'wait')} for a next state, {_are(self.judging)} being judged",
            self.why,
            f"excluded: {excluded or 'none'}",
        ]
        return "; ".join(parts)

    def waiting_for(self) -> str:
        """What has to come next, told from the samples back to the client."""
        if self.due:
            return f"training to take the batch ({self.why})"
        if self.judging:
            return f"judging of {_turns(self.judging)} ({self.why})"
        if self.awaiting:
            return f"a next state for {_turns(self.awaiting)} ({self.why})"
        return f"requests from clients ({self.why})"

    def details(self) -> dict[str, object]:
        """The same figures for `status`."""
        return {
            "awaiting_next_state": self.awaiting,
            "judging": self.judging,
            "ready": self.ready,
            "batch": self.why,
            "excluded": dict(self.reasons),
        }


def progress_of(counts: Counts, waiting: WaitingSamples) -> Progress:
    """The progress that these counts show, taken at one moment."""
    return Progress(
        awaiting=counts.turns_by_state.get(TurnState.AWAITING_NEXT_STATE.value, 0),
        judging=counts.turns_by_state.get(TurnState.JUDGING.value, 0),
        ready=waiting.count,
        due=waiting.due,
        why=waiting.why,
        reasons=counts.turns_by_reason,
        claimed=counts.samples_by_state.get(SampleState.CLAIMED.value, 0),
        trained=counts.samples_by_state.get(SampleState.TRAINED.value, 0),
    )


class StallWatch:
    """Says when `interval_s` has passed without progress, and again each time it passes once more."""

    def __init__(self, interval_s: float, now: float) -> None:
        self._interval_s = interval_s
        self._moved_at = now
        self._said_at = now
        self._work: tuple[int, ...] | None = None

    def saw(self, work: tuple[int, ...] | None, now: float) -> None:
        """What there is to do now: if it was other work before, something moved; without any, nothing stands."""
        if work is None or work != self._work:
            self.moved(now)
        self._work = work

    def moved(self, now: float) -> None:
        """Something went forward."""
        self._moved_at = self._said_at = now

    def stalled_for(self, now: float) -> float | None:
        """Seconds without progress if it is time for a warning, else None."""
        if now - self._said_at < self._interval_s:
            return None
        self._said_at = now
        return now - self._moved_at


def _turns(number: int, one: str = "", many: str = "") -> str:
    noun = "1 turn" if number == 1 else f"{number} turns"
    return f"{noun} {one if number == 1 else many}".rstrip()


def _are(number: int) -> str:
    return f"{number} {'is' if number == 1 else 'are'}"
