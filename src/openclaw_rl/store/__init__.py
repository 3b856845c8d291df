"""The durable record between the loops. What is not in here did not happen."""

from __future__ import annotations

from pathlib import Path

from openclaw_rl.store.archive import ArchiveStore
from openclaw_rl.store.database import Database
from openclaw_rl.store.erasure import ErasureStore
from openclaw_rl.store.feedback import FeedbackStore
from openclaw_rl.store.lineage import LineageStore
from openclaw_rl.store.recording import RecordingStore
from openclaw_rl.store.samples import SampleStore
from openclaw_rl.store.sessions import SessionStore
from openclaw_rl.store.status import StatusStore
from openclaw_rl.store.turns import TurnStore
from openclaw_rl.store.versions import VersionStore

__all__ = ["Store"]


class Store:
    """The record, in ten rooms that share one database. Every method of a room is one transaction."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.sessions = SessionStore(database)
        self.turns = TurnStore(database)
        self.lineage = LineageStore(database)
        self.feedback = FeedbackStore(database)
        self.samples = SampleStore(database)
        self.versions = VersionStore(database)
        self.status = StatusStore(database)
        self.archive = ArchiveStore(database)
        self.erasure = ErasureStore(database)
        self.recording = RecordingStore(database)

    @classmethod
    def open(cls, path: Path) -> Store:
        """Open the record at `path`, creating it with the base policy in service where it is new."""
        store = cls(Database(path))
        store.versions.ensure_base()
        return store

    def close(self) -> None:
        """Close all connections of this process."""
        self._database.close()
