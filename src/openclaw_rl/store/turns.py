"""Requests, turns and judgements: from an arrival to a verdict."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Select, and_, select, update

from openclaw_rl.store.counting import count
from openclaw_rl.store.database import Database
from openclaw_rl.store.rows import (
    judgement_from,
    judgement_values,
    request_from,
    request_values,
    turn_from,
    turn_values,
)
from openclaw_rl.store.schema import judgements, requests, sessions, turns
from openclaw_rl.store.sessions import touch
from openclaw_rl.types import (
    TURN_TRANSITIONS,
    Exchange,
    ExclusionReason,
    Judgement,
    JudgementOutcome,
    Message,
    Request,
    Turn,
    TurnState,
    check_transition,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class ParentCandidate:
    """A turn whose messages and answer hash to `context_hash`."""

    turn_id: str
    session_id: str
    context_hash: str
    served_at: float


def _turn_rows() -> Select[Any]:
    own = [column for column in turns.c if column.name not in {"turn_id", "session_id", "key_id"}]
    return select(*requests.c, *own).join(requests, turns.c.turn_id == requests.c.turn_id)


def move_turn(
    connection: Connection,
    turn_id: str,
    new: TurnState,
    *,
    reason: ExclusionReason | None = None,
    **values: Any,
) -> None:
    """Apply one transition of `TURN_TRANSITIONS` inside the caller's transaction, and count it."""
    query = select(turns.c.state).where(turns.c.turn_id == turn_id)
    old = TurnState(connection.execute(query).scalar_one())
    check_transition(TURN_TRANSITIONS, old, new)
    if (new is TurnState.EXCLUDED) != (reason is not None):
        raise ValueError(f"a turn has a reason exactly when it is excluded, got {new}, {reason}")
    connection.execute(
        update(turns)
        .where(turns.c.turn_id == turn_id)
        .values(state=new.value, state_since=time.time(), reason=reason and reason.value, **values)
    )
    if reason is not None:
        count(connection, f"turns_excluded_{reason.value}")


