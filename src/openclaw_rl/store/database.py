"""One SQLite file in WAL mode: opening it, and its kinds of transaction.

The file says that it was changed by another number in the header's `user_version`, so that a loop can ask for next to
nothing whether there is anything new. `PRAGMA data_version` would cost no write, but it tells of every commit: with
five loops whose heartbeats are commits there is one nearly each time that somebody looks.
"""

from __future__ import annotations

import random
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from sqlalchemy import Connection, Engine, Executable, create_engine, event

from openclaw_rl.store.migrations import HEAD, StoreSchemaError, bring_to_head, revision_of

PATIENCE_S = 10.0
"""How long a transaction waits for another one to end, unless told otherwise."""
MIGRATION_PATIENCE_S = 60.0
"""How long a process waits for the one that upgrades the schema."""
LATE_CHECKPOINT_PAGES = 8000
_BITS = 31
"""Of `user_version`, which has a sign too."""


class Database:
    """Connections to the store. Safe to share between threads; every process opens its own."""

    def __init__(self, path: Path, *, patience_s: float = PATIENCE_S, migrate: bool = True) -> None:
        """Open the store, creating it or upgrading its schema where that is needed and `migrate` allows it.

        Raises:
            StoreSchemaError: if its schema is not, and cannot be made, the one that this program knows.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.patience_s = patience_s
        self._local = threading.local()
        self._kept: list[Connection] = []
        self._engine = _engine(path, patience_s)
        self._writing = self._engine.execution_options(immediate=True)
        self._single = self._engine.execution_options(single=True)
        try:
            with self.read() as connection:
                current = revision_of(connection) == HEAD
            if not current:
                self._migrate(migrate)
        except BaseException:
            self.close()
            raise

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
        with self._writing.connect() as connection, connection.begin(), _counted(connection):
            yield connection

    def write_once(self, statement: Executable) -> None:
        """One statement that is a transaction by itself, and no change that `changes` counts: no loop waits for it.

        The lock is held while SQLite runs it, and no longer. Between the statements of `write` the interpreter has
        its turn: in a process that gives way to others and computes beside this, that may take seconds, and
        everybody waits.
        """
        if (joined := self._joined()) is not None:
            joined.execute(statement)
            return
        with self._single.connect() as connection:
            connection.execute(statement)

    @contextmanager
    def write_durably(self) -> Iterator[Connection]:
        """`write`, and at its end it is on the disk with all that was committed before: no power cut takes it back.

        Other commits of the last moments it may take, the last ones first; each is whole or not there. This costs a
        wait for the disk. As a part of `together` it is as durable as the whole is.
        """
        if (joined := self._joined()) is not None:
            yield joined
            return
        with self._writing.connect() as connection:
            driver = cast(sqlite3.Connection, connection.connection.driver_connection)
            driver.execute("PRAGMA synchronous=FULL").close()  # a setting of connections, not of transactions
            try:
                with connection.begin(), _counted(connection):
                    yield connection
            finally:
                driver.execute("PRAGMA synchronous=NORMAL").close()

    @contextmanager
    def together(self) -> Iterator[Connection]:
        """One transaction of all that this thread reads and writes inside: committed at its end, or not at all."""
        if (joined := self._joined()) is not None:
            yield joined
            return
        connection = self._own_connection()
        with connection.begin(), _counted(connection):
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

    def changes(self) -> int:
        """A number that is another one after each transaction, of any process, that changed rows.

        Whoever reads it, looks, finds nothing to do and reads the same again need not look again. Not counted are
        heartbeats and the like (`write_once`), and what is written by other means than this class.
        """
        with self.bare() as cursor:
            return int(cursor.execute("PRAGMA user_version").fetchone()[0])

    def close(self) -> None:
        """Close all connections."""
        while self._kept:
            self._kept.pop().close()
        self._engine.dispose()

    def _migrate(self, allowed: bool) -> None:
        """Bring the schema to head in one transaction; of several processes one does it, and the others wait."""
        if not allowed:
            raise StoreSchemaError(
                f"{self.path} has the schema of another version of openclaw-rl: `openclaw-rl up` upgrades it"
            )
        # A table that is made anew is dropped first, which foreign keys would forbid; they are checked at the end.
        engine = _engine(self.path, MIGRATION_PATIENCE_S, foreign_keys=False)
        try:
            with _writing(engine) as connection:
                bring_to_head(connection, str(self.path))
                broken = connection.exec_driver_sql("PRAGMA foreign_key_check").fetchall()
                if broken:
                    raise StoreSchemaError(f"the upgrade of {self.path} would break {len(broken)} references: undone")
        finally:
            engine.dispose()


@contextmanager
def _counted(connection: Connection) -> Iterator[None]:
    """Say that the transaction that goes on in here is a change, if it changed a row."""
    driver = cast(sqlite3.Connection, connection.connection.driver_connection)
    before = driver.total_changes
    yield
    if driver.total_changes != before:  # any other number will do: to count would be one more statement in the lock
        driver.execute(f"PRAGMA user_version={random.getrandbits(_BITS)}").close()


@contextmanager
def _writing(engine: Engine) -> Iterator[Connection]:
    with engine.connect().execution_options(immediate=True) as connection, connection.begin():
        yield connection


def _engine(path: Path, patience_s: float, *, foreign_keys: bool = True) -> Engine:
    engine = create_engine(
        f"sqlite:///{path}",
        connect_args={"timeout": patience_s},
        hide_parameters=True,  # they are what clients wrote, and an error that quotes them ends up in a log
    )

    def on_connect(connection: sqlite3.Connection, _record: object) -> None:
        connection.isolation_level = None  # the driver must not open transactions of its own
        cursor = connection.cursor()
        cursor.execute("PRAGMA journal_mode=WAL")
        cursor.execute("PRAGMA synchronous=NORMAL")
        cursor.execute(f"PRAGMA foreign_keys={'ON' if foreign_keys else 'OFF'}")
        cursor.close()

    event.listen(engine, "connect", on_connect)
    event.listen(engine, "begin", _on_begin)
    return engine


def _on_begin(connection: Connection) -> None:
    options = connection.get_execution_options()
    if not options.get("single", False):
        connection.exec_driver_sql("BEGIN IMMEDIATE" if options.get("immediate", False) else "BEGIN")
