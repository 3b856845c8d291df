"""Counters, inside the transaction of what they count."""

from __future__ import annotations

from sqlalchemy import Connection
from sqlalchemy.dialects.sqlite import insert

from openclaw_rl.store.prepared import Prepared
from openclaw_rl.store.schema import counters

_ADD = insert(counters)
_COUNT = Prepared(
    _ADD.on_conflict_do_update(index_elements=["name"], set_={"value": counters.c.value + _ADD.excluded.value}),
    columns=["name", "value"],
)


def count(connection: Connection, name: str, by: int = 1) -> None:
    """Add `by` to a counter, which starts at 0."""
    _COUNT.run(connection, name=name, value=by)
