"""What it looks like when the record cannot be used for now, and waiting until it can.

A full disk, a lock that another process does not let go of, a file that cannot be written: none of them is a fault of
the work at hand, and none ends by starting the process again. Every method of the store is one transaction, so that
what failed was undone and may be done again.
"""

from __future__ import annotations

import errno
import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import TypeVar

from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout

logger = logging.getLogger(__name__)

T = TypeVar("T")

NOT_RECORDED = "turns_not_recorded_"
"""Counters of turns that were served and are not in the record, by reason."""
REFUSED = "requests_refused_"
"""Counters of requests that were refused because they could not be recorded, by reason."""

STORE_ERRORS = (SQLAlchemyError, sqlite3.Error, OSError)
"""What a store's method may raise where the store is at fault; `outage_of` tells which of them may pass."""


class Outage(StrEnum):
    """Why the record cannot be used."""

    DISK_FULL = "disk_full"
    LOCKED = "locked"
    UNWRITABLE = "unwritable"
    IO_ERROR = "io_error"
    DAMAGED = "damaged"
    TOO_SLOW = "too_slow"


WORDS: Mapping[Outage, str] = {
    Outage.DISK_FULL: "the disk is full",
    Outage.LOCKED: "another process holds its lock",
    Outage.UNWRITABLE: "it may not be written",
    Outage.IO_ERROR: "its disk fails",
    Outage.DAMAGED: "its file is damaged",
    Outage.TOO_SLOW: "it does not answer in time",
}

_BY_SQLITE: Mapping[str, Outage] = {
    "SQLITE_FULL": Outage.DISK_FULL,
    "SQLITE_BUSY": Outage.LOCKED,
    "SQLITE_LOCKED": Outage.LOCKED,
    "SQLITE_READONLY": Outage.UNWRITABLE,
    "SQLITE_CANTOPEN": Outage.UNWRITABLE,
    "SQLITE_PERM": Outage.UNWRITABLE,
    "SQLITE_IOERR": Outage.IO_ERROR,
    "SQLITE_CORRUPT": Outage.DAMAGED,
    "SQLITE_NOTADB": Outage.DAMAGED,
}
"""By the first two words of the name; extended codes add a third."""
_BY_ERRNO: Mapping[int, Outage] = {
    errno.ENOSPC: Outage.DISK_FULL,
    errno.EDQUOT: Outage.DISK_FULL,
    errno.EFBIG: Outage.DISK_FULL,
    errno.EROFS: Outage.UNWRITABLE,
    errno.EACCES: Outage.UNWRITABLE,
    errno.EPERM: Outage.UNWRITABLE,
    errno.EIO: Outage.IO_ERROR,
}


def outage_of(error: BaseException) -> Outage | None:
    """Which outage an error is a sign of; None where it is a fault of the program, or of the one thing at hand."""
    if isinstance(error, PoolTimeout):
        return Outage.TOO_SLOW
    cause = error.orig if isinstance(error, DBAPIError) else error
    if isinstance(cause, sqlite3.Error):
        name = getattr(cause, "sqlite_errorname", None) or ""
        return _BY_SQLITE.get("_".join(name.split("_")[:2]))
    if isinstance(cause, OSError) and cause.errno is not None:
        return _BY_ERRNO.get(cause.errno)
    return None


class StoppedInOutage(Exception):
    """The process was told to stop while it waited for the record; what it wanted to do was not done."""


class Patience:
    """Keeps a loop alive through an outage: it says so once, waits, tries again, and says when it is over."""

    def __init__(
        self,
        stop: threading.Event,
        tell: Callable[[str], None],
        *,
        pause_s: float = 0.5,
        max_pause_s: float = 8.0,
    ) -> None:
        """`tell` gets what the loop waits for, in words. The pauses double from `pause_s` to `max_pause_s`."""
        self._stop = stop
        self._tell = tell
        self._pause_s = pause_s
        self._max_pause_s = max_pause_s
        self._lock = threading.Lock()
        self._failures = 0
        self._since = 0.0

    @property
    def waiting(self) -> bool:
        """Whether the last try met an outage."""
        return self._failures > 0

    def until_done(self, job: Callable[[], T]) -> T:
        """Do `job`, one transaction, again and again until no outage keeps it from being done.

        Raises:
            StoppedInOutage: if the process is told to stop meanwhile.
        """
        while True:
            try:
                done = job()
            except STORE_ERRORS as error:
                if not self.wait(error):
                    raise
                if self._stop.is_set():
                    raise StoppedInOutage from error
            else:
                self.over()
                return done

    def wait(self, error: BaseException, subject: str = "the record") -> bool:
        """Wait a while after `error`, or until told to stop; False at once where it is no outage.

        `subject`: what cannot be used, in words.
        """
        outage = outage_of(error)
        if outage is None:
            return False
        self.wait_for(f"{subject} to be usable again: {WORDS[outage]}", outage.value)
        return True

    def wait_for(self, words: str, reason: str) -> None:
        """Wait a while for what `words` say, or until told to stop; longer each time until it is `over`."""
        with self._lock:
            self._failures += 1
            failures = self._failures
        if failures == 1:
            self._since = time.monotonic()
            logger.error("waiting for %s (%s)", words, reason)
        self._tell(words)
        self._stop.wait(min(self._max_pause_s, self._pause_s * 2 ** min(failures - 1, 16)))

    def over(self) -> None:
        """What was waited for is there."""
        with self._lock:
            failures, self._failures = self._failures, 0
        if failures:
            logger.warning("what was waited for can be used again, after %.0f s", time.monotonic() - self._since)
