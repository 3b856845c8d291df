"""Policy versions: which one is in service, and which were."""

from __future__ import annotations

import time

from sqlalchemy import Connection, func, select, update

from openclaw_rl.store.database import Database
from openclaw_rl.store.rows import version_from
from openclaw_rl.store.schema import versions
from openclaw_rl.types import (
    BASE_VERSION,
    VERSION_TRANSITIONS,
    PolicyVersion,
    VersionState,
    check_transition,
)


def _move(connection: Connection, version: int, new: VersionState) -> None:
    old = connection.execute(select(versions.c.state).where(versions.c.version == version)).scalar_one()
    check_transition(VERSION_TRANSITIONS, VersionState(old), new)
    connection.execute(
        update(versions).where(versions.c.version == version).values(state=new.value, state_since=time.time())
    )


class VersionStore:
    """Exactly one version is `serving` at any moment."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def ensure_base(self) -> None:
        """Version 0, the base, is in service until something better is."""
        any_version = select(func.count()).select_from(versions)
        with self._database.read() as connection:  # so that a record that cannot be written now can be opened
            if connection.execute(any_version).scalar_one():
                return
        with self._database.write() as connection:
            if connection.execute(any_version).scalar_one():
                return
            now = time.time()
            connection.execute(
                versions.insert().values(
                    version=BASE_VERSION,
                    state=VersionState.SERVING.value,
                    state_since=now,
                    path=None,
                    step=0,
                    created_at=now,
                )
            )

    def serving(self) -> PolicyVersion:
        """The version that new requests get."""
        query = versions.select().where(versions.c.state == VersionState.SERVING.value)
        with self._database.read() as connection:
            return version_from(connection.execute(query).mappings().one())

    def get(self, version: int) -> PolicyVersion | None:
        """One version, in whatever state."""
        with self._database.read() as connection:
            row = connection.execute(versions.select().where(versions.c.version == version)).mappings().first()
            return None if row is None else version_from(row)

    def all(self) -> list[PolicyVersion]:
        """Every version, the first first."""
        with self._database.read() as connection:
            rows = connection.execute(versions.select().order_by(versions.c.version)).mappings()
            return [version_from(row) for row in rows]

    def serve(self, version: int) -> None:
        """Put a candidate (or, by a rollback, a retired version) into service; the one before it retires."""
        with self._database.write() as connection:
            serving = select(versions.c.version).where(versions.c.state == VersionState.SERVING.value)
            before = connection.execute(serving).scalar_one()
            if before == version:
                return
            _move(connection, before, VersionState.RETIRED)
            _move(connection, version, VersionState.SERVING)

    def reject(self, version: int) -> None:
        """A candidate that will never serve."""
        with self._database.write() as connection:
            _move(connection, version, VersionState.REJECTED)
