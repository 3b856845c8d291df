"""Rollouts of tasks: a row for each attempt at one, by the name of its session.

A group is open while its rollouts run, `rewarded` once each has been told its reward (or `dropped`), and `released`
by the rollout loop, at the beginning of a pass. Until then its turns become no samples, so that they become samples,
and are trained, together: rewards that are compared within a group have to be in one batch.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from sqlalchemy import ColumnElement, Connection, RowMapping, Select, and_, func, or_, select, update

from openclaw_rl.store.counting import count
from openclaw_rl.store.database import Database
from openclaw_rl.store.schema import judgements, rollouts, samples, sessions, turns
from openclaw_rl.types import ENVIRONMENT, HUMAN, ExclusionReason, SampleState, TurnState

INTERRUPTED = "interrupted"
"""The failure of a rollout whose driver was killed."""


class RolloutState(StrEnum):
    """Where one attempt stands."""

    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"


class GroupState(StrEnum):
    """Where a group stands."""

    OPEN = "open"
    REWARDED = "rewarded"
    RELEASED = "released"
    DROPPED = "dropped"


@dataclass(frozen=True, kw_only=True, slots=True)
class RolloutRow:
    """One attempt, as it stands. `reward` is on the scale of its own deployment's `rollout.reward_range`."""

    session_name: str
    group_id: str
    task_id: str
    number: int
    attempt: int
    state: RolloutState
    turn_ids: tuple[str, ...]
    reward: float | None
    ended: str | None
    failure: str | None
    started_at: float
    ended_at: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class RolloutCounts:
    """How many rollouts and groups there are, by state; `mean_turns` of those that finished last."""

    rollouts: Mapping[str, int]
    groups: Mapping[str, int]
    mean_turns: float | None


def is_session_of_rollout() -> ColumnElement[bool]:
    """Which session a rollout is, to join the two by. Its name alone says nothing: any key may use it."""
    return and_(
        sessions.c.client_session_id == rollouts.c.session_name,
        sessions.c.key_id == rollouts.c.key_id,
        sessions.c.owner == rollouts.c.owner,
    )


def rollout_of(session_id: ColumnElement[str]) -> Select[tuple[str]]:
    """The rollout that a session is, to be correlated with a query that has `session_id`."""
    return (
        select(rollouts.c.group_id).join(sessions, is_session_of_rollout()).where(sessions.c.session_id == session_id)
    )


def held() -> ColumnElement[bool]:
    """Whether a turn is of a group that is not released: it becomes no sample yet."""
    waiting = rollouts.c.group_state.in_([GroupState.OPEN.value, GroupState.REWARDED.value])
    return rollout_of(turns.c.session_id).where(waiting).exists()


def unjudged() -> ColumnElement[bool]:
    """Whether a turn is of a rollout whose turns no judge is asked about."""
    return rollout_of(turns.c.session_id).where(~rollouts.c.judged).exists()


