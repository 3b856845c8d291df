"""Requests, turns and judgements: from an arrival to a verdict."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, Select, and_, or_, select, update

from openclaw_rl.store.codec import pack_ids
from openclaw_rl.store.counting import count
from openclaw_rl.store.database import Database
from openclaw_rl.store.lineage import add_signal, signals_of
from openclaw_rl.store.rows import (
    Fingerprint,
    judgement_from,
    judgement_values,
    request_from,
    request_values,
    turn_from,
    turn_values,
)
from openclaw_rl.store.schema import judgements, requests, samples, sessions, turns
from openclaw_rl.store.sessions import touch
from openclaw_rl.store.verdicts import decided, verdict_of
from openclaw_rl.types import (
    TURN_TRANSITIONS,
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
    TurnType,
    check_transition,
)

NO_FINGERPRINT = Fingerprint()

OPEN_REASONS = frozenset({
    ExclusionReason.NO_NEXT_STATE, ExclusionReason.NO_SIGNAL, ExclusionReason.JUDGE_FAILED,
    ExclusionReason.JUDGE_TIE, ExclusionReason.TOO_FEW_VALID_VOTES,
})  # fmt: skip
"""Reasons that feedback can undo: the answer could be trained, only nobody said anything useful about it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ParentCandidate:
    """A turn whose messages and answer hash to `context_hash`."""

    turn_id: str
    session_id: str
    context_hash: str
    session_hint: str | None
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


def withdraw_sample(connection: Connection, turn_id: str) -> bool:
    """Take back a sample that nobody has claimed, so that its turn can be judged anew; False where it is too late."""
    waiting = (samples.c.turn_id == turn_id) & (samples.c.state == SampleState.READY.value)
    withdrawn = connection.execute(samples.delete().where(waiting)).rowcount > 0
    if withdrawn:
        count(connection, "samples_withdrawn")
    return withdrawn


def _exclude_undelivered(connection: Connection, turn_id: str) -> None:
    """Exclude an answer that its client asked for again, unless somebody has reacted to it after all."""
    waiting = (TurnState.SERVED.value, TurnState.AWAITING_NEXT_STATE.value)
    query = select(turns.c.turn_id).where(turns.c.turn_id == turn_id, turns.c.state.in_(waiting))
    if connection.execute(query).first() is not None:
        move_turn(connection, turn_id, TurnState.EXCLUDED, reason=ExclusionReason.NOT_DELIVERED)


def _chain_values(connection: Connection, turn: Turn) -> dict[str, Any]:
    """Whether the prompt is the parent's prompt and response and more, token by token; counted either way.

    Where it is, the two turns can be read as one sequence. Where it is not (a template that drops the thinking of
    earlier answers, a rewritten call), a new chain starts.
    """
    parent_id = turn.request.parent_turn_id
    query = select(turns.c.chain_id, turns.c.prompt_ids, turns.c.response_ids).where(turns.c.turn_id == parent_id)
    parent = None if parent_id is None else connection.execute(query).first()
    if parent is None:
        return {"chain_id": turn.turn_id, "extends_parent": None}
    extends = pack_ids(turn.tokens.prompt_ids).startswith(parent.prompt_ids + parent.response_ids)
    count(connection, "prompts_extending_parent" if extends else "prompts_breaking_chain")
    return {"chain_id": parent.chain_id if extends else turn.turn_id, "extends_parent": extends}


