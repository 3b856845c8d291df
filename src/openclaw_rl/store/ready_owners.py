"""What waits to be trained, by whose policy it is for (`policies.per`)."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, case, func, select

from openclaw_rl.store.schema import samples, steps
from openclaw_rl.types import SampleState


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnerReady:
    """What waits to be trained into one owner's policy.

    `full_at`: when there were as many as a batch takes, None while there are fewer; `last_step_at`: when this
    owner's last step was committed, None before the first.
    """

    owner: str
    count: int
    oldest_created_at: float
    full_at: float | None
    last_step_at: float | None


def read_ready_owners(connection: Connection, batch_size: int) -> list[OwnerReady]:
    """What waits, of each owner of whom anything does, by name."""
    place = func.row_number().over(partition_by=samples.c.owner, order_by=samples.c.created_at)
    ranked = (
        select(samples.c.owner, samples.c.created_at, place.label("place"))
        .where(samples.c.state == SampleState.READY.value)
        .subquery()
    )
    last = select(func.max(steps.c.created_at)).where(steps.c.owner == ranked.c.owner).scalar_subquery()
    query = (
        select(
            ranked.c.owner,
            func.count().label("count"),
            func.min(ranked.c.created_at).label("oldest_created_at"),
            func.min(case((ranked.c.place == batch_size, ranked.c.created_at))).label("full_at"),
            last.label("last_step_at"),
        )
        .group_by(ranked.c.owner)
        .order_by(ranked.c.owner)
    )
    return [OwnerReady(**row) for row in connection.execute(query).mappings()]
