"""What every supervised process needs: a stop signal, a tie to its parent, and a heartbeat."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import ctypes
import logging
import os
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar

from openclaw_rl.types import LoopName, LoopStatus

if TYPE_CHECKING:  # the supervisor needs no database to start its children
    from openclaw_rl.store import Store

logger = logging.getLogger(__name__)

T = TypeVar("T")

_PR_SET_PDEATHSIG = 1
TIED_TO_PARENT = sys.platform.startswith("linux")
"""Whether the system ends (SIGTERM) a process that called `die_with_parent` when its parent ends."""
HEARTBEAT_INTERVAL_S = 0.5
AUTOGROUP = Path("/proc/self/autogroup")
"""Where Linux tells, and is told, the niceness of this session."""


def stop_event() -> threading.Event:
    """An event that SIGTERM and SIGINT set; a second signal ends the process at once."""
    stop = threading.Event()

    def handle(signum: int, _frame: FrameType | None) -> None:
        if stop.is_set():
            os._exit(128 + signum)
        stop.set()

    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGINT, handle)
    return stop


@contextmanager
def ending_at_once() -> Iterator[None]:
    """While something loads, and nothing is in flight, SIGTERM and SIGINT end the process at once, with code 0.

    A stop event would be looked at only after the loading, which may take longer than the supervisor waits. Outside
    the main thread, which alone gets signals, this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(_signum: int, _frame: FrameType | None) -> None:
        os._exit(0)

    before = {signum: signal.signal(signum, handle) for signum in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def leave(code: int) -> NoReturn:
    """End this process with `code` now that all it had to put away is put away.

    Taking an interpreter apart that holds torch and a model costs seconds of CPU, and nobody has anything of it: on a
    busy machine a process that had stopped in good order would not be gone before its supervisor kills it.
    """
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BrokenPipeError):  # whoever read it has gone first
            stream.flush()
    os._exit(code)


def begin_beside(work: Callable[[], T]) -> asyncio.Future[T]:
    """Begin `work` in a thread that nobody waits for when the event loop ends, as a pool's threads are waited for.

    For what may take long and leaves nothing half done, such as loading a model: cancel the future to forget it.
    """
    outcome: concurrent.futures.Future[T] = concurrent.futures.Future()

    def do() -> None:
        if not outcome.set_running_or_notify_cancel():
            return
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - it is raised where the outcome is asked for
            outcome.set_exception(error)
        else:
            outcome.set_result(result)

    threading.Thread(target=do, name="beside", daemon=True).start()
    return asyncio.wrap_future(outcome)


def die_with_parent(parent_pid: int, how: signal.Signals = signal.SIGTERM) -> None:
    """End this process (by the signal `how`) when its parent ends, even by SIGKILL: no loop outlives its supervisor.

    Linux only; elsewhere a supervisor that is killed leaves its loops running until they are told to stop.
    """
    if not TIED_TO_PARENT:
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, how)
    if os.getppid() != parent_pid:  # it ended before the call above
        os._exit(1)


def give_way(niceness: int) -> None:
    """Let the other loops go first on the CPU.

    Many Linux kernels share the CPU among sessions before they share it among processes (autogroups, sched(7)), and
    each loop is a session of its own: there the niceness of a process counts for nothing against the other loops,
    that of its session does.
    """
    if not niceness:
        return
    os.nice(niceness)
    try:
        AUTOGROUP.write_text(str(niceness), encoding="ascii")
    except FileNotFoundError:
        return  # a kernel without them: the niceness of the process is what counts
    except OSError as error:
        logger.warning("this session's niceness cannot be set (%s): other loops may be slowed", error.strerror)


class Reports(Protocol):
    """Whom a loop tells what it is doing."""

    def working(self, activity: str, **details: Any) -> None:
        """The loop is doing `activity`."""
        ...

    def waiting(self, waiting_for: str, **details: Any) -> None:
        """The loop stands still until `waiting_for` comes."""
        ...


class LoopReporter:
    """Tells the store what a loop is doing, so that `status` can name who waits for whom, since when.

    Where the store cannot be written (a full disk, a lock held too long) the word is lost and nothing else: an engine
    that ended because nobody could note how it is would break the streams of its clients.
    """

    def __init__(self, store: Store, loop: LoopName) -> None:
        self._store = store
        self._loop = loop
        self._lock = threading.Lock()
        self._said: tuple[str, str | None] | None = None
        self._since = time.time()
        self._written_at = 0.0
        self._unheard = False

    def working(self, activity: str, **details: Any) -> None:
        """The loop is doing `activity`."""
        self._report(activity, None, details)

    def waiting(self, waiting_for: str, **details: Any) -> None:
        """The loop stands still until `waiting_for` comes."""
        self._report("waiting", waiting_for, details)

    @property
    def waiting_since_s(self) -> float:
        """Seconds since the loop last changed what it does."""
        return time.time() - self._since

    def _report(self, activity: str, waiting_for: str | None, details: Mapping[str, Any]) -> None:
        now = time.time()
        with self._lock:
            said = (activity, waiting_for)
            changed = said != self._said
            if changed and (self._said is None or activity != self._said[0] or waiting_for is None):
                self._since = now
            if not changed and now - self._written_at < HEARTBEAT_INTERVAL_S:
                return
            self._said = said
            status = LoopStatus(
                loop=self._loop,
                pid=os.getpid(),
                heartbeat_at=now,
                activity=activity,
                waiting_for=waiting_for,
                since=self._since,
                details=details,
            )
            self._write(status)  # in the order in which it is said: a word that is overtaken would be the last
            self._written_at = time.time()  # who said it once more while that took its time was heard with it

    def _write(self, status: LoopStatus) -> None:
        from sqlalchemy.exc import SQLAlchemyError

        try:
            self._store.status.report(status)
        except (SQLAlchemyError, sqlite3.Error) as error:
            if not self._unheard:
                logger.warning("what this loop does cannot be written to the store (%s)", type(error).__name__)
            self._unheard = True
        else:
            self._unheard = False