class TurnStore:
    """Requests as they arrive, turns as they are answered, judgements as they are made."""

    def __init__(self, database: Database) -> None:
        self._database = database

    # --- serving -------------------------------------------------------------------------------------------

    def record_request(self, request: Request, *, client_session_id: str | None = None) -> None:
        """Record an arrival, before the engine is asked; creates or reopens its session."""
        with self._database.write() as connection:
            touch(connection, request.session_id, request.key_id, client_session_id, request.created_at)
            connection.execute(requests.insert().values(request_values(request)))
            count(connection, "requests")

    def record_turn(self, turn: Turn, *, context_hash: str) -> None:
        """Record an answer, before its final chunk is sent. A `session_done` request ends its session here."""
        with self._database.write() as connection:
            connection.execute(turns.insert().values(turn_values(turn, context_hash)))
            connection.execute(update(requests).where(requests.c.turn_id == turn.turn_id).values(status="served"))
            ended = {"ended_at": turn.served_at, "end_reason": "session_done"} if turn.request.session_done else {}
            connection.execute(
                update(sessions)
                .where(sessions.c.session_id == turn.request.session_id)
                .values(last_active_at=turn.served_at, **ended)
            )
            count(connection, "turns_served")
            if turn.reason is not None:  # the gateway knew already that it cannot be trained
                count(connection, f"turns_excluded_{turn.reason.value}")

    def record_failure(self, turn_id: str, *, status: str, error: str) -> None:
        """An arrival that got no answer: `failed`, or `cancelled` by its client."""
        if status not in {"failed", "cancelled"}:
            raise ValueError(f"a request without an answer is failed or cancelled, not {status}")
        with self._database.write() as connection:
            open_one = (requests.c.turn_id == turn_id) & (requests.c.status == "open")
            result = connection.execute(update(requests).where(open_one).values(status=status, error=error))
            if result.rowcount:
                count(connection, f"requests_{status}")

    def fail_open(self, *, error: str) -> int:
        """Fail every request that is still open: a gateway that starts has none, so its predecessor was killed."""
        with self._database.write() as connection:
            still_open = update(requests).where(requests.c.status == "open")
            failed = connection.execute(still_open.values(status="failed", error=error)).rowcount
            if failed:
                count(connection, "requests_failed", failed)
            return failed

    def find_parents(self, key_id: str, context_hashes: Sequence[str]) -> list[ParentCandidate]:
        """Turns of this key whose context hash is one of these, the latest first."""
        if not context_hashes:
            return []
        query = (
            select(turns.c.turn_id, turns.c.session_id, turns.c.context_hash, turns.c.served_at)
            .where(turns.c.key_id == key_id, turns.c.context_hash.in_(context_hashes))
            .order_by(turns.c.served_at.desc())
        )
        with self._database.read() as connection:
            return [ParentCandidate(**row) for row in connection.execute(query).mappings()]

    # --- rollout -------------------------------------------------------------------------------------------

    def get(self, turn_id: str) -> Turn | None:
        """One turn, whole."""
        with self._database.read() as connection:
            row = connection.execute(_turn_rows().where(turns.c.turn_id == turn_id)).mappings().first()
            return None if row is None else turn_from(row)

    def of_session(self, session_id: str) -> list[Turn]:
        """The turns of a session, in the order they were served."""
        query = _turn_rows().where(turns.c.session_id == session_id).order_by(turns.c.served_at)
        with self._database.read() as connection:
            return [turn_from(row) for row in connection.execute(query).mappings()]

    def in_state(self, state: TurnState, *, limit: int = 256) -> list[Turn]:
        """Turns in a state, the oldest first."""
        query = _turn_rows().where(turns.c.state == state.value).order_by(turns.c.served_at).limit(limit)
        with self._database.read() as connection:
            return [turn_from(row) for row in connection.execute(query).mappings()]

    def with_next_request(self, *, limit: int = 256) -> list[tuple[str, Request]]:
        """Turns that wait for a next state, or were excluded for lack of one, with the first child to bring it."""
        waiting = (turns.c.state == TurnState.AWAITING_NEXT_STATE.value) | (
            turns.c.reason == ExclusionReason.NO_NEXT_STATE.value
        )
        query = (
            select(turns.c.turn_id.label("waiting_turn_id"), *requests.c)
            .join(requests, requests.c.parent_turn_id == turns.c.turn_id)
            .where(waiting, requests.c.brings_feedback)
            .order_by(turns.c.served_at, requests.c.created_at)
            .limit(limit)
        )
        first: dict[str, Request] = {}
        with self._database.read() as connection:
            for row in connection.execute(query).mappings():
                first.setdefault(row["waiting_turn_id"], request_from(row))
        return list(first.items())

    def awaiting_in_ended_sessions(self, *, limit: int = 256) -> list[str]:
        """Turns that wait in a session that has ended, and that have no child that brings a next state."""
        bringer = select(requests.c.turn_id).where(
            requests.c.parent_turn_id == turns.c.turn_id, requests.c.brings_feedback
        )
        query = (
            select(turns.c.turn_id)
            .join(sessions, sessions.c.session_id == turns.c.session_id)
            .where(
                turns.c.state == TurnState.AWAITING_NEXT_STATE.value,
                sessions.c.ended_at.is_not(None),
                ~bringer.exists(),
            )
            .limit(limit)
        )
        with self._database.read() as connection:
            return list(connection.execute(query).scalars())

    def move(self, turn_id: str, new: TurnState, *, reason: ExclusionReason | None = None) -> None:
        """Apply one transition.

        Raises:
            InvalidTransition: if the table does not hold it.
        """
        with self._database.write() as connection:
            move_turn(connection, turn_id, new, reason=reason)

    def set_next_state(self, turn_id: str, next_turn_id: str, messages: Sequence[Message]) -> None:
        """Give a turn its next state and send it to the judge."""
        with self._database.write() as connection:
            move_turn(
                connection,
                turn_id,
                TurnState.JUDGING,
                next_state=[dict(message) for message in messages],
                next_turn_id=next_turn_id,
                judge_lease_until=None,
                judge_attempts=0,
            )

    # --- judging -------------------------------------------------------------------------------------------

    def claim_for_judging(self, limit: int, lease_s: float) -> list[tuple[Turn, int]]:
        """Claim turns without a judgement, the oldest first, each with its number of attempts so far.

        A claim is a lease: it runs out when its judge dies, and the turn is claimed again.
        """
        now = time.time()
        free = turns.c.judge_lease_until.is_(None) | (turns.c.judge_lease_until < now)
        judged = select(judgements.c.turn_id).where(
            judgements.c.turn_id == turns.c.turn_id, judgements.c.created_at >= turns.c.state_since
        )
        with self._database.write() as connection:
            query = (
                _turn_rows()
                .add_columns(turns.c.judge_attempts)
                .where(turns.c.state == TurnState.JUDGING.value, free, ~judged.exists())
                .order_by(turns.c.served_at)
                .limit(limit)
            )
            claimed = [(turn_from(row), row["judge_attempts"]) for row in connection.execute(query).mappings()]
            for turn, attempts in claimed:
                connection.execute(
                    update(turns)
                    .where(turns.c.turn_id == turn.turn_id)
                    .values(judge_lease_until=now + lease_s, judge_attempts=attempts + 1)
                )
            return claimed

    def release_from_judging(self, turn_id: str, *, retry_in_s: float, counts: bool = True) -> None:
        """Give a claimed turn back, to be judged after a pause.

        `counts` is False where the turn is not at fault (the judge is down, the loop stops): the claim then uses up
        no attempt and counts as no retry.
        """
        attempts = turns.c.judge_attempts if counts else turns.c.judge_attempts - 1
        with self._database.write() as connection:
            connection.execute(
                update(turns)
                .where(turns.c.turn_id == turn_id, turns.c.state == TurnState.JUDGING.value)
                .values(judge_lease_until=time.time() + retry_in_s, judge_attempts=attempts)
            )
            if counts:
                count(connection, "judge_retries")

    def record_judgement(self, judgement: Judgement) -> None:
        """Keep a judgement; rollout turns it into a sample, or the turn is excluded.

        Its time is never before the turn went to the judge, or a clock set back in between would hide it.
        """
        query = select(turns.c.state_since).where(turns.c.turn_id == judgement.turn_id)
        with self._database.write() as connection:
            values = judgement_values(judgement)
            values["created_at"] = max(values["created_at"], connection.execute(query).scalar() or 0.0)
            connection.execute(judgements.insert().values(values))
            count(connection, "judgements")
            if judgement.outcome is not JudgementOutcome.SCORED:
                count(connection, f"judgements_{judgement.outcome.value}")

    def judged(self, *, limit: int = 256) -> list[tuple[Turn, Judgement]]:
        """Turns in `judging` whose judgement is here, with the latest one."""
        fresh = and_(judgements.c.turn_id == turns.c.turn_id, judgements.c.created_at >= turns.c.state_since)
        query = (
            select(*judgements.c)
            .join(turns, fresh)
            .where(turns.c.state == TurnState.JUDGING.value)
            .order_by(judgements.c.created_at)
            .limit(limit)
        )
        with self._database.read() as connection:
            found = {row["turn_id"]: judgement_from(row) for row in connection.execute(query).mappings()}
            rows = connection.execute(_turn_rows().where(turns.c.turn_id.in_(found))).mappings()
            return [(turn_from(row), found[row["turn_id"]]) for row in rows]

    def exchange(self, turn_id: str) -> Exchange | None:
        """A turn with what followed it: who brought its next state, and its latest judgement."""
        latest = select(judgements).where(judgements.c.turn_id == turn_id).order_by(judgements.c.judgement_id.desc())
        with self._database.read() as connection:
            query = _turn_rows().where(turns.c.turn_id == turn_id)
            row = connection.execute(query).mappings().first()
            if row is None:
                return None
            judged = connection.execute(latest).mappings().first()
            return Exchange(
                turn=turn_from(row),
                next_turn_id=row["next_turn_id"],
                judgement=None if judged is None else judgement_from(judged),
            )

    def judgements(self) -> list[Judgement]:
        """Every judgement, the oldest first."""
        with self._database.read() as connection:
            rows = connection.execute(judgements.select().order_by(judgements.c.judgement_id)).mappings()
            return [judgement_from(row) for row in rows]
