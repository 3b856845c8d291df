"""Deleting sessions with all that came of them, down to the bytes of the file.

A deleted row leaves its bytes in three places: in free space of the database's pages, in free pages, and in the
write-ahead log. `scrub` rewrites the file (VACUUM) and empties the log, so that nothing of them is left.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, select

from openclaw_rl.store.archive import pieces
from openclaw_rl.store.counting import count
from openclaw_rl.store.database import Database
from openclaw_rl.store.schema import counters, metadata, requests, samples, turns
from openclaw_rl.types import SampleState

SCRUB_TIMEOUT_S = 60.0
_RETRY_S = 0.1
_UNSCRUBBED = "deletions_not_scrubbed"


class BeingTrained(RuntimeError):
    """Samples of the sessions are claimed for a training step, by a trainer that was heard of within its lease."""

    def __init__(self, turn_ids: Sequence[str]) -> None:
        super().__init__(f"{len(turn_ids)} of its samples are in a training step that is running")
        self.turn_ids = tuple(turn_ids)


class NotScrubbed(RuntimeError):
    """The rows are gone, but others kept the file so busy that their bytes are still in it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Deleted:
    """How many rows of what are gone."""

    sessions: int
    requests: int
    turns: int
    judgements: int
    samples: int


class ErasureStore:
    """Deletes rows in one transaction; then the bytes."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def delete(self, session_ids: Sequence[str], *, trainer_lives: bool) -> Deleted:
        """Delete these sessions and all that hangs on them, in one transaction.

        While a deployment lives (`trainer_lives`: its `up` does), its trainer is not robbed of what it trains: its
        step would end in nothing. A claim counts to the end of its lease, which a trainer renews as it goes on: one
        that is dead, or silent for longer than `training.lease_s`, holds nothing any more. An answer in flight is
        served, and finds no request to be recorded under.

        Raises:
            BeingTrained: nothing was deleted.
        """
        with self._database.write() as connection:
            if trainer_lives and (claimed := _claimed(connection, session_ids)):
                raise BeingTrained(claimed)
            numbers = {table.name: 0 for table in metadata.tables.values()}
            for session_id in session_ids:
                _delete_session(connection, session_id, numbers)
            for name in ("sessions", "turns"):
                if numbers[name]:
                    count(connection, f"{name}_deleted", numbers[name])
            if numbers["sessions"]:
                count(connection, _UNSCRUBBED)
            return Deleted(**{name: numbers[name] for name in Deleted.__dataclass_fields__})

    def unscrubbed(self) -> bool:
        """Whether bytes of deleted rows may be in the file still."""
        query = select(counters.c.value).where(counters.c.name == _UNSCRUBBED)
        with self._database.read() as connection:
            return bool(connection.execute(query).scalar())

    def scrub(self, timeout_s: float = SCRUB_TIMEOUT_S) -> None:
        """Rewrite the file without free space and empty its log, while others have it open.

        Writers wait meanwhile, about a second for each 100 MB.

        Raises:
            NotScrubbed: readers or writers left no moment for it.
        """
        deadline = time.monotonic() + timeout_s
        with self._database.bare() as cursor:
            while not (_vacuumed(cursor) and _log_emptied(cursor)):
                if time.monotonic() >= deadline:
                    raise NotScrubbed(f"the store was busy for {timeout_s:.0f} s")
                time.sleep(_RETRY_S)
        with self._database.write() as connection:
            connection.execute(counters.delete().where(counters.c.name == _UNSCRUBBED))


def _claimed(connection: Connection, session_ids: Sequence[str]) -> list[str]:
    query = (
        select(samples.c.turn_id)
        .join(turns, turns.c.turn_id == samples.c.turn_id)
        .where(samples.c.state == SampleState.CLAIMED.value, samples.c.lease_until > time.time())
    )
    found: list[str] = []
    for ids in pieces(session_ids):
        found += connection.execute(query.where(turns.c.session_id.in_(ids))).scalars()
    return found


def _delete_session(connection: Connection, session_id: str, numbers: dict[str, int]) -> None:
    """Delete from every table that knows sessions or turns, what refers to a row before the row."""
    mine = list(connection.execute(select(requests.c.turn_id).where(requests.c.session_id == session_id)).scalars())
    for table in reversed(metadata.sorted_tables):
        if "session_id" in table.c:
            deleted = connection.execute(table.delete().where(table.c.session_id == session_id))
            numbers[table.name] += deleted.rowcount
        elif "turn_id" in table.c:
            for ids in pieces(mine):
                numbers[table.name] += connection.execute(table.delete().where(table.c.turn_id.in_(ids))).rowcount


def _vacuumed(cursor: sqlite3.Cursor) -> bool:
    try:
        cursor.execute("VACUUM")
    except sqlite3.OperationalError as error:
        if not _busy(error):
            raise
        return False
    return True


def _log_emptied(cursor: sqlite3.Cursor) -> bool:
    """Whether every page of the log is in the database now and the log has no bytes left."""
    try:
        busy, _, _ = cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    except sqlite3.OperationalError as error:
        if not _busy(error):
            raise
        return False
    return not busy


def _busy(error: sqlite3.OperationalError) -> bool:
    return error.sqlite_errorcode & 0xFF in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