class RolloutStore:
    """Written by the driver, released by the rollout loop."""

    def __init__(self, database: Database) -> None:
        self._database = database

    # --- the driver's ----------------------------------------------------------------------------------------

    def begin(
        self,
        session_name: str,
        *,
        key_id: str,
        owner: str = "",
        group_id: str,
        task_id: str,
        number: int,
        attempt: int,
        judged: bool,
    ) -> None:
        """An attempt begins; its session will be one of this key and this owner."""
        with self._database.write() as connection:
            connection.execute(
                rollouts.insert().values(
                    session_name=session_name,
                    key_id=key_id,
                    owner=owner,
                    group_id=group_id,
                    task_id=task_id,
                    number=number,
                    attempt=attempt,
                    state=RolloutState.RUNNING.value,
                    group_state=GroupState.OPEN.value,
                    judged=judged,
                    turn_ids=[],
                    started_at=time.time(),
                )
            )

    def end(
        self,
        session_name: str,
        *,
        turn_ids: Sequence[str],
        reward: float | None = None,
        ended: str | None = None,
        failure: str | None = None,
    ) -> None:
        """A running attempt ends, with a result or with a failure, which is counted."""
        state = RolloutState.FINISHED if failure is None else RolloutState.FAILED
        mine = (rollouts.c.session_name == session_name) & (rollouts.c.state == RolloutState.RUNNING.value)
        with self._database.write() as connection:
            done = connection.execute(
                update(rollouts)
                .where(mine)
                .values(
                    state=state.value,
                    turn_ids=list(turn_ids),
                    reward=reward,
                    ended=ended,
                    failure=failure,
                    ended_at=time.time(),
                )
            )
            if done.rowcount:
                count(connection, f"rollouts_{state.value}" + (f"_{failure}" if failure else ""))

    def interrupt(self) -> int:
        """Fail the attempts that a killed driver left running; how many. For the one driver, when it starts."""
        with self._database.write() as connection:
            running = rollouts.c.state == RolloutState.RUNNING.value
            values = {"state": RolloutState.FAILED.value, "failure": INTERRUPTED, "ended_at": time.time()}
            number = connection.execute(update(rollouts).where(running).values(values)).rowcount
            if number:
                count(connection, f"rollouts_failed_{INTERRUPTED}", number)
            return number

    def latest(self, group_id: str) -> dict[int, RolloutRow]:
        """The last attempt at each rollout of a group, by its number."""
        query = rollouts.select().where(rollouts.c.group_id == group_id).order_by(rollouts.c.attempt)
        with self._database.read() as connection:
            return {row["number"]: _row(row) for row in connection.execute(query).mappings()}

    def closed(self) -> set[str]:
        """Groups that are done, for good."""
        query = select(rollouts.c.group_id).where(rollouts.c.group_state != GroupState.OPEN.value).distinct()
        with self._database.read() as connection:
            return set(connection.execute(query).scalars())

    def close(self, group_id: str, *, dropped: str | None = None) -> bool:
        """An open group is done: each was told its reward, or it is `dropped` for that reason; False if it was."""
        new = GroupState.REWARDED if dropped is None else GroupState.DROPPED
        mine = (rollouts.c.group_id == group_id) & (rollouts.c.group_state == GroupState.OPEN.value)
        with self._database.write() as connection:
            if not connection.execute(update(rollouts).where(mine).values(group_state=new.value)).rowcount:
                return False
            count(connection, "rollout_groups" if dropped is None else f"rollout_groups_dropped_{dropped}")
            return True

    def counts(self) -> RolloutCounts:
        """How things stand; interrupted attempts are not counted, for they are made again."""
        kept = or_(rollouts.c.failure.is_(None), rollouts.c.failure != INTERRUPTED)
        by_state = select(rollouts.c.state, func.count()).where(kept).group_by(rollouts.c.state)
        by_group = select(rollouts.c.group_state, func.count(rollouts.c.group_id.distinct()))
        finished = select(rollouts.c.turn_ids).where(rollouts.c.state == RolloutState.FINISHED.value)
        recent = finished.order_by(rollouts.c.ended_at.desc()).limit(64)
        with self._database.read() as connection:
            lengths = [len(turn_ids) for turn_ids in connection.execute(recent).scalars()]
            return RolloutCounts(
                rollouts={row[0]: row[1] for row in connection.execute(by_state)},
                groups={row[0]: row[1] for row in connection.execute(by_group.group_by(rollouts.c.group_state))},
                mean_turns=sum(lengths) / len(lengths) if lengths else None,
            )

    def untrained(self, owner: str = "") -> int:
        """The owner's samples that wait or are claimed, and turns of closed rollouts on their way to become some."""
        on_their_way = [TurnState.SERVED.value, TurnState.AWAITING_NEXT_STATE.value, TurnState.JUDGING.value]
        closed = [GroupState.REWARDED.value, GroupState.RELEASED.value]
        waiting = samples.c.state.in_([SampleState.READY.value, SampleState.CLAIMED.value]) & (
            samples.c.owner == owner
        )
        coming = (
            turns.c.state.in_(on_their_way)
            & rollout_of(turns.c.session_id).where(rollouts.c.group_state.in_(closed)).exists()
        )
        with self._database.read() as connection:
            ready = connection.execute(select(func.count()).select_from(samples).where(waiting)).scalar_one()
            return ready + connection.execute(select(func.count()).select_from(turns).where(coming)).scalar_one()

    # --- the rollout loop's ----------------------------------------------------------------------------------

    def release(self) -> int:
        """Let the turns of rewarded groups become samples; how many groups."""
        rewarded = rollouts.c.group_state == GroupState.REWARDED.value
        with self._database.read() as connection:  # asked often, seldom true: spare the gateway a write lock
            groups = list(connection.execute(select(rollouts.c.group_id).where(rewarded).distinct()).scalars())
        if groups:
            with self._database.write() as connection:
                connection.execute(
                    update(rollouts)
                    .where(rollouts.c.group_id.in_(groups), rewarded)
                    .values(group_state=GroupState.RELEASED.value)
                )
        return len(groups)

    def signalless(self, *, limit: int = 256) -> list[tuple[str, ExclusionReason]]:
        """Turns of closed groups of which nobody will say anything, and why: at most `limit`.

        Those of failed rollouts and dropped groups, and those without a reward that no judge is asked about.
        """
        given = judgements.select().where(
            judgements.c.turn_id == turns.c.turn_id, judgements.c.kind.in_([HUMAN, ENVIRONMENT])
        )
        dropped = rollouts.c.group_state == GroupState.DROPPED.value
        failed = rollouts.c.state == RolloutState.FAILED.value
        query = (
            select(turns.c.turn_id, dropped.label("dropped"), failed.label("failed"))
            .join(sessions, sessions.c.session_id == turns.c.session_id)
            .join(rollouts, is_session_of_rollout())
            .where(
                turns.c.state.in_([TurnState.AWAITING_NEXT_STATE.value, TurnState.JUDGING.value]),
                or_(
                    dropped,
                    and_(rollouts.c.group_state == GroupState.RELEASED.value, or_(failed, ~rollouts.c.judged)),
                ),
                ~given.exists(),
            )
            .limit(limit)
        )
        with self._database.read() as connection:
            return [(row.turn_id, _reason(row.dropped, row.failed)) for row in connection.execute(query)]

    def group_of_sessions(self, session_ids: Collection[str]) -> dict[str, str]:
        """The group of each session that is a rollout."""
        query = (
            select(sessions.c.session_id, rollouts.c.group_id)
            .join(rollouts, is_session_of_rollout())
            .where(sessions.c.session_id.in_(set(session_ids)))
        )
        with self._database.read() as connection:
            return {row.session_id: row.group_id for row in connection.execute(query)}


