"""When the lock of the store is held."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

import pytest
from sqlalchemy import event
from sqlalchemy.exc import IntegrityError, OperationalError

from openclaw_rl.store import Store
from openclaw_rl.store.database import Database
from openclaw_rl.store.schema import loops
from openclaw_rl.types import LoopName, LoopStatus

HEARTBEAT = LoopStatus(
    loop=LoopName.TRAINING, pid=1, heartbeat_at=1.0, activity="a step", waiting_for=None, since=1.0, details={}
)
SAID = loops.insert().values(
    loop="rollout", pid=1, heartbeat_at=1.0, activity="a turn", waiting_for=None, since=1.0, details={}
)


def test_one_statement_is_a_transaction_by_itself(path: Path) -> None:
    """What a loop says of itself holds the lock for no turn of the interpreter: it is one statement, committed."""
    database, sent = Database(path), []
    event.listen(database._engine, "before_cursor_execute", lambda *seen: sent.append(seen[2].split()[0]))
    try:
        database.write_once(SAID)
        assert sent == ["INSERT"]
        with sqlite3.connect(path) as other:
            assert other.execute("select loop from loops").fetchall() == [("rollout",)]
    finally:
        database.close()


def test_it_belongs_to_the_transaction_that_it_is_sent_in(path: Path) -> None:
    database = Database(path)
    try:
        with pytest.raises(IntegrityError):
            _twice(database)
        with database.read() as connection:
            assert connection.execute(loops.select()).first() is None
    finally:
        database.close()


def _twice(database: Database) -> None:
    with database.together():
        database.write_once(SAID)
        database.write_once(SAID)


def test_it_waits_for_the_lock_as_long_as_every_transaction_does(path: Path) -> None:
    store = Store.open(path, patience_s=0.3)
    try:
        with sqlite3.connect(path, isolation_level=None) as other:
            other.execute("BEGIN IMMEDIATE")
            begin = time.monotonic()
            with pytest.raises(OperationalError, match="locked"):
                store.status.report(HEARTBEAT)
            assert time.monotonic() - begin >= 0.25
            other.execute("ROLLBACK")
        store.status.report(HEARTBEAT)
        assert [one.pid for one in store.status.loops()] == [1]
    finally:
        store.close()
