"""Requests, turns and judgements: from an arrival to a verdict."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Select, and_, func, or_, select, update

from openclaw_rl.store.counting import count
from openclaw_rl.store.lineage import add_signal, signals_of
from openclaw_rl.store.rollouts import held, unjudged
from openclaw_rl.store.rows import (
    judgement_from,
    judgement_values,
    request_from,
    turn_from,
)
from openclaw_rl.store.schema import judgements, requests, samples, sessions, turns
from openclaw_rl.store.served import ServedTurns
from openclaw_rl.store.transitions import OPEN_REASONS, move_turn, state_of, withdraw_sample
from openclaw_rl.store.verdicts import decided, verdict_of
from openclaw_rl.types import (
    Exchange,
    ExclusionReason,
    Judgement,
    JudgementOutcome,
    Message,
    Request,
    SampleState,
    SignalKind,
    Turn,
    TurnState,
)


def turn_rows() -> Select[Any]:
    """Every turn with its request, as `turn_from` reads it."""
    own = [column for column in turns.c if column.name not in {"turn_id", "session_id", "key_id"}]
    return select(*requests.c, *own).join(requests, turns.c.turn_id == requests.c.turn_id)


class TurnStore(ServedTurns):
    """Requests as they arrive, turns as they are answered, judgements as they are made."""

    # --- rollout -------------------------------------------------------------------------------------------

    def get(self, turn_id: str) -> Turn | None:
        """One turn, whole."""
        with self._database.read() as connection:
            row = connection.execute(turn_rows().where(turns.c.turn_id == turn_id)).mappings().first()
            return None if row is None else turn_from(row)

    def any_known(self, turn_ids: Sequence[str]) -> bool:
        """Whether at least one of these turns is in the record."""
        query = select(turns.c.turn_id).where(turns.c.turn_id.in_(turn_ids)).limit(1)
        with self._database.read() as connection:
            return connection.execute(query).first() is not None

    def of_session(self, session_id: str) -> list[Turn]:
        """The turns of a session, in the order they were served."""
        query = turn_rows().where(turns.c.session_id == session_id).order_by(turns.c.served_at)
        with self._database.read() as connection:
            return [turn_from(row) for row in connection.execute(query).mappings()]

    def chains(self, session_id: str) -> dict[str, list[str]]:
        """The turns of a session by chain, in the order they were served; siblings may share a beginning."""
        query = select(turns.c.chain_id, turns.c.turn_id).where(turns.c.session_id == session_id)
        found: dict[str, list[str]] = {}
        with self._database.read() as connection:
            for row in connection.execute(query.order_by(turns.c.served_at)):
                found.setdefault(row.chain_id or row.turn_id, []).append(row.turn_id)
        return found

    def in_state(self, state: TurnState, *, limit: int = 256) -> list[Turn]:
        """Turns in a state, the oldest first."""
        query = turn_rows().where(turns.c.state == state.value).order_by(turns.c.served_at).limit(limit)
        with self._database.read() as connection:
            return [turn_from(row) for row in connection.execute(query).mappings()]

    def with_next_request(self, *, limit: int = 256) -> list[tuple[str, Request]]:
        """Turns that have no next state yet, with the first child to bring it.

        Beside those that wait for it: those that were excluded for lack of it, or judged without it (by a person, or
        by signals), as long as no trainer has claimed their sample.
        """
        ready = select(samples.c.turn_id).where(
            samples.c.turn_id == turns.c.turn_id, samples.c.state == SampleState.READY.value
        )
        waiting = and_(
            turns.c.next_turn_id.is_(None),
            or_(
                turns.c.state == TurnState.AWAITING_NEXT_STATE.value,
                turns.c.reason.in_([reason.value for reason in OPEN_REASONS]),
                and_(turns.c.state == TurnState.SAMPLED.value, ready.exists()),
            ),
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

    def close_unanswered(self, turn_id: str) -> None:
        """Exclude a turn that nobody reacted to. Where its user just stopped coming, the answer was abandoned."""
        with self._database.write() as connection:
            move_turn(connection, turn_id, TurnState.EXCLUDED, reason=ExclusionReason.NO_NEXT_STATE)
            query = select(sessions.c.end_reason).join(turns, turns.c.session_id == sessions.c.session_id)
            if connection.execute(query.where(turns.c.turn_id == turn_id)).scalar() == "idle_timeout":
                add_signal(connection, SignalKind.ABANDONED, turn_id, None, time.time())

    def awaiting_in_ended_sessions(self, *, limit: int = 256) -> list[str]:
        """Turns that wait in a session that has ended, and that have no child that brings a next state.

        Not those of a rollout whose group is not released: the reward comes after the end.
        """
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
                ~held(),
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
        """Give a turn its next state and send it to the judge; not if a trainer has claimed its sample meanwhile."""
        with self._database.write() as connection:
            sampled = state_of(connection, turn_id) is TurnState.SAMPLED
            if sampled and not withdraw_sample(connection, turn_id):
                return
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

        A turn with a given judgement, and without a next state, is not claimed: a judge has nothing to add. Nor is
        one of a rollout that is rewarded as a whole.

        A claim is a lease: it runs out when its judge dies, and the turn is claimed again.
        """
        now = time.time()
        free = turns.c.judge_lease_until.is_(None) | (turns.c.judge_lease_until < now)
        with self._database.write() as connection:
            query = (
                turn_rows()
                .add_columns(turns.c.judge_attempts)
                .where(turns.c.state == TurnState.JUDGING.value, free, ~decided(), ~unjudged())
                .order_by(turns.c.served_at)
                .limit(limit)
            )
            rows = list(connection.execute(query).mappings())
            shown = signals_of(connection, [row["turn_id"] for row in rows])
            claimed = [(turn_from(row, shown.get(row["turn_id"], ())), row["judge_attempts"]) for row in rows]
            for turn, attempts in claimed:
                connection.execute(
                    update(turns)
                    .where(turns.c.turn_id == turn.turn_id)
                    .values(judge_lease_until=now + lease_s, judge_attempts=attempts + 1)
                )
            return claimed

    def next_lease_end(self, after: float) -> float | None:
        """When the first of the leases ends that last beyond `after`; None where there is none."""
        running = (turns.c.state == TurnState.JUDGING.value) & (turns.c.judge_lease_until > after)
        with self._database.read() as connection:
            return connection.execute(select(func.min(turns.c.judge_lease_until)).where(running)).scalar()

    def release_judging_claims(self) -> int:
        """Give back every claimed turn: for the one judging process, when it starts after a predecessor's death.

        The attempts stay counted, so that a turn that kills its judges is given up in the end. A turn that waits for
        another try waits no longer: the record does not tell the two apart.
        """
        with self._database.write() as connection:
            claimed = (turns.c.state == TurnState.JUDGING.value) & (turns.c.judge_lease_until > time.time())
            returned = connection.execute(update(turns).where(claimed).values(judge_lease_until=None)).rowcount
            if returned:
                count(connection, "judge_leases_returned", returned)
            return returned

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

        Its time is never before the turn went to the judge, or a clock set back in between would hide it. Nothing is
        kept of a turn that was deleted while it was being judged.
        """
        query = select(turns.c.state_since).where(turns.c.turn_id == judgement.turn_id)
        with self._database.write() as connection:
            since = connection.execute(query).scalar()
            if since is None:
                count(connection, "judgements_of_deleted_turns")
                return
            values = judgement_values(judgement)
            values["created_at"] = max(values["created_at"], since)
            connection.execute(judgements.insert().values(values))
            count(connection, "judgements")
            if judgement.outcome is not JudgementOutcome.SCORED:
                count(connection, f"judgements_{judgement.outcome.value}")
            for reason, number in judgement.details.get("hints_refused", {}).items():
                count(connection, f"hints_refused_{reason}", number)

    def judged(self, *, limit: int = 256) -> list[tuple[Turn, Judgement]]:
        """Turns in `judging` whose judgement is here, with the one that counts: a person's before a judge's.

        Those of a rollout wait until its group is released.
        """
        due = turn_rows().where(turns.c.state == TurnState.JUDGING.value, decided(), ~held()).limit(limit)
        with self._database.read() as connection:
            rows = list(connection.execute(due.order_by(turns.c.state_since)).mappings())
            query = judgements.select().where(judgements.c.turn_id.in_([row["turn_id"] for row in rows]))
            found: dict[str, list[Judgement]] = {}
            for row in connection.execute(query.order_by(judgements.c.judgement_id)).mappings():
                found.setdefault(row["turn_id"], []).append(judgement_from(row))
            return [(turn_from(row), verdict_of(found[row["turn_id"]])) for row in rows]

    def exchange(self, turn_id: str) -> Exchange | None:
        """A turn with what followed it: who brought its next state, and the judgement that counts."""
        latest = select(judgements).where(judgements.c.turn_id == turn_id).order_by(judgements.c.judgement_id)
        with self._database.read() as connection:
            query = turn_rows().where(turns.c.turn_id == turn_id)
            row = connection.execute(query).mappings().first()
            if row is None:
                return None
            judged = [judgement_from(one) for one in connection.execute(latest).mappings()]
            return Exchange(
                turn=turn_from(row),
                next_turn_id=row["next_turn_id"],
                judgement=verdict_of(judged) if judged else None,
            )

    def judgements(self) -> list[Judgement]:
        """Every judgement, the oldest first."""
        with self._database.read() as connection:
            rows = connection.execute(judgements.select().order_by(judgements.c.judgement_id)).mappings()
            return [judgement_from(row) for row in rows]
