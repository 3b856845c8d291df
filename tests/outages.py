"""Outages of the record as SQLite itself has them: a lock held elsewhere, a full disk, a file that is read-only."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import event

from openclaw_rl.store import Store

KINDS = {"disk_full": "PRAGMA max_page_count = 1", "unwritable": "PRAGMA query_only = ON"}
"""What makes every write of a connection fail with SQLITE_FULL or SQLITE_READONLY; a page limit below what there is
becomes what there is."""
MENDED = ("PRAGMA max_page_count = 1000000", "PRAGMA query_only = OFF")


class Lock:
    """Another process's transaction that does not end: a connection that holds the write lock."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=5.0)

    def take(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")

    def release(self) -> None:
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    def close(self) -> None:
        self.release()
        self._connection.close()


@contextmanager
def locked(path: Path) -> Iterator[Lock]:
    """The lock is held until it is released, or the block ends."""
    lock = Lock(path)
    lock.take()
    try:
        yield lock
    finally:
        lock.close()


class Trouble:
    """Makes the connections of one store fail in one of `KINDS`, until mended."""

    def __init__(self, store: Store) -> None:
        self._kind: str | None = None
        self._lock = threading.Lock()
        self._store = store
        event.listen(store._database._engine, "checkout", self._prepare)

    def begin(self, kind: str) -> None:
        with self._lock:
            self._kind = kind
        self._prepare_kept()

    def mend(self) -> None:
        with self._lock:
            self._kind = None
        self._prepare_kept()

    def _prepare_kept(self) -> None:
        """Those that are never given back, and so never checked out again."""
        for connection in self._store._database._kept:
            self._prepare(connection.connection.dbapi_connection, None, None)

    def _prepare(self, connection: Any, _record: object, _proxy: object) -> None:
        with self._lock:
            kind = self._kind
        for pragma in MENDED if kind is None else (KINDS[kind],):
            connection.execute(pragma)
