"""Policy versions: which one is in service, which were, and which a person wants to keep there."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

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

ROLLED_BACK = "rolled_back"
"""Why a candidate never serves that waited while a person went back to an earlier version."""


class BasisChanged(Exception):
    """What was to be built on the version in service was built on another."""


class Pinned(Exception):
    """Another version is pinned: this one cannot take its place."""


def serving_version(connection: Connection) -> int:
    """The version in service, as seen by the caller's transaction."""
    query = select(versions.c.version).where(versions.c.state == VersionState.SERVING.value)
    return int(connection.execute(query).scalar_one())


def insert_version(connection: Connection, version: PolicyVersion) -> None:
    """A new version's row, inside the caller's transaction."""
    connection.execute(
        versions.insert().values(
            version=version.version,
            state=version.state.value,
            state_since=version.created_at,
            path=version.path,
            step=version.step,
            created_at=version.created_at,
            reason=version.reason,
        )
    )


def _move(connection: Connection, version: int, new: VersionState, **values: Any) -> None:
    old = connection.execute(select(versions.c.state).where(versions.c.version == version)).scalar_one()
    check_transition(VERSION_TRANSITIONS, VersionState(old), new)
    connection.execute(
        update(versions)
        .where(versions.c.version == version)
        .values(state=new.value, state_since=time.time(), **values)
    )


def _pinned_version(connection: Connection) -> int | None:
    found = connection.execute(select(versions.c.version).where(versions.c.pinned_at.is_not(None))).scalar()
    return None if found is None else int(found)


def _serve(connection: Connection, version: int) -> None:
    before = serving_version(connection)
    if before != version:
        _move(connection, before, VersionState.RETIRED)
        _move(connection, version, VersionState.SERVING)


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
            base = PolicyVersion(
                version=BASE_VERSION, state=VersionState.SERVING, path=None, step=0, created_at=time.time()
            )
            insert_version(connection, base)

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

    def pinned(self) -> PolicyVersion | None:
        """The version that a person keeps in service, if there is one."""
        query = versions.select().where(versions.c.pinned_at.is_not(None))
        with self._database.read() as connection:
            row = connection.execute(query).mappings().first()
            return None if row is None else version_from(row)

    def states_since(self) -> Mapping[int, float]:
        """Since when each version has been in its state, by version."""
        with self._database.read() as connection:
            rows = connection.execute(select(versions.c.version, versions.c.state_since))
            return {row.version: row.state_since for row in rows}

    def serve(self, version: int) -> None:
        """Put a candidate into service; the one before it retires.

        Raises:
            Pinned: a person keeps another version in service; the candidate goes on waiting.
        """
        with self._database.write() as connection:
            pinned = _pinned_version(connection)
            if pinned not in {None, version}:
                raise Pinned(f"policy-v{pinned}" if pinned else "base")
            _serve(connection, version)

    def roll_back(self, version: int) -> None:
        """Put an earlier version into service again, for the next request; a pin on another one is lifted.

        Candidates that wait are rejected: they build on what is being gone back from.

        Raises:
            InvalidTransition: the version is a candidate, or was rejected.
        """
        with self._database.write() as connection:
            _roll_back(connection, version)

    def pin(self, version: int) -> None:
        """Serve a version, as `roll_back` does, and keep it in service until it is unpinned."""
        with self._database.write() as connection:
            _roll_back(connection, version)
            connection.execute(update(versions).where(versions.c.version == version).values(pinned_at=time.time()))

    def unpin(self) -> None:
        """Let newer versions take over again."""
        with self._database.write() as connection:
            _unpin(connection)

    def reject(self, version: int, reason: str) -> None:
        """A candidate that will never serve."""
        with self._database.write() as connection:
            _move(connection, version, VersionState.REJECTED, reason=reason)


def _roll_back(connection: Connection, version: int) -> None:
    _serve(connection, version)
    _unpin(connection, but=version)
    waiting = select(versions.c.version).where(versions.c.state == VersionState.CANDIDATE.value)
    for candidate in list(connection.execute(waiting).scalars()):
        _move(connection, candidate, VersionState.REJECTED, reason=ROLLED_BACK)


def _unpin(connection: Connection, *, but: int | None = None) -> None:
    pinned = versions.c.pinned_at.is_not(None)
    others = pinned if but is None else pinned & (versions.c.version != but)
    connection.execute(update(versions).where(others).values(pinned_at=None))