def whole_groups(connection: Connection, turn_ids: Sequence[str]) -> list[list[str]]:
    """Of ready samples about to be claimed, those whose whole group is among them, by group.

    A group comes where its first sample does; one without a group is by itself. What is left out waits for the next
    batch, where its group is together. All of them, if otherwise there were none: the group is larger than a batch.
    """
    of_group = (
        select(samples.c.turn_id, rollouts.c.group_id)
        .join(turns, turns.c.turn_id == samples.c.turn_id)
        .join(sessions, sessions.c.session_id == turns.c.session_id)
        .join(rollouts, is_session_of_rollout())
        .where(samples.c.state == SampleState.READY.value)
    )
    chosen = set(turn_ids)
    groups = {row.turn_id: row.group_id for row in connection.execute(of_group)}
    split = {group for turn_id, group in groups.items() if turn_id not in chosen}
    whole = [turn_id for turn_id in turn_ids if groups.get(turn_id) not in split]
    together: dict[tuple[str, str], list[str]] = {}
    for turn_id in whole or turn_ids:
        group = groups.get(turn_id)
        together.setdefault(("", turn_id) if group is None else (group, ""), []).append(turn_id)
    return list(together.values())


def _reason(dropped: bool, failed: bool) -> ExclusionReason:
    if failed:
        return ExclusionReason.ROLLOUT_FAILED
    return ExclusionReason.ROLLOUT_DROPPED if dropped else ExclusionReason.NO_SIGNAL


def _row(row: RowMapping) -> RolloutRow:
    return RolloutRow(
        session_name=row["session_name"],
        group_id=row["group_id"],
        task_id=row["task_id"],
        number=row["number"],
        attempt=row["attempt"],
        state=RolloutState(row["state"]),
        turn_ids=tuple(row["turn_ids"]),
        reward=row["reward"],
        ended=row["ended"],
        failure=row["failure"],
        started_at=row["started_at"],
        ended_at=row["ended_at"],
    )
