"""Sessions in the two formats that others read: the original's trajectories, and OpenAI-style message logs. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from openclaw_rl.store.archive import SessionRows, TurnRows
from openclaw_rl.types import ExclusionReason, TurnState, TurnType

_LATER = frozenset({
    ExclusionReason.NO_NEXT_STATE, ExclusionReason.JUDGE_FAILED, ExclusionReason.JUDGE_TIE,
    ExclusionReason.TOO_FEW_VALID_VOTES, ExclusionReason.NO_SIGNAL, ExclusionReason.RECONSTRUCTED,
})  # fmt: skip
"""Reasons that are about the feedback on a turn. By every other reason it could not be trained, whatever was said."""


def to_trajectory(rows: SessionRows) -> dict[str, Any]:
    """`{session_id, turns: [{type, prompt, response, next_state, trainable}]}`, the answered turns in their order.

    `prompt` and `next_state` are lists of messages (`next_state` null where nobody reacted), `response` is a message.
    """
    session = rows.session
    return {
        "session_id": session["client_session_id"] or session["session_id"],
        "turns": [
            {
                "type": turn.request["turn_type"],
                "prompt": turn.request["messages"],
                "response": turn.turn["answer"],
                "next_state": turn.turn["next_state"],
                "trainable": _trainable(turn.request, turn.turn),
            }
            for turn in rows.turns
            if turn.turn is not None
        ],
    }


def _trainable(request: Mapping[str, Any], turn: Mapping[str, Any]) -> bool:
    if request["turn_type"] != TurnType.MAIN:
        return False
    return turn["state"] != TurnState.EXCLUDED or turn["reason"] in _LATER


def to_message_logs(rows: SessionRows) -> list[dict[str, Any]]:
    """`{"messages": [...], "tools": [...]}`, one for each end of the session's tree: branches share a beginning.

    Side turns are left out. What came after the last answer, without an answer of its own, is at the end.
    """
    main = [turn for turn in rows.turns if turn.request["turn_type"] == TurnType.MAIN]
    answered = [turn for turn in main if turn.turn is not None]
    continued = {turn.request["parent_turn_id"] for turn in answered}
    return [_log(turn) for turn in answered if turn.turn_id not in continued]


def _log(rows: TurnRows) -> dict[str, Any]:
    assert rows.turn is not None
    messages = [*rows.request["messages"], rows.turn["answer"], *(rows.turn["next_state"] or ())]
    tools = rows.request["tools"]
    return {"messages": messages, **({"tools": tools} if tools else {})}
