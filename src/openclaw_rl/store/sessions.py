"""Sessions: who opened them, when they were last active, and when they ended."""

from __future__ import annotations

import time

from sqlalchemy import Connection, bindparam, func, select, update
from sqlalchemy.dialects.sqlite import insert

from openclaw_rl.store.database import Database
from openclaw_rl.store.prepared import Prepared
from openclaw_rl.store.schema import sessions, turns

_FIND = Prepared(
    select(sessions.c.session_id)
    .where(
        sessions.c.key_id == bindparam("key_id"),
        sessions.c.owner == bindparam("owner"),
        (sessions.c.client_session_id == bindparam("name")) | (sessions.c.session_id == bindparam("name")),
    )
    .order_by(sessions.c.created_at)
    .limit(1)
)
_OPEN = insert(sessions)
_TOUCH = Prepared(
    _OPEN.on_conflict_do_update(
        index_elements=["session_id"],
        set_={"last_active_at": _OPEN.excluded.last_active_at, "ended_at": None, "end_reason": None},
        where=(sessions.c.key_id == _OPEN.excluded.key_id) & (sessions.c.owner == _OPEN.excluded.owner),
    ),
    columns=["session_id", "key_id", "client_session_id", "created_at", "last_active_at", "owner"],
)
"""Opens a session, or opens it again; touches no row where the session is another key's or another user's."""


class SessionStore:
    """Sessions belong to the key that opened them, and to their owner; no query here crosses either."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def find(self, key_id: str, client_session_id: str, owner: str = "") -> str | None:
        """Our id of the session that this owner's client calls `client_session_id` (or that has it as our id)."""
        with self._database.read() as connection:
            found = _FIND.run(connection, key_id=key_id, name=client_session_id, owner=owner).fetchone()
        return None if found is None else str(found[0])

    def owners(self, limit: int) -> tuple[int, list[tuple[str, float]]]:
        """How many owners ("" is none) have sessions, and the last `limit` that were active, with when."""
        owned = sessions.c.owner != ""
        number = select(func.count(sessions.c.owner.distinct())).where(owned)
        active = func.max(sessions.c.last_active_at)
        last = select(sessions.c.owner, active).where(owned).group_by(sessions.c.owner).order_by(active.desc())
        with self._database.read() as connection:
            found = connection.execute(last.limit(limit))
            return connection.execute(number).scalar_one(), [(str(owner), float(at)) for owner, at in found]

    def spoken_for_by(self, owner: str, *, served: bool = False) -> set[str]:
        """The ids of the keys that have sessions of this owner; `served`: with an answer that was not imported."""
        query = select(sessions.c.key_id).where(sessions.c.owner == owner).distinct()
        if served:
            query = query.join(turns, turns.c.session_id == sessions.c.session_id).where(~turns.c.reconstructed)
        with self._database.read() as connection:
            return set(connection.execute(query).scalars())

    def end(self, key_id: str, session_id: str, reason: str) -> bool:
        """End a session; False where the key has none of that id. Ending an ended one changes nothing."""
        with self._database.write() as connection:
            owned = (sessions.c.session_id == session_id) & (sessions.c.key_id == key_id)
            if connection.execute(select(sessions.c.session_id).where(owned)).first() is None:
                return False
            open_one = owned & sessions.c.ended_at.is_(None)
            connection.execute(update(sessions).where(open_one).values(ended_at=time.time(), end_reason=reason))
            return True

    def end_idle(self, idle_since: float) -> int:
        """End every open session without a request since `idle_since`; how many."""
        idle = sessions.c.ended_at.is_(None) & (sessions.c.last_active_at < idle_since)
        with self._database.read() as connection:  # asked often, seldom true: spare the gateway a write lock
            if connection.execute(select(sessions.c.session_id).where(idle).limit(1)).first() is None:
                return 0
        with self._database.write() as connection:
            result = connection.execute(
                update(sessions).where(idle).values(ended_at=time.time(), end_reason="idle_timeout")
            )
            return result.rowcount

    def quiet_since(self) -> float | None:
        """When the last request came to the open session that has had none for longest; None where none is open."""
        longest = select(func.min(sessions.c.last_active_at)).where(sessions.c.ended_at.is_(None))
        with self._database.read() as connection:
            return connection.execute(longest).scalar()


def touch(
    connection: Connection, session_id: str, key_id: str, client_session_id: str | None, now: float, owner: str = ""
) -> None:
    """Note activity in a session, creating it or opening it again, inside the caller's transaction."""
    touched = _TOUCH.run(
        connection,
        session_id=session_id,
        key_id=key_id,
        client_session_id=client_session_id,
        created_at=now,
        last_active_at=now,
        owner=owner,
    )
    if touched.rowcount == 0:
        raise PermissionError("a session belongs to the key and the user that opened it")
