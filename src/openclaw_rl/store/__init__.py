"""The durable record between the loops. What is not in here did not happen."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from openclaw_rl.store.archive import ArchiveStore
from openclaw_rl.store.database import PATIENCE_S, Database
from openclaw_rl.store.deaths import DeathStore
from openclaw_rl.store.erasure import ErasureStore
from openclaw_rl.store.feedback import FeedbackStore
from openclaw_rl.store.identity import IdentityStore
from openclaw_rl.store.lineage import LineageStore
from openclaw_rl.store.recording import RecordingStore
from openclaw_rl.store.replay import ReplayStore
from openclaw_rl.store.rollouts import RolloutStore
from openclaw_rl.store.samples import SampleStore
from openclaw_rl.store.sessions import SessionStore
from openclaw_rl.store.status import StatusStore
from openclaw_rl.store.turns import TurnStore
from openclaw_rl.store.versions import VersionStore

__all__ = ["Store"]


class Store:
    """The record, in thirteen rooms that share one database. Every method of a room is one transaction,
    unless `together` joins several."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.identity = IdentityStore(database)
        self.sessions = SessionStore(database)
        self.turns = TurnStore(database)
        self.lineage = LineageStore(database)
        self.feedback = FeedbackStore(database)
        self.replay = ReplayStore(database)
        self.samples = SampleStore(database)
        self.deaths = DeathStore(database)
        self.versions = VersionStore(database)
        self.status = StatusStore(database)
        self.archive = ArchiveStore(database)
        self.erasure = ErasureStore(database)
        self.rollouts = RolloutStore(database)
        self.recording = RecordingStore(database)

    @classmethod
    def open(cls, path: Path, *, patience_s: float = PATIENCE_S, migrate: bool = True) -> Store:
        """Open the record at `path`, creating it with the base policy in service where it is new.

        A transaction waits `patience_s` for another process's to end. Without `migrate` nothing is changed.

        Raises:
            StoreSchemaError: if its schema is not, and cannot be made, the one that this program knows.
        """
        store = cls(Database(path, patience_s=patience_s, migrate=migrate))
        if migrate:
            store.identity.ensure()
            store.versions.ensure_base()
        return store

    @property
    def patience_s(self) -> float:
        """How long a transaction waits for another process's to end."""
        return self._database.patience_s

    def changes(self) -> int:
        """A number that is another one once any process has changed what is in here; heartbeats do not count."""
        return self._database.changes()

    @contextmanager
    def together(self) -> Iterator[None]:
        """Make one transaction of all methods that this thread calls inside: all of it is committed, or nothing."""
        with self._database.together():
            yield

    def close(self) -> None:
        """Close all connections of this process."""
        self._database.close()
