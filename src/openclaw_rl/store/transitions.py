"""One transition of a turn, inside the caller's transaction."""

from __future__ import annotations

import time
from typing import Any

from sqlalchemy import Connection, select, update

from openclaw_rl.store.counting import count
from openclaw_rl.store.schema import samples, turns
from openclaw_rl.types import TURN_TRANSITIONS, ExclusionReason, SampleState, TurnState, check_transition

OPEN_REASONS = frozenset({
    ExclusionReason.NO_NEXT_STATE, ExclusionReason.NO_SIGNAL, ExclusionReason.JUDGE_FAILED,
    ExclusionReason.JUDGE_TIE, ExclusionReason.TOO_FEW_VALID_VOTES,
})  # fmt: skip
"""Reasons that feedback can undo: the answer could be trained, only nobody said anything useful about it."""


class TurnGone(LookupError):
    """The turn was deleted with its session a moment ago."""


def state_of(connection: Connection, turn_id: str) -> TurnState:
    """The state of a turn.

    Raises:
        TurnGone: there is no such turn any more.
    """
    found = connection.execute(select(turns.c.state).where(turns.c.turn_id == turn_id)).scalar()
    if found is None:
        raise TurnGone(turn_id)
    return TurnState(found)


def move_turn(
    connection: Connection,
    turn_id: str,
    new: TurnState,
    *,
    reason: ExclusionReason | None = None,
    **values: Any,
) -> None:
    """Apply one transition of `TURN_TRANSITIONS` inside the caller's transaction, and count it.

    Raises:
        TurnGone: there is no such turn any more.
        InvalidTransition: the table does not hold the change.
    """
    old = state_of(connection, turn_id)
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
