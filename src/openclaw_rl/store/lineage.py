"""What lineage asks of the record: earlier requests like this one, and what users did about answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, bindparam, select

from openclaw_rl.rollout.attempts import EarlierRequest
from openclaw_rl.store.counting import count
from openclaw_rl.store.database import Database
from openclaw_rl.store.prepared import Prepared
from openclaw_rl.store.schema import requests, signals
from openclaw_rl.types import Signal, SignalKind, TurnType

MAX_EARLIER = 64
"""A group of rollouts can be large; only its latest members matter here."""


_EARLIER_FIELDS = tuple(EarlierRequest.__dataclass_fields__)
_EARLIER = (
    select(*[requests.c[name] for name in _EARLIER_FIELDS]).order_by(requests.c.created_at.desc()).limit(MAX_EARLIER)
)
# Every request asks one of them.
_SAME_BODY = Prepared(
    _EARLIER.where(
        requests.c.key_id == bindparam("key_id"),
        requests.c.owner == bindparam("owner"),
        requests.c.body_hash == bindparam("body_hash"),
        requests.c.created_at >= bindparam("since"),
    )
)
_SAME_STEM = Prepared(
    _EARLIER.where(requests.c.session_id == bindparam("session_id"), requests.c.stem_hash == bindparam("stem_hash"))
)


class LineageStore:
    """Look-ups within one key, and for one owner."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def same_body(self, key_id: str, body_hash: str, *, since: float, owner: str = "") -> list[EarlierRequest]:
        """Requests of this key and owner with these messages, the latest first."""
        return self._run(_SAME_BODY, {"key_id": key_id, "body_hash": body_hash, "since": since, "owner": owner})

    def same_stem(self, session_id: str, stem_hash: str) -> list[EarlierRequest]:
        """Requests of a session with this history before their question, the latest first.

        Those with the same messages are among them.
        """
        return self._run(_SAME_STEM, {"session_id": session_id, "stem_hash": stem_hash})

    def signals(self, turn_id: str) -> tuple[Signal, ...]:
        """What was done about one answer, the first first."""
        with self._database.read() as connection:
            return signals_of(connection, [turn_id]).get(turn_id, ())

    def _run(self, query: Prepared, values: dict[str, Any]) -> list[EarlierRequest]:
        with self._database.read() as connection:
            rows = query.run(connection, **values).fetchall()
        found = (dict(zip(_EARLIER_FIELDS, row, strict=True)) for row in rows)
        return [EarlierRequest(**{**values, "turn_type": TurnType(values["turn_type"])}) for values in found]


def add_signal(connection: Connection, kind: SignalKind, turn_id: str, by_turn_id: str | None, now: float) -> None:
    """Record a signal, inside the caller's transaction, and count it."""
    connection.execute(
        signals.insert().values(turn_id=turn_id, kind=kind.value, by_turn_id=by_turn_id, created_at=now)
    )
    count(connection, f"signals_{kind.value}")


def signals_of(connection: Connection, turn_ids: Sequence[str]) -> dict[str, tuple[Signal, ...]]:
    """The signals of these turns."""
    query = select(signals).where(signals.c.turn_id.in_(turn_ids)).order_by(signals.c.signal_id)
    found: dict[str, tuple[Signal, ...]] = {}
    for row in connection.execute(query):
        signal = Signal(kind=SignalKind(row.kind), by_turn_id=row.by_turn_id, created_at=row.created_at)
        found[row.turn_id] = (*found.get(row.turn_id, ()), signal)
    return found
