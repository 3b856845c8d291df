"""Between the gateway and the record: one thread, one deadline, and nothing asked of a record that is down.

The first request that meets an outage waits for it, never longer than the deadline; those after it do not wait at
all, until a write of the guard's own has succeeded. A queue that moves is no outage, however long. What is lost
meanwhile is counted in memory, and written to the record when that is back, before anything else.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TypeVar

from openclaw_rl.serving.gateway.writer import Writer
from openclaw_rl.store import Store
from openclaw_rl.store.outage import STORE_ERRORS, WORDS, Outage, outage_of

logger = logging.getLogger(__name__)

T = TypeVar("T")

PATIENCE_S = 4.0
"""How long a transaction of the gateway waits for another process's to end."""
GRACE_S = 1.0
"""Added to the patience it is the deadline: how long a client waits, at most, for a record that does nothing."""
PROBE_S = 0.25


class StoreDown(Exception):
    """The record cannot be used. `undecided`: the call was given up while it ran, and may yet be done."""

    def __init__(self, outage: Outage, *, undecided: bool = False) -> None:
        super().__init__(WORDS[outage])
        self.outage = outage
        self.undecided = undecided


class StoreGuard:
    """The only way of the gateway to write to the record."""

    def __init__(self, store: Store, recover: Callable[[], None]) -> None:
        """`recover` is called on the guard's thread when the record may be back; it raises where it is not."""
        self._store = store
        self._recover = recover
        self._deadline_s = store.patience_s + GRACE_S
        self._writer = Writer(store, refusal=self._refusal, translated=self._translated)
        self._lock = threading.Lock()
        self._problem: Outage | None = None
        self._since: float | None = None
        self._lost: Counter[str] = Counter()
        self._unsaved: Counter[str] = Counter()

    @property
    def problem(self) -> Outage | None:
        """Why the record is not asked now; None where it is."""
        return self._problem

    @property
    def since(self) -> float | None:
        """When that began, seconds since the epoch."""
        return self._since

    @property
    def lost(self) -> Mapping[str, int]:
        """What was counted by `lose` since the start, by name."""
        with self._lock:
            return dict(self._lost)

    @property
    def unsaved(self) -> Mapping[str, int]:
        """The part of `lost` that is not yet in the record's own counters."""
        with self._lock:
            return dict(self._unsaved)

    def lose(self, name: str) -> None:
        """Count a loss."""
        with self._lock:
            self._lost[name] += 1
            self._unsaved[name] += 1

    async def run(self, call: Callable[[], T], late: Callable[[Exception | None], None] | None = None) -> T:
        """Make a call on the guard's thread, in a transaction; a caller that is cancelled does not take it along.

        `late` is called on that thread where the call ended, with that error or well, after it was given up.

        Raises:
            StoreDown: where the record is down, or does not answer within the deadline.
            Exception: what the call raised.
        """
        if self._problem is not None:
            raise StoreDown(self._problem)
        job = self._writer.submit(call, late)
        begun = time.monotonic()
        while True:
            patience_s = max(begun, self._writer.moved_at) + self._deadline_s - time.monotonic()
            if patience_s <= 0 and (undecided := job.give_up()) is not None:
                self._broken(Outage.TOO_SLOW)
                raise StoreDown(Outage.TOO_SLOW, undecided=undecided)
            done, _ = await asyncio.wait({job.done}, timeout=max(0.0, patience_s))
            if done:
                result: T = job.done.result()
                return result

    async def watch(self) -> None:
        """Until cancelled: while the record is down, find out whether it is back."""
        while True:
            if self._problem is not None or self.unsaved:
                await self.probe()
            await asyncio.sleep(PROBE_S)

    async def probe(self) -> None:
        """Look once whether the record is back; what was counted is then in it."""
        await self._writer.alone(self._probe)

    async def close(self) -> None:
        """Do what is queued, then stop."""
        await self._writer.close()

    def _refusal(self) -> StoreDown | None:
        """Why what was queued is not done: the record broke since."""
        return None if self._problem is None else StoreDown(self._problem)

    def _translated(self, error: Exception) -> Exception:
        """What a caller gets for an error; one that shows that the record is down says so to all that follow, too."""
        outage = outage_of(error) if isinstance(error, STORE_ERRORS) else None
        if outage is None:
            return error
        self._broken(outage)
        down = StoreDown(outage)
        down.__cause__ = error
        return down

    def _probe(self) -> None:
        try:
            self._recover()
            self._save()
        except STORE_ERRORS as error:
            outage = outage_of(error)
            if outage is None:
                logger.error("what was lost could not be written down (%s)", type(error).__name__)
            self._broken(outage or Outage.IO_ERROR)
            return
        with self._lock:
            problem, since, self._problem, self._since = self._problem, self._since, None, None
        if problem is not None:
            logger.warning("the record can be written again, after %.1f s", time.time() - (since or time.time()))

    def _save(self) -> None:
        """Write the counts, and one of the outages themselves, which shows that the record takes them."""
        for name, number in self.unsaved.items():
            self._store.status.count(name, number)
            with self._lock:
                self._unsaved[name] -= number
                self._unsaved += Counter()  # forget what is 0
        if self._problem is not None:
            self._store.status.count("store_outages")

    def _broken(self, outage: Outage) -> None:
        with self._lock:
            first = self._problem is None
            self._problem = outage
            if first:
                self._since = time.time()
        if first:
            logger.error("the record cannot be written: %s (%s)", WORDS[outage], outage.value)
