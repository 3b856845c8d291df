"""The samples of a step stay claimed for as long as the trainer is heard of, however long the step goes on.

Nothing is heard of it within one evaluation of the user's own: of one longer than `training.lease_s` they do not.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable

from openclaw_rl.store import Store
from openclaw_rl.store.outage import STORE_ERRORS, outage_of

log = logging.getLogger(__name__)

RENEW_EVERY_S = 60.0
"""How often leases are renewed; more often where they are shorter than three times that."""


class Lease:
    """Renews what the trainer holds, when it is told that the trainer is at work: from nobody's thread but that one.

    A trainer that hangs renews nothing, so that its samples are not held for ever.
    """

    def __init__(self, store: Store, lease_s: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`lease_s`: for how long at a time."""
        self._store = store
        self._lease_s = lease_s
        self._every_s = min(RENEW_EVERY_S, lease_s / 3)
        self._clock = clock
        self._last = -math.inf

    def renew(self, owner: str) -> None:
        """The trainer is at work on what it claimed for this owner. An outage of the record leaves it to the next."""
        now = self._clock()
        if now - self._last < self._every_s:
            return
        self._last = now
        try:
            self._store.samples.renew_claims(self._lease_s, owner)
        except STORE_ERRORS as error:
            if outage_of(error) is None:
                raise
            log.warning("the leases of claimed samples were not renewed (%s)", type(error).__name__)
