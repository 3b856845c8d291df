"""Policy versions: which one is in service, which were, and which a person wants to keep there."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy import Connection, func, select, update

from openclaw_rl.store.database import Database
from openclaw_rl.store.rows import version_from
from openclaw_rl.store.schema import base_pins, versions
from openclaw_rl.types import (
    BASE_VERSION,
    VERSION_TRANSITIONS,
    PolicyVersion,
    VersionState,
    check_transition,
)

ROLLED_BACK = "rolled_back"
"""Why a version was taken out of service, or never serves: a person went back to an earlier one."""


class BasisChanged(Exception):
    """What was to be built on the version in service was built on another."""


class Pinned(Exception):
    """Another version is pinned: this one cannot take its place."""


def serving_version(connection: Connection, owner: str = "") -> int:
    """The owner's version in service, as seen by the caller's transaction; the base where it has none."""
    query = select(versions.c.version).where(
        versions.c.owner == owner, versions.c.state == VersionState.SERVING.value
    )
    found = connection.execute(query).scalar_one_or_none()
    return BASE_VERSION if found is None else int(found)


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
            basis=version.basis,
            owner=version.owner,
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


def _pinned_version(connection: Connection, owner: str) -> int | None:
    query = select(versions.c.version).where(versions.c.owner == owner, versions.c.pinned_at.is_not(None))
    found = connection.execute(query).scalar()
    if found is None and owner:
        pinned = connection.execute(select(base_pins.c.owner).where(base_pins.c.owner == owner)).scalar()
        return None if pinned is None else BASE_VERSION
    return None if found is None else int(found)


def _owner_of(connection: Connection, version: int) -> str:
    return str(connection.execute(select(versions.c.owner).where(versions.c.version == version)).scalar_one())


def _serve(connection: Connection, version: int, owner: str) -> None:
    """Serve it to its owner. The base has a state for the shared policy only: to others it is what is left."""
    before = serving_version(connection, owner)
    if before == version:
        return
    if before != BASE_VERSION or not owner:
        _move(connection, before, VersionState.RETIRED)
    if version != BASE_VERSION or not owner:
        _move(connection, version, VersionState.SERVING, reason=None)


class VersionStore:
    """Exactly one version is `serving` at any moment to each owner of a policy: one of its own, or the base.

    A version belongs to one owner, "" being the shared policy; version numbers are unique among all.
    """

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

    def serving(self, owner: str = "") -> PolicyVersion:
        """The version that new requests of this owner get: the base where it has none of its own."""
        with self._database.read() as connection:
            query = versions.select().where(versions.c.version == serving_version(connection, owner))
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

    def pinned(self, owner: str = "") -> PolicyVersion | None:
        """The version that a person keeps in service for this owner, if there is one."""
        with self._database.read() as connection:
            pinned = _pinned_version(connection, owner)
            if pinned is None:
                return None
            row = connection.execute(versions.select().where(versions.c.version == pinned)).mappings().one()
            return version_from(row)

    def pinned_owners(self) -> set[str]:
        """The owners for whom a version is kept in service."""
        with self._database.read() as connection:
            own = connection.execute(select(versions.c.owner).where(versions.c.pinned_at.is_not(None))).scalars()
            return {*own, *connection.execute(select(base_pins.c.owner)).scalars()}

    def kept_at_base(self) -> set[str]:
        """Those of them who are kept at the base; "", the shared policy, is told by the base's own row instead."""
        with self._database.read() as connection:
            return set(connection.execute(select(base_pins.c.owner)).scalars())

    def of(self, owner: str) -> list[PolicyVersion]:
        """The owner's own versions, the first first; the base is among those of the shared policy."""
        query = versions.select().where(versions.c.owner == owner).order_by(versions.c.version)
        with self._database.read() as connection:
            return [version_from(row) for row in connection.execute(query).mappings()]

    def candidates(self) -> list[PolicyVersion]:
        """Those that are committed and not yet in service, whoever's, the first first."""
        query = versions.select().where(versions.c.state == VersionState.CANDIDATE.value)
        with self._database.read() as connection:
            return [version_from(row) for row in connection.execute(query.order_by(versions.c.version)).mappings()]

    def owners(self) -> set[str]:
        """Whoever has a version, whatever its state."""
        with self._database.read() as connection:
            return set(connection.execute(select(versions.c.owner).distinct()).scalars())

    def states_since(self) -> Mapping[int, float]:
        """Since when each version has been in its state, by version."""
        with self._database.read() as connection:
            rows = connection.execute(select(versions.c.version, versions.c.state_since))
            return {row.version: row.state_since for row in rows}

    def serve(self, version: int) -> None:
        """Put a candidate into service for its owner; the one before it retires.

        Raises:
            Pinned: a person keeps another version in service; the candidate goes on waiting.
        """
        with self._database.write() as connection:
            owner = _owner_of(connection, version)
            pinned = _pinned_version(connection, owner)
            if pinned not in {None, version}:
                raise Pinned(f"policy-v{pinned}" if pinned else "base")
            _serve(connection, version, owner)

    def roll_back(
        self,
        version: int,
        owner: str | None = None,
        *,
        reason: str = ROLLED_BACK,
        given_up: Collection[int] | None = None,
    ) -> None:
        """Put an earlier version into service again, for the next request; a pin on another one is lifted.

        What is gone back from, and past, keeps the reason, and is not taken up again unless somebody puts it into
        service.
        Candidates that wait are rejected: they build on it.

        Args:
            version: what serves from now on.
            owner: to whom; None: whose the version is. To be said for the base, which is everybody's.
            reason: why.
            given_up: which of the retired versions above it keep the reason; None: all of them.

        Raises:
            InvalidTransition: the version is a candidate, or was rejected.
            PermissionError: it is another owner's.
            Pinned: with `given_up`, that is, for damage: a version is pinned by now, and only a person lifts that.
        """
        with self._database.write() as connection:
            _roll_back(connection, version, _served_to(connection, version, owner), reason, given_up)

    def pin(self, version: int, owner: str | None = None) -> None:
        """Serve a version, as `roll_back` does, and keep it in service until it is unpinned."""
        now = time.time()
        with self._database.write() as connection:
            to = _served_to(connection, version, owner)
            _roll_back(connection, version, to, ROLLED_BACK)
            if version == BASE_VERSION and to:
                connection.execute(base_pins.delete().where(base_pins.c.owner == to))
                connection.execute(base_pins.insert().values(owner=to, pinned_at=now))
            else:
                connection.execute(update(versions).where(versions.c.version == version).values(pinned_at=now))

    def unpin(self, owner: str = "") -> None:
        """Let newer versions take over again."""
        with self._database.write() as connection:
            _unpin(connection, owner)

    def reject(self, version: int, reason: str) -> None:
        """A candidate that will never serve."""
        with self._database.write() as connection:
            _move(connection, version, VersionState.REJECTED, reason=reason)


