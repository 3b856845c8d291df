"""One SQLite file in WAL mode: opening it, and its two kinds of transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from sqlalchemy import Connection, Engine, create_engine, event

from openclaw_rl.store.schema import metadata

BUSY_TIMEOUT_S = 10.0


class Database:
    """Connections to the store. Safe to share between threads; every process opens its own."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._engine: Engine = create_engine(
            f"sqlite:///{path}",
            connect_args={"timeout": BUSY_TIMEOUT_S},
            hide_parameters=True,  # they are what clients wrote, and an error that quotes them ends up in a log
        )
        event.listen(self._engine, "connect", _on_connect)
        event.listen(self._engine, "begin", _on_begin)
        with self.write() as connection:
            metadata.create_all(connection)

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """One consistent view; never blocks a writer."""
        with self._engine.connect() as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """One transaction that holds the write lock from its start: all of it, or nothing.

        Taking the lock at once is what makes read-then-write safe; a deferred transaction could fail half-way.
        """
        with self._engine.connect().execution_options(immediate=True) as connection, connection.begin():
            yield connection

    @contextmanager
    def bare(self) -> Iterator[sqlite3.Cursor]:
        """A cursor outside any transaction, for what SQLite does to the whole file."""
        connection = self._engine.raw_connection()
        try:
            cursor = cast(sqlite3.Cursor, connection.cursor())
            yield cursor
            cursor.close()
        finally:
            connection.close()

    def close(self) -> None:
        """Close all connections."""
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
