"""One SQLite file in WAL mode: opening it, and its two kinds of transaction."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Connection, Engine, create_engine, event

from openclaw_rl.store.schema import metadata

BUSY_TIMEOUT_S = 10.0
LATE_CHECKPOINT_PAGES = 8000


class Database:
    """Connections to the store. Safe to share between threads; every process opens its own."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._local = threading.local()
        self._kept: list[Connection] = []
        self._engine: Engine = create_engine(
            f"sqlite:///{path}",
            connect_args={"timeout": BUSY_TIMEOUT_S},
            hide_parameters=True,  # they are what clients wrote, and an error that quotes them ends up in a log
        )
        event.listen(self._engine, "connect", _on_connect)
        event.listen(self._engine, "begin", _on_begin)
        self._writing = self._engine.execution_options(immediate=True)
        with self.write() as connection:
            metadata.create_all(connection)

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """One consistent view; never blocks a writer."""
        if (joined := self._joined()) is not None:
            yield joined
            return
        with self._engine.connect() as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """One transaction that holds the write lock from its start: all of it, or nothing.

        Taking the lock at once is what makes read-then-write safe; a deferred transaction could fail half-way.
        """
        if (joined := self._joined()) is not None:
            yield joined
            return
        with self._writing.connect() as connection, connection.begin():
            yield connection

    @contextmanager
    def together(self) -> Iterator[Connection]:
        """One transaction of all that this thread reads and writes inside: committed at its end, or not at all."""
        if (joined := self._joined()) is not None:
            yield joined
            return
        connection = self._own_connection()
        with connection.begin():
            self._local.joined = connection
            try:
                yield connection
            finally:
                self._local.joined = None

    def _own_connection(self) -> Connection:
        """The connection that this thread keeps, for it writes all the time; its commits leave checkpoints to others.

        A checkpoint waits for the disk. Any other connection makes one at its next commit (heartbeats are some), so
        that this one has to only when they do not come.
        """
        own: Connection | None = getattr(self._local, "own", None)
        if own is None or own.closed:
            own = self._writing.connect()
            own.exec_driver_sql(f"PRAGMA wal_autocheckpoint={LATE_CHECKPOINT_PAGES}").close()
            own.rollback()
            self._local.own = own
            self._kept.append(own)
        return own

    def _joined(self) -> Connection | None:
        return getattr(self._local, "joined", None)

    def close(self) -> None:
        """Close all connections."""
        while self._kept:
            self._kept.pop().close()
        self._engine.dispose()


def _on_connect(connection: sqlite3.Connection, _record: object) -> None:
    connection.isolation_level = None  # the driver must not open transactions of its own
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.close()


def _on_begin(connection: Connection) -> None:
    immediate = connection.get_execution_options().get("immediate", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if immediate else "BEGIN")