def _served_to(connection: Connection, version: int, owner: str | None) -> str:
    """Whom a version is to serve: its owner, or anybody where it is the base."""
    own = _owner_of(connection, version)
    if owner is None or owner == own:
        return own
    if version != BASE_VERSION:
        raise PermissionError(f"policy-v{version} is not a version of that owner")
    return owner


def _roll_back(
    connection: Connection, version: int, owner: str, reason: str, given_up: Collection[int] | None = None
) -> None:
    pinned = _pinned_version(connection, owner)
    if given_up is not None and pinned is not None:
        raise Pinned(f"policy-v{pinned}" if pinned else "base")
    before = serving_version(connection, owner)
    _serve(connection, version, owner)
    if before > version:
        past = (versions.c.owner == owner) & (versions.c.version > version) & versions.c.reason.is_(None)
        retired = versions.c.state == VersionState.RETIRED.value
        if given_up is not None:
            past &= versions.c.version.in_(given_up)
        connection.execute(update(versions).where(past & retired).values(reason=reason))
    _unpin(connection, owner, but=version)
    waiting = select(versions.c.version).where(
        versions.c.owner == owner, versions.c.state == VersionState.CANDIDATE.value
    )
    for candidate in list(connection.execute(waiting).scalars()):
        _move(connection, candidate, VersionState.REJECTED, reason=reason)


def _unpin(connection: Connection, owner: str, *, but: int | None = None) -> None:
    if but != BASE_VERSION:
        connection.execute(base_pins.delete().where(base_pins.c.owner == owner))
    pinned = versions.c.pinned_at.is_not(None) & (versions.c.owner == owner)
    others = pinned if but is None else pinned & (versions.c.version != but)
    connection.execute(update(versions).where(others).values(pinned_at=None))
