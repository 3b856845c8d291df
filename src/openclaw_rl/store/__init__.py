"""The durable record between the loops. What is not in here did not happen."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from openclaw_rl.store.database import Database
from openclaw_rl.store.feedback import FeedbackStore
from openclaw_rl.store.lineage import LineageStore
from openclaw_rl.store.samples import SampleStore
from openclaw_rl.store.sessions import SessionStore
from openclaw_rl.store.status import StatusStore
from openclaw_rl.store.turns import TurnStore
from openclaw_rl.store.versions import VersionStore

__all__ = ["Store"]


class Store:
    """The record, in seven rooms that share one database. Every method of a room is one transaction,
    unless `together` joins several."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.sessions = SessionStore(database)
        self.turns = TurnStore(database)
        self.lineage = LineageStore(database)
        self.feedback = FeedbackStore(database)
        self.samples = SampleStore(database)
        self.versions = VersionStore(database)
        self.status = StatusStore(database)

    @classmethod
    def open(cls, path: Path) -> Store:
        """Open the record at `path`, creating it with the base policy in service where it is new."""
        store = cls(Database(path))
        store.versions.ensure_base()
        return store

    @contextmanager
    def together(self) -> Iterator[None]:
        """Make one transaction of all methods that this thread calls inside: all of it is committed, or nothing."""
        with self._database.together():
            yield

    def close(self) -> None:
        """Close all connections of this process."""
        self._database.close()
