"""How often the trainer died over a sample, and at what: so that what kills it is found and does not come again."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.dialects.sqlite import insert

from openclaw_rl.store.counting import count
from openclaw_rl.store.database import Database
from openclaw_rl.store.schema import MAX_PLACE, deaths


@dataclass(frozen=True, kw_only=True, slots=True)
class Death:
    """`number` deaths at one `place` of a step over one sample; `alone`: it was all of the batch at the last one."""

    place: str
    number: int
    alone: bool


class DeathStore:
    """Written when a trainer died in a step, and cleared of samples that a step came through with."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def note(self, turn_ids: Sequence[str], place: str, *, alone: bool) -> None:
        """One more death at `place` (cut where it is too long) over each of these samples; counted once."""
        add = insert(deaths)
        statement = add.on_conflict_do_update(
            index_elements=["turn_id", "place"],
            set_={"number": deaths.c.number + 1, "alone": add.excluded.alone},
        )
        values = {"place": place[:MAX_PLACE], "number": 1, "alone": alone}
        with self._database.write() as connection:
            for turn_id in turn_ids:
                connection.execute(statement, {"turn_id": turn_id, **values})
            count(connection, "trainer_deaths")

    def of(self, turn_ids: Sequence[str]) -> Mapping[str, Sequence[Death]]:
        """The deaths over each of these samples over which there were any."""
        found: dict[str, list[Death]] = {}
        with self._database.read() as connection:
            for row in connection.execute(select(deaths).where(deaths.c.turn_id.in_(turn_ids))):
                found.setdefault(row.turn_id, []).append(Death(place=row.place, number=row.number, alone=row.alone))
        return found

    def forget(self, turn_ids: Sequence[str]) -> None:
        """A step came through with these samples: whatever the deaths before it were, they did not kill it."""
        with self._database.write() as connection:
            connection.execute(deaths.delete().where(deaths.c.turn_id.in_(turn_ids)))

    def suspects(self, number: int) -> Set[str]:
        """The samples over which there were at least `number` deaths at one place."""
        with self._database.read() as connection:
            query = select(deaths.c.turn_id).where(deaths.c.number >= number).distinct()
            return set(connection.execute(query).scalars())

    def acquit(self, places: Collection[str]) -> None:
        """What died at these places was killed by a sample that is found: those beside it are suspects no longer."""
        with self._database.write() as connection:
            connection.execute(deaths.delete().where(deaths.c.place.in_(places), deaths.c.alone.is_(False)))
