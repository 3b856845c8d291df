"""Takes NaN out of vLLM's cache.

Attention reads whole blocks and masks what is not yet written by multiplying with zero, and NaN times zero is NaN: a
block in which a broken version has left its own would break whoever gets it next. So new requests wait until every
value that is not finite was made 0.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from openclaw_rl.serving.engines.protocol import EngineError

logger = logging.getLogger(__name__)


class CacheHealing:
    """Heals the cache when told to, and says when it is clean. For one event loop."""

    def __init__(self, heal: Callable[[], Awaitable[None]]) -> None:
        """`heal` goes once over the whole cache."""
        self._heal = heal
        self._clean = asyncio.Event()
        self._clean.set()
        self._again = False
        self.passes = 0
        """How often it was, or should have been, gone over. What was cached before has zeros in the place of NaN, or
        NaN still, and nobody is to read on from it: this goes into what prefixes are kept apart by."""
        self._task: asyncio.Task[None] | None = None

    async def clean(self) -> None:
        """Return once nothing is being healed."""
        while not self._clean.is_set():  # it may have begun again before its waiters had their turn
            await self._clean.wait()

    def begin(self) -> None:
        """Heal; once more where that is being done, for what is found now may have been written behind it."""
        self._again = True
        if self._clean.is_set():
            self._clean.clear()
            self._task = asyncio.create_task(self._work())

    async def _work(self) -> None:
        try:
            while self._again:
                self._again = False
                self.passes += 1
                try:
                    await self._heal()
                except EngineError as error:
                    logger.error("vLLM's cache may hold NaN: %s", error)
        finally:
            self._clean.set()

    def cannot(self) -> None:
        """It cannot be healed: nobody is to read on from what was cached before either."""
        self.passes += 1

    async def close(self) -> None:
        """Give up what is under way."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
