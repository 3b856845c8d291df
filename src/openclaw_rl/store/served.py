"""What the gateway writes and asks for every turn: arrivals, their parents, answers, failures.

A client waits meanwhile, so these statements are prepared. Everything else about turns is in `turns`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, bindparam, select, update

from openclaw_rl import fast_json
from openclaw_rl.store.counting import count
from openclaw_rl.store.database import Database
from openclaw_rl.store.lineage import add_signal
from openclaw_rl.store.prepared import Prepared
from openclaw_rl.store.rows import Fingerprint, request_values, turn_values
from openclaw_rl.store.schema import requests, sessions, turns
from openclaw_rl.store.sessions import touch
from openclaw_rl.store.transitions import move_turn
from openclaw_rl.types import ExclusionReason, Request, SignalKind, Turn, TurnState, TurnType

NO_FINGERPRINT = Fingerprint()


@dataclass(frozen=True, kw_only=True, slots=True)
class ParentCandidate:
    """A turn whose messages and answer hash to `context_hash`."""

    turn_id: str
    session_id: str
    context_hash: str
    session_hint: str | None
    served_at: float


_PARENT_LISTS = (1, 16, 128, 1024)
"""How many hashes one query asks for: lists are filled up to the next size, so that few queries are enough."""

_PARENTS = {
    size: Prepared(
        select(turns.c.turn_id, turns.c.session_id, turns.c.context_hash, requests.c.session_hint, turns.c.served_at)
        .join(requests, requests.c.turn_id == turns.c.turn_id)
        .where(
            turns.c.key_id == bindparam("key_id"),
            turns.c.context_hash.in_([bindparam(f"hash_{index}") for index in range(size)]),
        )
        .order_by(turns.c.served_at.desc())
    )
    for size in _PARENT_LISTS
}

_CANDIDATE = tuple(ParentCandidate.__dataclass_fields__)
_REQUEST_JSON = ("messages", "tools", "new_messages")
_TURN_JSON = ("answer", "sampling")
_UNSET_AT_FIRST = {"next_state", "next_turn_id", "judge_lease_until", "feedback_seen"}

_ADD_REQUEST = Prepared(requests.insert(), columns=[column.name for column in requests.c])
_ADD_TURN = Prepared(turns.insert(), columns=[c.name for c in turns.c if c.name not in _UNSET_AT_FIRST])
_REPEATED = Prepared(select(requests.c.turn_id).where(requests.c.retry_of == bindparam("turn_id")).limit(1))
_PARENT_TOKENS = Prepared(
    select(turns.c.chain_id, turns.c.prompt_ids, turns.c.response_ids).where(turns.c.turn_id == bindparam("turn_id"))
)
_SERVED = Prepared(update(requests).where(requests.c.turn_id == bindparam("id")).values(status="served"))
_ACTIVE = Prepared(
    update(sessions).where(sessions.c.session_id == bindparam("id")).values(last_active_at=bindparam("now"))
)
_DONE = Prepared(
    update(sessions)
    .where(sessions.c.session_id == bindparam("id"))
    .values(last_active_at=bindparam("now"), ended_at=bindparam("ended"), end_reason="session_done")
)


def _exclude_undelivered(connection: Connection, turn_id: str) -> None:
    """Exclude an answer that its client asked for again, unless somebody has reacted to it after all."""
    waiting = (TurnState.SERVED.value, TurnState.AWAITING_NEXT_STATE.value)
    query = select(turns.c.turn_id).where(turns.c.turn_id == turn_id, turns.c.state.in_(waiting))
    if connection.execute(query).first() is not None:
        move_turn(connection, turn_id, TurnState.EXCLUDED, reason=ExclusionReason.NOT_DELIVERED)


def _chain_values(connection: Connection, turn: Turn, own_prompt: bytes) -> dict[str, Any]:
    """Whether the prompt is the parent's prompt and response and more, token by token; counted either way.

    Where it is, the two turns can be read as one sequence. Where it is not (a template that drops the thinking of
    earlier answers, a rewritten call), a new chain starts.
    """
    parent_id = turn.request.parent_turn_id
    parent = None if parent_id is None else _PARENT_TOKENS.run(connection, turn_id=parent_id).fetchone()
    if parent is None or not own_prompt or not parent[1]:  # an upstream that tells no ids
        return {"chain_id": turn.turn_id, "extends_parent": None}
    chain_id, prompt_ids, response_ids = parent
    extends = own_prompt.startswith(prompt_ids + response_ids)
    count(connection, "prompts_extending_parent" if extends else "prompts_breaking_chain")
    return {"chain_id": chain_id if extends else turn.turn_id, "extends_parent": extends}


class ServedTurns:
    """The serving side of the room `turns`."""

    def __init__(self, database: Database) -> None:
        self._database = database

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
            _ADD_REQUEST.run(connection, **_as_json(request_values(request, fingerprint), _REQUEST_JSON))
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
            repeated = _REPEATED.run(connection, turn_id=turn.turn_id).fetchone() is not None
            if repeated and turn.state is TurnState.SERVED:
                turn = replace(turn, state=TurnState.EXCLUDED, reason=ExclusionReason.NOT_DELIVERED)
            values = turn_values(turn, context_hash)
            chain = _chain_values(connection, turn, values["prompt_ids"])
            _ADD_TURN.run(connection, **_as_json(values, _TURN_JSON), **chain)
            _SERVED.run(connection, id=turn.turn_id)
            session_id, now = turn.request.session_id, turn.served_at
            if turn.request.session_done:
                _DONE.run(connection, id=session_id, now=now, ended=now)
            else:
                _ACTIVE.run(connection, id=session_id, now=now)
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
        found: list[ParentCandidate] = []
        with self._database.read() as connection:
            for begin in range(0, len(context_hashes), _PARENT_LISTS[-1]):
                asked = list(context_hashes[begin : begin + _PARENT_LISTS[-1]])
                size = next(size for size in _PARENT_LISTS if size >= len(asked))
                asked += [asked[-1]] * (size - len(asked))
                hashes = {f"hash_{index}": digest for index, digest in enumerate(asked)}
                rows = _PARENTS[size].run(connection, key_id=key_id, **hashes)
                found += [ParentCandidate(**dict(zip(_CANDIDATE, row, strict=True))) for row in rows.fetchall()]
        return sorted(found, key=lambda candidate: -candidate.served_at)


def _as_json(values: dict[str, Any], columns: Sequence[str]) -> dict[str, Any]:
    """The values of a row with these columns as the text that the driver takes."""
    return {**values, **{name: fast_json.dumps(values[name]).decode() for name in columns}}
