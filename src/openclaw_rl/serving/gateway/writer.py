"""The gateway's one writing thread: jobs run in the order of their arrival; those that wait together commit together.

A commit costs as much as what is committed, and writes pages that the next one would write again; so while one
transaction is written, the jobs that arrive wait for the next, which takes them all. A job has run, and its
caller goes on, only once it is committed.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable, Sequence
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
    """Runs jobs against the store, on one thread, which the first of them starts."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False

    async def run(self, work: Callable[[], T]) -> T:
        """Run `work` in a transaction; its result, once that is committed. It may run twice: see `_together`.

        Raises:
            Exception: what `work` raised, or what kept the transaction from being committed.
        """
        if self._closed:
            raise RuntimeError("the writer is closed")
        if self._thread is None:
            self._thread = threading.Thread(target=self._write, name="recorder", daemon=True)
            self._thread.start()
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._jobs.put(_Job(work=work, done=done))
        return await done

    async def close(self) -> None:
        """Write what waits, then stop."""
        self._closed = True
        if self._thread is not None:
            self._jobs.put(None)
            await asyncio.to_thread(self._thread.join)

    def _write(self) -> None:
        while jobs := self._waiting():
            outcomes = self._together(jobs)
            loop = jobs[0].done.get_loop()
            with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits any more
                loop.call_soon_threadsafe(_deliver, outcomes)

    def _waiting(self) -> list[_Job]:
        """Wait for a job; it, and those that wait behind it. None at all once the writer is closed."""
        jobs: list[_Job] = []
        job = self._jobs.get()
        while job is not None:
            jobs.append(job)
            if len(jobs) == MOST_TOGETHER or self._jobs.empty():
                return jobs
            job = self._jobs.get()
        if jobs:
            self._jobs.put(None)  # for the next round
        return jobs

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