class TurnStore:
    """Requests as they arrive, turns as they are answered, judgements as they are made."""

    def __init__(self, database: Database) -> None:
        self._database = database

    # --- serving -------------------------------------------------------------------------------------------

    def record_request(
        self,
        request: Request,
        *,
        client_session_id: str | None = None,
        fingerprint: Fingerprint = NO_FINGERPRINT,
        signals: Sequence[tuple[SignalKind, str]] = (),
    ) -> None:
        """Record an arrival, before the engine is asked; creates or reopens its session.

        `signals` are what it shows about earlier answers, as (kind, turn id). An answer that it repeats is excluded:
        its client does not have it.
        """
        with self._database.write() as connection:
            touch(connection, request.session_id, request.key_id, client_session_id, request.created_at)
            connection.execute(requests.insert().values(request_values(request, fingerprint)))
            for kind, about in signals:
                add_signal(connection, kind, about, request.turn_id, request.created_at)
            count(connection, "requests")
            if request.ambiguous:
                count(connection, "requests_ambiguous")
            if request.turn_type is TurnType.SIDE:
                count(connection, f"side_turns_{request.side_rule or 'said_by_client'}")
            if request.retry_of is not None:
                count(connection, "requests_retried")
                _exclude_undelivered(connection, request.retry_of)

    def record_turn(self, turn: Turn, *, context_hash: str) -> None:
        """Record an answer, before its final chunk is sent. A `session_done` request ends its session here.

        An answer whose client has already asked again is excluded as not delivered.
        """
        with self._database.write() as connection:
            repeated = select(requests.c.turn_id).where(requests.c.retry_of == turn.turn_id)
            if turn.state is TurnState.SERVED and connection.execute(repeated).first() is not None:
                turn = replace(turn, state=TurnState.EXCLUDED, reason=ExclusionReason.NOT_DELIVERED)
            chain = _chain_values(connection, turn)
            connection.execute(turns.insert().values({**turn_values(turn, context_hash), **chain}))
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
        """An arrival that got no answer: `failed`, or `cancelled` by its client, which left in the middle of it.

        Where the answer is recorded already, only its end did not reach the client: it counts as undelivered.
        """
        if status not in {"failed", "cancelled"}:
            raise ValueError(f"a request without an answer is failed or cancelled, not {status}")
        with self._database.write() as connection:
            open_one = (requests.c.turn_id == turn_id) & (requests.c.status == "open")
            result = connection.execute(update(requests).where(open_one).values(status=status, error=error))
            if result.rowcount:
                count(connection, f"requests_{status}")
                if status == "cancelled":
                    add_signal(connection, SignalKind.ABANDONED, turn_id, None, time.time())
                return
            unheard = (requests.c.turn_id == turn_id) & (requests.c.status == "served")
            if connection.execute(update(requests).where(unheard).values(status="undelivered", error=error)).rowcount:
                count(connection, "requests_undelivered")

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
            select(
                turns.c.turn_id, turns.c.session_id, turns.c.context_hash, requests.c.session_hint, turns.c.served_at
            )
            .join(requests, requests.c.turn_id == turns.c.turn_id)
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

    def any_known(self, turn_ids: Sequence[str]) -> bool:
        """Whether at least one of these turns is in the record."""
        query = select(turns.c.turn_id).where(turns.c.turn_id.in_(turn_ids)).limit(1)
        with self._database.read() as connection:
            return connection.execute(query).first() is not None

    def of_session(self, session_id: str) -> list[Turn]:
        """The turns of a session, in the order they were served."""
        query = _turn_rows().where(turns.c.session_id == session_id).order_by(turns.c.served_at)
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
        query = _turn_rows().where(turns.c.state == state.value).order_by(turns.c.served_at).limit(limit)
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
        """Give a turn its next state and send it to the judge; not if a trainer has claimed its sample meanwhile."""
        with self._database.write() as connection:
            query = select(turns.c.state).where(turns.c.turn_id == turn_id)
            sampled = connection.execute(query).scalar_one() == TurnState.SAMPLED.value
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

        A turn that a person has judged, and that has no next state, is not claimed: a judge has nothing to add.

        A claim is a lease: it runs out when its judge dies, and the turn is claimed again.
        """
        now = time.time()
        free = turns.c.judge_lease_until.is_(None) | (turns.c.judge_lease_until < now)
        with self._database.write() as connection:
            query = (
                _turn_rows()
                .add_columns(turns.c.judge_attempts)
                .where(turns.c.state == TurnState.JUDGING.value, free, ~decided())
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
        """Turns in `judging` whose judgement is here, with the one that counts: a person's before a judge's."""
        due = _turn_rows().where(turns.c.state == TurnState.JUDGING.value, decided()).limit(limit)
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
            query = _turn_rows().where(turns.c.turn_id == turn_id)
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
