"""Where a sample stands among others: its key, the answers to the same messages, its step in the conversation."""

from __future__ import annotations

import hashlib

from sqlalchemy import Connection, literal, select

from openclaw_rl.store.rollouts import is_session_of_rollout
from openclaw_rl.store.schema import requests, rollouts, sessions
from openclaw_rl.types import Origin

_ROLLOUT = (
    select(rollouts.c.group_id, rollouts.c.session_name)
    .join(sessions, is_session_of_rollout())
    .join(requests, requests.c.session_id == sessions.c.session_id)
)


def origin_of(connection: Connection, turn_id: str) -> Origin:
    """The origin of a turn, from its request and those before it in its conversation.

    A group is a key and the hash of the messages, which leaves out what clients put in for one request: an answer
    that was asked for again belongs to it whatever the clock in its prompt said. Keys are kept apart, because what
    one user rewards says nothing of another's taste. Rollouts of a task say themselves which group they are.

    Raises:
        KeyError: there is no such request.
    """
    ancestors = (
        select(requests.c.turn_id, requests.c.parent_turn_id, literal(0).label("distance"))
        .where(requests.c.turn_id == turn_id)
        .cte("ancestors", recursive=True)
    )
    ancestors = ancestors.union_all(
        select(requests.c.turn_id, requests.c.parent_turn_id, ancestors.c.distance + 1).where(
            requests.c.turn_id == ancestors.c.parent_turn_id
        )
    )
    farthest = select(ancestors.c.turn_id, ancestors.c.distance).order_by(ancestors.c.distance.desc()).limit(1)
    root = connection.execute(farthest).one_or_none()
    if root is None:
        raise KeyError(f"no request {turn_id}")
    query = select(requests.c.turn_id, requests.c.key_id, requests.c.body_hash).where(
        requests.c.turn_id.in_([turn_id, root.turn_id])
    )
    found = {row.turn_id: row for row in connection.execute(query)}
    made = connection.execute(_ROLLOUT.where(requests.c.turn_id == turn_id)).one_or_none()
    own, first = found[turn_id], found[root.turn_id]
    return Origin(
        key_id=own.key_id,
        group_id=_shared(own.key_id, own.body_hash) if made is None else made.group_id,
        task_id=_shared(first.key_id, first.body_hash) if made is None else made.group_id,
        step=root.distance,
        rollout=None if made is None else made.session_name,
    )


def _shared(key_id: str, body_hash: str | None) -> str | None:
    if body_hash is None:
        return None
    return hashlib.sha256(f"{key_id}\0{body_hash}".encode()).hexdigest()[:32]
