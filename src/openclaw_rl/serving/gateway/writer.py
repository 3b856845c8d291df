"""The gateway's one writing thread: jobs run in the order of their arrival; those that wait together commit together.

A commit costs as much as what is committed, and writes pages that the next one would write again; so while one
transaction is written, the jobs that arrive wait for the next, which takes them all. A job is done, and its caller
goes on, only once it is committed. A caller may give its job up at any moment: one that had not begun never runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from openclaw_rl.store import Store

MOST_TOGETHER = 32
"""Jobs in one transaction: other processes want the write lock, too."""


class GivenUp(Exception):
    """The outcome of a job whose caller gave it up before it began; nobody is told."""


class Job:
    """One call, and which came first: its end, or its caller's giving up."""

    def __init__(
        self,
        work: Callable[[], Any],
        late: Callable[[Exception | None], None] | None,
        done: asyncio.Future[Any],
        *,
        alone: bool = False,
    ) -> None:
        """`alone`: in no transaction."""
        self.work = work
        self.done = done
        self.alone = alone
        self._late = late
        self._lock = threading.Lock()
        self._begun = self._ended = self._given_up = False

    def begin(self) -> bool:
        """Whether it is to run; a job that began may begin again, in another transaction."""
        with self._lock:
            self._begun = self._begun or not self._given_up
            return self._begun

    def end(self, error: Exception | None) -> None:
        """It is committed, or failed."""
        with self._lock:
            self._ended, given_up = True, self._given_up
        if given_up and self._begun and self._late is not None:
            self._late(error)

    def give_up(self) -> bool | None:
        """Whether it had begun and may yet be done; None where it is done already."""
        with self._lock:
            if self._ended:
                return None
            self._given_up = True
            return self._begun


@dataclass(frozen=True, kw_only=True, slots=True)
class _Outcome:
    job: Job
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
            self.job.done.exception()  # its caller may be gone


class Writer:
    """Runs jobs against the store, on one thread, which the first of them starts.

    `refusal` says, before each transaction, why nothing may be asked of the store now; `translated` makes of an error
    what the callers are to get.
    """

    def __init__(
        self,
        store: Store,
        *,
        refusal: Callable[[], Exception | None] = lambda: None,
        translated: Callable[[Exception], Exception] = lambda error: error,
    ) -> None:
        self._store = store
        self._refusal = refusal
        self._translated = translated
        self._queue: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._held: list[Job | None] = []
        self._thread: threading.Thread | None = None
        self._closed = False
        self.moved_at = 0.0
        """When a job or a transaction last ended, by the monotonic clock."""

    def submit(self, work: Callable[[], Any], late: Callable[[Exception | None], None] | None = None) -> Job:
        """Have `work` run in a transaction; the job's `done` has its result once that is committed.

        It may run twice: see `_together`. `late` is called on the writing thread where the job ends, with that error
        or well, after it was given up.
        """
        job = Job(work, late, asyncio.get_running_loop().create_future())
        self._put(job)
        return job

    async def alone(self, work: Callable[[], None]) -> None:
        """Run `work` on the writing thread, in no transaction; a caller that is cancelled does not take it along."""
        job = Job(work, None, asyncio.get_running_loop().create_future(), alone=True)
        self._put(job)
        await asyncio.shield(job.done)

    async def close(self) -> None:
        """Write what waits, then stop."""
        self._closed = True
        if self._thread is not None:
            self._queue.put(None)
            await asyncio.to_thread(self._thread.join)

    def _put(self, job: Job) -> None:
        if self._closed:
            raise RuntimeError("the writer is closed")
        if self._thread is None:
            self._thread = threading.Thread(target=self._write, name="recorder", daemon=True)
            self._thread.start()
        self._queue.put(job)

    # --- on the writing thread -----------------------------------------------------------------------------

    def _write(self) -> None:
        while jobs := self._waiting():
            outcomes = [_alone(jobs[0])] if jobs[0].alone else self._together(jobs)
            for outcome in outcomes:
                outcome.job.end(outcome.error)
            self.moved_at = time.monotonic()
            with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits any more
                jobs[0].done.get_loop().call_soon_threadsafe(_deliver, outcomes)

    def _waiting(self) -> list[Job]:
        """Wait for a job; it, and those behind it that share its transaction. None at all once all is written."""
        first = self._held.pop() if self._held else self._queue.get()
        if first is None:
            return []
        jobs = [first]
        while not first.alone and len(jobs) < MOST_TOGETHER and not self._queue.empty():
            job = self._queue.get()
            if job is None or job.alone:
                self._held.append(job)  # for the next round
                break
            jobs.append(job)
        return jobs

    def _together(self, jobs: Sequence[Job]) -> list[_Outcome]:
        """All jobs in one transaction. Where one fails, nothing is written, and each gets a transaction to itself.

        Where the transaction cannot be had, or not be committed, that is so for all of them: nobody waits again.
        """
        if (refusal := self._refusal()) is not None:
            return [_Outcome(job=job, error=refusal) for job in jobs]
        running: Job | None = None
        outcomes: list[_Outcome] = []
        try:
            with self._store.together():
                for running in jobs:
                    if running.begin():
                        outcomes.append(_Outcome(job=running, value=running.work()))
                    else:
                        outcomes.append(_Outcome(job=running, error=GivenUp()))
                    self.moved_at = time.monotonic()
                running = None
        except Exception as error:  # noqa: BLE001 - handed to the callers, who know what it may be
            if running is None or len(jobs) == 1:
                told = self._translated(error)
                return [_Outcome(job=job, error=told) for job in jobs]
            return [outcome for job in jobs for outcome in self._together([job])]
        return outcomes


def _alone(job: Job) -> _Outcome:
    try:
        return _Outcome(job=job, value=job.work())
    except Exception as error:  # noqa: BLE001 - handed to the caller, who knows what it may be
        return _Outcome(job=job, error=error)


def _deliver(outcomes: Sequence[_Outcome]) -> None:
    for outcome in outcomes:
        outcome.deliver()
