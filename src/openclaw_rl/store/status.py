"""What the loops say of themselves, counters, spans, and the counts that `status` shows."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, select, update
from sqlalchemy.dialects.sqlite import insert

from openclaw_rl.store.counting import count
from openclaw_rl.store.database import Database
from openclaw_rl.store.schema import counters, judgements, loops, requests, samples, sessions, spans, turns
from openclaw_rl.types import LoopName, LoopStatus


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """A stretch of wall-clock time (seconds since the epoch); `ended_at` is None while it lasts."""

    name: str
    started_at: float
    ended_at: float | None
    details: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Counts:
    """How much of everything there is, by state and by reason."""

    sessions: int
    turns_by_state: Mapping[str, int]
    turns_by_reason: Mapping[str, int]
    judgements: int
    hints: int
    samples_by_state: Mapping[str, int]
    counters: Mapping[str, int]


class StatusStore:
    """Written by every loop, read by `status` and the live view."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def report(self, status: LoopStatus) -> None:
        """Replace what a loop last said of itself."""
        values = {
            "loop": status.loop.value,
            "pid": status.pid,
            "heartbeat_at": status.heartbeat_at,
            "activity": status.activity,
            "waiting_for": status.waiting_for,
            "since": status.since,
            "details": dict(status.details),
        }
        statement = insert(loops).values(values)
        self._database.write_once(statement.on_conflict_do_update(index_elements=["loop"], set_=values))

    def loops(self) -> list[LoopStatus]:
        """What each loop last said of itself."""
        with self._database.read() as connection:
            rows = connection.execute(loops.select()).mappings()
            return [LoopStatus(**{**row, "loop": LoopName(row["loop"])}) for row in rows]

    @contextmanager
    def span(self, name: str, **details: Any) -> Iterator[None]:
        """Record when something began and ended, on the wall clock that clients share."""
        with self._database.write() as connection:
            result = connection.execute(spans.insert().values(name=name, started_at=time.time(), details=details))
            span_id = result.inserted_primary_key[0]  # type: ignore[index]
        try:
            yield
        finally:
            self._database.write_once(update(spans).where(spans.c.span_id == span_id).values(ended_at=time.time()))

    def abort_spans(self, names: Collection[str], loop: LoopName) -> int:
        """Close the spans that a killed process of this loop left open, with `aborted` in their details; how many.

        They ended when the loop was last heard of (now, where it never was): call it before the new process reports.
        """
        heard = select(loops.c.heartbeat_at).where(loops.c.loop == loop.value)
        left_open = select(spans).where(spans.c.ended_at.is_(None), spans.c.name.in_(names))
        with self._database.write() as connection:
            last = connection.execute(heard).scalar() or time.time()
            found = list(connection.execute(left_open))
            for span in found:
                ended = {"ended_at": max(last, span.started_at), "details": {**span.details, "aborted": True}}
                connection.execute(update(spans).where(spans.c.span_id == span.span_id).values(ended))
            return len(found)

    def spans(self, name: str | None = None) -> list[Span]:
        """Spans, the first first; all of them, or those of one name."""
        query = select(spans.c.name, spans.c.started_at, spans.c.ended_at, spans.c.details)
        if name is not None:
            query = query.where(spans.c.name == name)
        with self._database.read() as connection:
            return [Span(**row) for row in connection.execute(query.order_by(spans.c.span_id)).mappings()]

    def in_span(self, name: str) -> bool:
        """Whether a span of this name goes on now."""
        query = select(spans.c.span_id).where(spans.c.name == name, spans.c.ended_at.is_(None)).limit(1)
        with self._database.read() as connection:
            return connection.execute(query).first() is not None

    def last_request_at(self) -> float | None:
        """When the last request came, in seconds since the epoch; None if none ever did."""
        with self._database.read() as connection:
            return connection.execute(select(func.max(requests.c.created_at))).scalar()

    def count(self, name: str, by: int = 1) -> None:
        """Add to a counter."""
        with self._database.write() as connection:
            count(connection, name, by)

    def counts(self) -> Counts:
        """All counts, from one consistent view."""
        with self._database.read() as connection:

            def by(column: Any) -> dict[str, int]:
                query = select(column, func.count()).where(column.is_not(None)).group_by(column)
                return {row[0]: row[1] for row in connection.execute(query)}

            def number(query: Any) -> int:
                return int(connection.execute(query).scalar_one())

            return Counts(
                sessions=number(select(func.count()).select_from(sessions)),
                turns_by_state=by(turns.c.state),
                turns_by_reason=by(turns.c.reason),
                judgements=number(select(func.count()).select_from(judgements)),
                hints=number(select(func.count()).select_from(judgements).where(judgements.c.hint.is_not(None))),
                samples_by_state=by(samples.c.state),
                counters={row.name: row.value for row in connection.execute(counters.select())},
            )
