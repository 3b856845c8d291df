"""A full export that comes back: as it was where it was exported and whose it was, and started over otherwise.

A version's number means nothing in another deployment, nor does a step's, and its log-probabilities are another
policy's; as they are where the policy of another owner is to learn from it (`policies.per`). So such a turn keeps its
tokens, and goes through rollout, judging and training as one that is reconstructed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from openclaw_rl.sessions.belonging import Belonging
from openclaw_rl.sessions.reconstruct import Reconstructor
from openclaw_rl.store import codec
from openclaw_rl.store.archive import Row, SessionRows, TurnRows
from openclaw_rl.types import ExclusionReason, SampleState, TurnState

_FOR_GOOD = frozenset({
    ExclusionReason.NOT_DELIVERED, ExclusionReason.TOKEN_COUNT_MISMATCH, ExclusionReason.NOT_FROM_POLICY,
    ExclusionReason.NOT_TRAINABLE,
})  # fmt: skip
"""What only the gateway, or the file of an import, knew of a turn; every other reason is found again."""
_NOBODYS: Row = {"judge_lease_until": None, "judge_attempts": 0}


def belonging_to(rows: SessionRows, whose: Belonging) -> SessionRows:
    """The session as another key's, and another user's."""
    both: Row = {"key_id": whose.key_id, "owner": whose.owner}
    return SessionRows(
        session={**rows.session, **both},
        turns=tuple(
            replace(
                turn,
                request={**turn.request, **both},
                turn=None if turn.turn is None else {**turn.turn, "key_id": whose.key_id},
                sample=None if turn.sample is None else {**turn.sample, "owner": whose.owner},
            )
            for turn in rows.turns
        ),
    )


def started_over(
    rows: SessionRows, at_home: bool, served_name: str, rebuild: Callable[[], Reconstructor], *, nobodys: bool = False
) -> SessionRows:
    """The session as this deployment takes it in.

    `at_home`: it was exported here, is the same owner's, and comes back as it was; only what was in flight is in
    nobody's hands now.
    `nobodys`: policies belong to somebody here, and this session to nobody.
    """
    change = _settled if at_home else (lambda turn: _foreign(turn, served_name, rebuild, nobodys))
    turns = (replace(turn, request=_closed(turn.request)) for turn in rows.turns)
    return replace(rows, turns=tuple(turn if turn.turn is None else change(turn) for turn in turns))


def _closed(request: Row) -> Row:
    """A request that was being answered will not be any more."""
    return {**request, "status": "failed", "error": "imported"} if request["status"] == "open" else request


def _settled(rows: TurnRows) -> TurnRows:
    sample = rows.sample
    if sample is not None and sample["state"] == SampleState.CLAIMED:
        sample = {**sample, "state": SampleState.READY.value, "lease_until": None}
    return replace(rows, turn={**(rows.turn or {}), **_NOBODYS}, sample=sample)


def _foreign(rows: TurnRows, served_name: str, rebuild: Callable[[], Reconstructor], nobodys: bool) -> TurnRows:
    assert rows.turn is not None
    request, turn = rows.request, rows.turn
    if turn["reason"] not in _FOR_GOOD:
        fresh: dict[str, Any] = {"state": TurnState.SERVED.value, "reason": None}
        if nobodys:  # as when it is asked for and served
            fresh = {"state": TurnState.EXCLUDED.value, "reason": ExclusionReason.NO_OWNER.value}
        turn = {**turn, **fresh, "next_state": None, "next_turn_id": None}
    tokens = _tokens(request, turn, rebuild())
    turn = {**turn, **tokens, **_NOBODYS, "reconstructed": True, "feedback_seen": None}
    return replace(rows, request={**request, "model": _model(request, served_name)}, turn=turn, sample=None)


def _model(request: Row, served_name: str) -> str:
    """The policy goes by another name here; `base`, and what else was asked for by name, stays what it was."""
    return str(request["model"]) if request["model"] == "base" else served_name


def _tokens(request: Row, turn: Row, model: Reconstructor) -> Row:
    """The tokens as they are, where this model reads the prompt as the very same; else its own."""
    if codec.pack_ids(model.prompt_ids(request["messages"], request["tools"])) == turn["prompt_ids"]:
        return {}
    made = model.tokens(request["messages"], request["tools"], turn["answer"])
    return {
        "prompt_ids": codec.pack_ids(made.prompt_ids),
        "response_ids": codec.pack_ids(made.response_ids),
        "logprobs": codec.pack_logprobs(made.logprobs),
        "versions": codec.pack_ids(made.versions),
        "kept": None,
        "chain_id": turn["turn_id"],
        "extends_parent": None if request["parent_turn_id"] is None else False,
    }
