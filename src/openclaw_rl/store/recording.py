"""What the conversation records have to say still: turns and judgements without a line, and those that have one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import RowMapping, func, select, update

from openclaw_rl.store.database import Database
from openclaw_rl.store.schema import counters, judgements, recorded, requests, sessions, turns

Row = RowMapping


@dataclass(frozen=True, kw_only=True, slots=True)
class Growth:
    """Counters that change whenever there may be something to write. What is imported may be of any age."""

    served: int
    imported: int
    judged: int
    rated: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Unwritten:
    """Turns as they were served, and judgements of turns that have their line, each in the order they came."""

    turns: tuple[Row, ...]
    judgements: tuple[Row, ...]


class RecordingStore:
    """Which lines were written is kept here, beside what they are about: deleted with it, and right after a crash."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def growth(self) -> Growth:
        """The counters by which a writer knows that it may rest: cheap to ask for, however much there is."""
        names = ("turns_served", "turns_imported", "judgements", "feedback")
        query = select(counters.c.name, counters.c.value).where(counters.c.name.in_(names))
        with self._database.read() as connection:
            found = {row.name: row.value for row in connection.execute(query)}
        served, imported, judged, rated = (found.get(name, 0) for name in names)
        return Growth(served=served, imported=imported, judged=judged, rated=rated)

    def unwritten(self, *, since: float, limit: int) -> Unwritten:
        """What has no line yet: turns asked for since then, and judgements once no turn is left.

        Reconstructed turns were not served here, and have none.
        """
        new_turns = (
            select(requests, sessions.c.client_session_id, turns.c.answer, turns.c.finish_reason, turns.c.versions)
            .add_columns(turns.c.served_at)
            .join(turns, turns.c.turn_id == requests.c.turn_id)
            .join(sessions, sessions.c.session_id == requests.c.session_id)
            .outerjoin(recorded, recorded.c.turn_id == requests.c.turn_id)
            .where(requests.c.created_at >= since, recorded.c.turn_id.is_(None), ~turns.c.reconstructed)
            .order_by(turns.c.served_at, turns.c.turn_id)
            .limit(limit)
        )
        newest = select(func.coalesce(func.max(recorded.c.judgement_id), 0)).scalar_subquery()
        new_judgements = (
            select(judgements, turns.c.session_id, turns.c.next_state)
            .join(recorded, recorded.c.turn_id == judgements.c.turn_id)
            .join(turns, turns.c.turn_id == judgements.c.turn_id)
            .where(judgements.c.judgement_id > newest)
            .order_by(judgements.c.judgement_id)
            .limit(limit)
        )
        with self._database.read() as connection:
            served = tuple(connection.execute(new_turns).mappings())
            judged = () if served else tuple(connection.execute(new_judgements).mappings())
            return Unwritten(turns=served, judgements=judged)

    def written(self, turn_ids: Sequence[str], judged: Sequence[tuple[str, int]]) -> None:
        """These turns, and these judgements as (turn id, judgement id), have their lines now."""
        with self._database.write() as connection:
            there = select(turns.c.turn_id)
            for turn_id in turn_ids:
                if connection.execute(there.where(turns.c.turn_id == turn_id)).first() is not None:
                    connection.execute(recorded.insert().values(turn_id=turn_id, judgement_id=0))
            for turn_id, judgement_id in judged:
                row = update(recorded).where(recorded.c.turn_id == turn_id)
                connection.execute(row.values(judgement_id=judgement_id))
