"""A body seen before: a retry of what went wrong, or one more answer to the same messages. Pure.

A client that did not get its answer asks again; a user who did not like it asks again, too. The first must never be
trained as if the user had seen it; the second is feedback. Bodies alone do not tell them apart, so a request is a
retry only if the client says so, or if the attempt before it is known to have failed or not to have arrived.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from openclaw_rl.types import SignalKind, TurnType

LOST = frozenset({"failed", "cancelled", "undelivered"})
"""How an attempt ends whose answer the client does not have."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EarlierRequest:
    """A recorded request with the same messages, or with the same history; `status` as in the store."""

    turn_id: str
    session_id: str
    turn_type: TurnType
    status: str
    body_hash: str
    idempotency_key: str | None
    created_at: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """At most one of the two is there; `session_id` is that of a retried attempt."""

    retry_of: str | None = None
    sibling_of: str | None = None
    session_id: str | None = None


FIRST = Attempt()


def classify_attempt(
    earlier: Sequence[EarlierRequest], *, retry_count: int, idempotency_key: str | None, session_known: bool
) -> Attempt:
    """What a request is to the `earlier` ones with the same body, the latest first.

    `session_known`: whether the session of this request is certain (named by the client, or found by content) and
    `earlier` holds only its requests. Without that, an opening that was answered before is somebody else's.
    """
    if not earlier:
        return FIRST
    latest = earlier[0]
    same_key = [one for one in earlier if idempotency_key is not None and one.idempotency_key == idempotency_key]
    retried = same_key[0] if same_key else latest if retry_count > 0 or latest.status in LOST else None
    if retried is not None:
        return Attempt(retry_of=retried.turn_id, session_id=retried.session_id)
    return Attempt(sibling_of=latest.turn_id) if session_known else FIRST


def signals_shown(
    attempt: Attempt, same_body: Sequence[EarlierRequest], same_stem: Sequence[EarlierRequest], body_hash: str
) -> list[tuple[SignalKind, str]]:
    """What a new main request shows about earlier answers, as (kind, turn id).

    Asking for the same again, once an answer was there, is regenerating. Asking something else in its place is
    editing the question: the latest answer to the old one was left behind. `same_stem` are requests of the session
    with the same history before the question, the latest first.
    """
    if attempt.retry_of is not None:
        return []
    if attempt.sibling_of is not None:
        answered = [one for one in same_body if one.turn_id == attempt.sibling_of and one.status == "served"]
        return [(SignalKind.REGENERATED, one.turn_id) for one in answered]
    others = [one for one in same_stem if one.turn_type is TurnType.MAIN and one.body_hash != body_hash]
    return [(SignalKind.EDITED, others[0].turn_id)] if others and others[0].status == "served" else []
