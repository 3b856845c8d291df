"""Waiting until what was learned from is learned: for as long as something goes forward, and no longer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from openclaw_rl.supervision.status import duration


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """How far the system is at one moment: what is on its way, in words, and how much has got there.

    The latter in numbers: the version in service, the samples that were trained, the answers that were judged.
    """

    pending: tuple[str, ...]
    arrived: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Settling:
    """What a wait came to. `pending`: what did not get there; `still_s`: how long nothing had moved at its end."""

    pending: tuple[str, ...]
    waited_s: float
    still_s: float

    @property
    def settled(self) -> bool:
        """Whether nothing is on its way any more."""
        return not self.pending

    def words(self) -> str:
        """What a person should know of a wait that was given up; empty where it was not."""
        if self.settled:
            return ""
        return (
            f"given up after {duration(self.waited_s)}, the last {duration(self.still_s)} of them without an answer "
            f"judged, a sample trained or an update: {', '.join(self.pending)}"
        )


async def wait_until_settled(
    look: Callable[[], Awaitable[Standing]],
    *,
    standstill_s: float,
    limit_s: float,
    poll_s: float,
    tell: Callable[[Standing], None] = lambda standing: None,
    clock: Callable[[], float] = time.monotonic,
) -> Settling:
    """Wait until `look` twice in a row finds nothing on its way; what came of it.

    A slow machine is waited for as long as it gets somewhere: the wait is given up after `standstill_s` in which
    nothing arrived, or `limit_s` in all.
    """
    began = moved_at = clock()
    arrived: tuple[int, ...] | None = None
    quiet = 0
    while True:
        standing = await look()
        tell(standing)
        now = clock()
        if standing.arrived != arrived:
            arrived, moved_at = standing.arrived, now
        quiet = 0 if standing.pending else quiet + 1
        over = now - moved_at >= standstill_s or now - began >= limit_s
        if quiet >= 2 or (over and standing.pending):
            return Settling(pending=standing.pending, waited_s=now - began, still_s=now - moved_at)
        await asyncio.sleep(poll_s)
