"""Turns, judgements and whole conversations written by hand, for tests of what happens after serving."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from openclaw_rl.config import Config
from openclaw_rl.store import Store
from openclaw_rl.types import (
    FinishReason,
    Judgement,
    JudgementOutcome,
    Message,
    Request,
    SamplingParams,
    TokenRecord,
    Turn,
    TurnState,
    TurnType,
)

POLICY = "policy"
TOKENS = TokenRecord(prompt_ids=(1, 2, 3), response_ids=(7, 8), logprobs=(-0.5, -1.25), versions=(0, 0))
SAMPLING = SamplingParams(temperature=1.0, top_p=1.0, max_tokens=16)


def user(text: str) -> Message:
    """A user's message."""
    return {"role": "user", "content": text}


def tool(text: str, call_id: str = "c1") -> Message:
    """A tool's result."""
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def make_request(turn_id: str = "t1", **values: Any) -> Request:
    """A main request of session `s` for the policy, unless told otherwise."""
    defaults: dict[str, Any] = {
        "turn_id": turn_id,
        "session_id": "s",
        "key_id": "k",
        "parent_turn_id": None,
        "turn_type": TurnType.MAIN,
        "messages": (user("What is a poem?"),),
        "tools": (),
        "new_messages": (),
        "session_done": False,
        "model": POLICY,
        "created_at": time.time(),
    }
    return Request(**{**defaults, **values})


def make_turn(turn_id: str = "t1", *, request: Request | None = None, **values: Any) -> Turn:
    """A served turn that could be trained, unless told otherwise."""
    defaults: dict[str, Any] = {
        "request": request or make_request(turn_id),
        "answer": {"role": "assistant", "content": "A poem."},
        "tokens": TOKENS,
        "sampling": SAMPLING,
        "finish_reason": FinishReason.STOP,
        "state": TurnState.SERVED,
        "served_at": time.time(),
    }
    return Turn(**{**defaults, **values})


def make_judgement(
    turn_id: str = "t1",
    score: float | None = 1.0,
    hint: str | None = None,
    outcome: JudgementOutcome = JudgementOutcome.SCORED,
) -> Judgement:
    """A judgement of now; without `outcome` it is a score."""
    return Judgement(
        turn_id=turn_id,
        kind="scripted",
        outcome=outcome,
        score=score if outcome is JudgementOutcome.SCORED else None,
        hint=hint,
        prompt_version="v1",
        latency_s=0.1,
        created_at=time.time(),
    )


def make_config(run_dir: Path, **sections: Any) -> Config:
    """The default configuration in `run_dir`, with these sections changed."""
    return Config(run_dir=run_dir, **sections)


class Conversation:
    """Writes one session into a store as the gateway would: the request first, then the answer."""

    def __init__(self, store: Store, session_id: str = "s") -> None:
        self.store = store
        self.session_id = session_id

    def ask(
        self,
        turn_id: str,
        new_messages: Sequence[Message] = (),
        *,
        parent: str | None = None,
        **values: Any,
    ) -> Request:
        """A request arrives; `new_messages` follow `parent`'s answer."""
        request = make_request(
            turn_id,
            session_id=self.session_id,
            parent_turn_id=parent,
            new_messages=tuple(new_messages) if parent else (),
            messages=(user("What is a poem?"), *new_messages),
            **values,
        )
        self.store.turns.record_request(request)
        return request

    def answer(self, request: Request, **values: Any) -> Turn:
        """The answer to a request is served."""
        turn = make_turn(request=request, **values)
        self.store.turns.record_turn(turn, context_hash=f"hash-{turn.turn_id}")
        return turn

    def turn(
        self,
        turn_id: str,
        new_messages: Sequence[Message] = (),
        *,
        parent: str | None = None,
        tokens: TokenRecord = TOKENS,
        **values: Any,
    ) -> Turn:
        """A request and its answer at once."""
        return self.answer(self.ask(turn_id, new_messages, parent=parent, **values), tokens=tokens)

    def chain(self, *texts: str) -> list[str]:
        """A conversation of main turns t1, t2, …; each text is what the user says before that turn's answer."""
        ids = [f"{self.session_id}{number}" for number in range(1, len(texts) + 1)]
        for number, (turn_id, text) in enumerate(zip(ids, texts, strict=True)):
            self.turn(turn_id, [user(text)], parent=ids[number - 1] if number else None)
        return ids


def state_of(store: Store, turn_id: str) -> tuple[TurnState, str | None]:
    """The state of a turn and the reason, if any."""
    turn = store.turns.get(turn_id)
    assert turn is not None
    return turn.state, None if turn.reason is None else turn.reason.value
