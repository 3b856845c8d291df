"""The gateway's one writing thread: jobs run in the order of their arrival; those that wait together commit together.

A commit costs as much as what is committed, and writes pages that the next one would write again; so while one
transaction is written, the jobs that arrive wait for the next, which takes them all. A job has run, and its
caller goes on, only once it is committed.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from openclaw_rl.store import Store

T = TypeVar("T")

MOST_TOGETHER = 32
"""Jobs in one transaction: other processes want the write lock, too."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Job:
    work: Callable[[], Any]
    done: asyncio.Future[Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Outcome:
    job: _Job
    value: Any = None
    error: Exception | None = None

    def deliver(self) -> None:
        """Wake the caller, unless it was cancelled: what it wanted written is written all the same."""
        if self.job.done.done():
            return
        if self.error is None:
            self.job.done.set_result(self.value)
        else:
            self.job.done.set_exception(self.error)


class Writer:
    """Runs jobs against the store, on one thread."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="recorder")
        self._lock = threading.Lock()
        self._waiting: deque[_Job] = deque()

    async def run(self, work: Callable[[], T]) -> T:
        """Run `work` in a transaction; its result, once that is committed. It may run twice: see `_together`.

        Raises:
            Exception: what `work` raised, or what kept the transaction from being committed.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        with self._lock:
            self._waiting.append(_Job(work=work, done=done))
        self._executor.submit(self._write_waiting, loop)
        return await done

    async def close(self) -> None:
        """Write what waits, then stop."""
        await asyncio.to_thread(self._executor.shutdown, wait=True)

    def _write_waiting(self, loop: asyncio.AbstractEventLoop) -> None:
        """Write all that waits; nothing does where an earlier call has taken this one's job along."""
        with self._lock:
            jobs = [self._waiting.popleft() for _ in range(min(len(self._waiting), MOST_TOGETHER))]
        if jobs:
            outcomes = self._together(jobs)
            loop.call_soon_threadsafe(_deliver, outcomes)

    def _together(self, jobs: Sequence[_Job]) -> list[_Outcome]:
        """All jobs in one transaction. Where one fails, nothing is written, and each gets a transaction to itself.

        Where the transaction cannot be had, or not be committed, that is so for all of them: nobody waits again.
        """
        running: _Job | None = None
        outcomes: list[_Outcome] = []
        try:
            with self._store.together():
                for running in jobs:
                    outcomes.append(_Outcome(job=running, value=running.work()))
                running = None
        except Exception as error:  # noqa: BLE001 - handed to the callers, who know what it may be
            if running is None or len(jobs) == 1:
                return [_Outcome(job=job, error=error) for job in jobs]
            return [outcome for job in jobs for outcome in self._together([job])]
        return outcomes


def _deliver(outcomes: Sequence[_Outcome]) -> None:
    for outcome in outcomes:
        outcome.deliver()
