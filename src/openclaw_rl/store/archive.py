"""Whole sessions as they lie in the record: listed, read for a person or an export, and put back.

Rows are kept as dictionaries by column, so that a column that the schema gains is exported and imported with the
rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Select, func, select

from openclaw_rl.store.counting import count
from openclaw_rl.store.database import Database
from openclaw_rl.store.schema import judgements, requests, samples, sessions, signals, steps, turns, versions
from openclaw_rl.types import BASE_VERSION, HUMAN, VersionState

Row = dict[str, Any]

MANY = 500
"""Values in one `IN (…)`: a database allows some thousands."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionSummary:
    """A session without its content. `turns` were answered, of `requests`; states by how many there are."""

    session_id: str
    key_id: str
    client_session_id: str | None
    created_at: float
    last_active_at: float
    ended_at: float | None
    end_reason: str | None
    owner: str
    requests: int
    turns: int
    reconstructed: int
    turns_by_state: Mapping[str, int]
    samples_by_state: Mapping[str, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class TurnRows:
    """A request and all that came of it. `turn` is None where it got no answer, `sample` where there is none."""

    request: Row
    turn: Row | None
    judgements: tuple[Row, ...] = ()
    signals: tuple[Row, ...] = ()
    sample: Row | None = None

    @property
    def turn_id(self) -> str:
        """The id of the request, and of its turn."""
        return str(self.request["turn_id"])


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionRows:
    """One session, whole; its requests in the order in which they came."""

    session: Row
    turns: tuple[TurnRows, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainedVersion:
    """A version that a step made of samples of certain sessions: those that these numbers count."""

    version: int
    state: VersionState
    samples: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Known:
    """A turn that is here already, by the hash of its messages and answer. `reacted`: it has its next state."""

    turn_id: str
    session_id: str
    reacted: bool


class ArchiveStore:
    """Whole sessions. Reading is one consistent view; putting back is all or nothing."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def deployment(self) -> str:
        """What tells this record from every other: when it began, in seconds since the epoch."""
        query = select(versions.c.created_at).where(versions.c.version == BASE_VERSION)
        with self._database.read() as connection:
            return repr(float(connection.execute(query).scalar_one()))

    def summaries(self, session_ids: Sequence[str] | None = None) -> list[SessionSummary]:
        """All sessions, or these; the one that was active last comes first."""
        with self._database.read() as connection:
            asked = _numbers(connection, select(requests.c.session_id, func.count()), requests.c.session_id)
            rebuilt = _numbers(
                connection,
                select(turns.c.session_id, func.count()).where(turns.c.reconstructed),
                turns.c.session_id,
            )
            states = _by_state(connection, select(turns.c.session_id, turns.c.state, func.count()), turns.c.state)
            joined = select(turns.c.session_id, samples.c.state, func.count()).join(
                samples, samples.c.turn_id == turns.c.turn_id
            )
            trained = _by_state(connection, joined, samples.c.state)
            rows = connection.execute(sessions.select().order_by(sessions.c.last_active_at.desc())).mappings()
            return [
                SessionSummary(
                    **row,
                    requests=asked.get(row["session_id"], 0),
                    turns=sum(states.get(row["session_id"], {}).values()),
                    reconstructed=rebuilt.get(row["session_id"], 0),
                    turns_by_state=states.get(row["session_id"], {}),
                    samples_by_state=trained.get(row["session_id"], {}),
                )
                for row in rows
                if session_ids is None or row["session_id"] in session_ids
            ]

    def matching(self, name: str) -> list[str]:
        """The ids of the sessions that `name` may mean: an id, else what clients call them, else the start of ids."""
        column = sessions.c.session_id
        meanings = (column == name, sessions.c.client_session_id == name, column.startswith(name, autoescape=True))
        with self._database.read() as connection:
            for meaning in meanings:
                found = list(connection.execute(select(column).where(meaning).order_by(column)).scalars())
                if found:
                    return found
        return []

    def read(self, session_id: str) -> SessionRows | None:
        """One session, whole, or None."""
        with self._database.read() as connection:
            query = sessions.select().where(sessions.c.session_id == session_id)
            session = connection.execute(query).mappings().first()
            return None if session is None else _session_rows(connection, dict(session))

    def trained_into(self, session_ids: Sequence[str]) -> list[TrainedVersion]:
        """The versions that were trained on samples of these sessions, the first first."""
        query = (
            select(versions.c.version, versions.c.state, func.count())
            .select_from(samples)
            .join(turns, turns.c.turn_id == samples.c.turn_id)
            .join(steps, steps.c.step == samples.c.step)
            .join(versions, versions.c.version == steps.c.version)
            .group_by(versions.c.version, versions.c.state)
        )
        found: Counter[tuple[int, str]] = Counter()
        with self._database.read() as connection:
            for ids in pieces(session_ids):
                for version, state, number in connection.execute(query.where(turns.c.session_id.in_(ids))):
                    found[version, state] += number
        return [
            TrainedVersion(version=version, state=VersionState(state), samples=number)
            for (version, state), number in sorted(found.items())
        ]

    def known(self, key_id: str, context_hashes: Sequence[str], owner: str = "") -> dict[str, Known]:
        """Turns of this key and owner by their context hash, for those of these hashes that there are."""
        asked = requests.alias()
        child = select(requests.c.turn_id).where(
            requests.c.parent_turn_id == turns.c.turn_id, requests.c.brings_feedback
        )
        query = (
            select(turns.c.context_hash, turns.c.turn_id, turns.c.session_id, child.exists().label("reacted"))
            .join(asked, asked.c.turn_id == turns.c.turn_id)
            .where(turns.c.key_id == key_id, asked.c.owner == owner)
            .order_by(turns.c.served_at)
        )
        found: dict[str, Known] = {}
        with self._database.read() as connection:
            for hashes in pieces(context_hashes):
                mine = query.where(turns.c.context_hash.in_(hashes))
                for digest, turn_id, session_id, reacted in connection.execute(mine):
                    found[digest] = Known(turn_id=turn_id, session_id=session_id, reacted=reacted)
        return found

    def versions_made(self) -> set[int]:
        """The numbers of all versions."""
        with self._database.read() as connection:
            return set(connection.execute(select(versions.c.version)).scalars())

    def put(self, restored: Iterable[SessionRows]) -> int:
        """Write sessions back, those turns that are not there yet; how many turns. All of it, or nothing.

        Raises:
            PermissionError: where a session is here under another key, or another user.
        """
        added = 0
        with self._database.write() as connection:
            for rows in restored:
                _put_session(connection, rows.session)
                added += sum(_put_turn(connection, rows_of_turn) for rows_of_turn in rows.turns)
            if added:
                count(connection, "turns_imported", added)
        return added


def pieces(values: Sequence[str]) -> Iterable[Sequence[str]]:
    """The values, at most MANY at a time."""
    return (values[start : start + MANY] for start in range(0, len(values), MANY))


def _numbers(connection: Connection, query: Select[Any], column: Any) -> dict[str, int]:
    return {row[0]: row[1] for row in connection.execute(query.group_by(column))}


def _by_state(connection: Connection, query: Select[Any], state: Any) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for session_id, name, number in connection.execute(query.group_by(turns.c.session_id, state)):
        found.setdefault(session_id, {})[name] = number
    return found


def _session_rows(connection: Connection, session: Row) -> SessionRows:
    own = requests.c.session_id == session["session_id"]
    mine = select(requests.c.turn_id).where(own)
    asked = connection.execute(requests.select().where(own).order_by(requests.c.created_at, requests.c.turn_id))

    def of(table: Any, *order: Any) -> dict[str, list[Row]]:
        found: dict[str, list[Row]] = {}
        query = table.select().where(table.c.turn_id.in_(mine)).order_by(*order)
        for row in connection.execute(query).mappings():
            found.setdefault(row["turn_id"], []).append(dict(row))
        return found

    answered, judged = of(turns), of(judgements, judgements.c.judgement_id)
    shown, sampled = of(signals, signals.c.signal_id), of(samples)
    return SessionRows(
        session=session,
        turns=tuple(
            TurnRows(
                request=dict(row),
                turn=answered.get(row["turn_id"], [None])[0],
                judgements=tuple(judged.get(row["turn_id"], ())),
                signals=tuple(shown.get(row["turn_id"], ())),
                sample=sampled.get(row["turn_id"], [None])[0],
            )
            for row in asked.mappings()
        ),
    )


def _put_session(connection: Connection, session: Row) -> None:
    query = select(sessions.c.key_id, sessions.c.owner).where(sessions.c.session_id == session["session_id"])
    here = connection.execute(query).first()
    if here is None:
        connection.execute(sessions.insert().values(session))
    elif here.key_id != session["key_id"]:
        raise PermissionError(f"session {session['session_id']} is here, and belongs to another key")
    elif here.owner != session.get("owner", ""):
        raise PermissionError(f"session {session['session_id']} is here, and belongs to another user")


def _put_turn(connection: Connection, rows: TurnRows) -> int:
    """Write a request and what came of it, unless it is there; 1 where that is an answered turn that was not."""
    query = select(requests.c.turn_id).where(requests.c.turn_id == rows.turn_id)
    if connection.execute(query).first() is not None:
        return 0
    connection.execute(requests.insert().values(rows.request))
    for signal in rows.signals:
        connection.execute(signals.insert().values(signal))
    if rows.turn is None:
        return 0
    connection.execute(turns.insert().values({**rows.turn, "feedback_seen": None}))
    seen = rows.turn.get("feedback_seen")
    for judgement in rows.judgements:
        # Ids are this record's own; which of a person's judgements were acted upon is told by their new ones.
        values = {name: value for name, value in judgement.items() if name != "judgement_id"}
        new_id = connection.execute(judgements.insert().values(values)).inserted_primary_key
        if (
            new_id is not None
            and judgement["kind"] == HUMAN
            and seen is not None
            and judgement["judgement_id"] <= seen
        ):
            acted = turns.update().where(turns.c.turn_id == rows.turn_id)
            connection.execute(acted.values(feedback_seen=new_id[0]))
    if rows.sample is not None:
        connection.execute(samples.insert().values(rows.sample))
    return 1
