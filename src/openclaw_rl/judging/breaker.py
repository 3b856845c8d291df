"""The circuit breaker between the judging loop and what its judge needs. It knows no clock: `now` is passed in.

Closed, every turn may be judged. A failure of what the judge needs opens it: nothing is judged until a pause is over,
then one turn at a time finds out (half-open). A failed probe doubles the pause; a turn that is judged closes it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import datetime

FIRST_PAUSE_S = 0.5
MAX_PAUSE_S = 15.0
MAX_ASKED_PAUSE_S = 300.0
"""No endpoint keeps us away for longer, whatever its Retry-After says."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outage:
    """A judge that is down: since when, why, and when it is tried again (seconds since the epoch)."""

    since: float
    reason: str
    next_try_at: float
    failed_tries: int

    def sentence(self, now: float) -> str:
        """What `status` says the loop waits for."""
        since = datetime.fromtimestamp(self.since).strftime("%H:%M:%S")
        wait = max(0.0, self.next_try_at - now)
        following = f"next try in {wait:.0f} s" if wait >= 0.5 else "it is tried now"
        return f"the judge, which is down since {since} ({self.reason}); {following}"


class CircuitBreaker:
    """Says how many turns may be judged at once, from what became of those before."""

    def __init__(self, rng: random.Random | None = None) -> None:
        self._rng = rng or random.Random()
        self.outage: Outage | None = None

    def allowance(self, workers: int, running: int, now: float) -> int:
        """How many more turns may be claimed while `running` are being judged."""
        if self.outage is None:
            return max(0, workers - running)
        if now < self.outage.next_try_at:
            return 0
        return max(0, 1 - running)

    def failed(self, reason: str, now: float, retry_after_s: float | None = None) -> Outage:
        """What the judge needs failed.

        Those that were under way when it opened tell nothing new: only a probe lengthens the pause.
        """
        before = self.outage
        if before is not None and now < before.next_try_at:
            return before
        tries = 0 if before is None else before.failed_tries
        pause = min(MAX_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(tries, 16)) * (0.5 + self._rng.random() / 2)
        if retry_after_s is not None:
            pause = max(pause, min(retry_after_s, MAX_ASKED_PAUSE_S))
        since = now if before is None else before.since
        self.outage = Outage(since=since, reason=reason, next_try_at=now + pause, failed_tries=tries + 1)
        return self.outage

    def succeeded(self) -> Outage | None:
        """A turn was judged; the outage that this ends, or None."""
        ended, self.outage = self.outage, None
        return ended
