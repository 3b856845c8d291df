"""Whether a loop that found nothing to do has reason to look again.

A loop looks for work by queries that cost milliseconds, many times a second, and mostly nothing has happened. Work
comes in two ways only: somebody changes the record, or a time comes that the loop knows beforehand.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

ANYWAY_S = 5.0
"""A loop looks at least so often, for what is written to the record by others than this program."""


class News:
    """Of one loop. It asks `worth_a_look`, looks, and says `nothing_found` where it came to the end of its work."""

    def __init__(
        self, changes: Callable[[], int], *, anyway_s: float = ANYWAY_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`changes`: the record's (`Store.changes`)."""
        self._changes = changes
        self._anyway_s = anyway_s
        self._clock = clock
        self._seen: int | None = None  # by the look that is under way
        self._quiet_at: int | None = None  # there was nothing to do then; None: there may be
        self._until = math.inf
        self._anyway_at = math.inf

    def worth_a_look(self, now: float) -> bool:
        """Whether there may be something to do at `now`, in seconds since the epoch.

        The record is asked before the loop looks, so that what is changed during the look is news the next time.
        """
        self._seen = self._changes()
        quiet = self._seen == self._quiet_at and now < self._until and self._clock() < self._anyway_at
        if not quiet:
            self._quiet_at = None
        return not quiet

    def nothing_found(self, until: float | None = None) -> None:
        """The look found nothing at all to do, nor will another before `until` (None: ever) or a change."""
        self._quiet_at = self._seen
        self._until = math.inf if until is None else until
        self._anyway_at = self._clock() + self._anyway_s
