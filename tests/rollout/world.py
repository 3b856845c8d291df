"""Clients that know what belongs to what, and talk to a recorder that does not: the model of the property tests.

Every question, tool result and answer holds a mark of its own, so that a message says where it comes from.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from openclaw_rl.config import Config
from openclaw_rl.rollout.loop import run_pass
from openclaw_rl.serving.gateway.recorder import Arrival, Opened, Recorder
from openclaw_rl.store import Store
from openclaw_rl.types import FinishReason, Message, Request, Turn, TurnState
from tests.builders import SAMPLING, TOKENS, make_judgement
from tests.store.helpers import candidate, step_record

CONTEXT = "<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>\nnothing\n<<<END_OPENCLAW_INTERNAL_CONTEXT>>>"
HABITS = ("plain", "parts", "compact", "stamped", "injecting")


@dataclass
class Said:
    """One turn as its client knows it. `history`: what it would send to go on; `status`: open, served, lost."""

    turn_id: str
    client: Client
    parent: str | None
    asked: list[Message]
    new_marks: list[str]
    retries: str | None
    answer: Message | None = None
    status: str = "open"


@dataclass
class Client:
    """Somebody with a key, perhaps a name for the conversation, and habits of rewriting it."""

    number: int
    key: str
    session: str | None
    habit: str
    turns: list[Said] = field(default_factory=list)


def rewritten(message: Message, habit: str, moment: int) -> Message:
    """The message as a client with this habit sends it in a later request."""
    copy: dict[str, Any] = json.loads(json.dumps(message))
    if copy["role"] == "assistant" and habit != "plain":
        copy["content"] = re.sub(r"<think>.*?</think>\s*", "", copy["content"] or "") or None
        for call in copy.get("tool_calls", ()):
            call["id"] = re.sub(r"[^0-9A-Za-z]", "", call["id"])
            arguments = json.loads(call["function"]["arguments"])
            call["function"]["arguments"] = json.dumps(arguments, separators=(",", ":"), sort_keys=True)
    if copy["role"] == "tool" and habit != "plain":
        copy["tool_call_id"] = re.sub(r"[^0-9A-Za-z]", "", copy["tool_call_id"])
    if copy["role"] == "user" and habit in {"stamped", "injecting"}:
        copy["content"] = f"[Sun 2026-11-29 18:{moment % 60:02} UTC] {copy['content']}"
    if copy["content"] and habit == "parts":
        copy["content"] = [{"type": "text", "text": copy["content"] + "\n"}]
    return copy


class World:
    """The clients, the recorder, the loops, and what really happened."""

    def __init__(self, store: Store, config: Config, clients: list[Client]) -> None:
        self.store, self.config, self.clients = store, config, clients
        self.recorder = Recorder(store, config.rollout)
        self.said: dict[str, Said] = {}
        self.opened: dict[str, Opened] = {}
        self.steps = 0
        self._marks = 0

    # --- what clients do -----------------------------------------------------------------------------------

    def ask(self, client: Client, choice: int) -> None:
        """Go on after one of the answers that the client has, which need not be the last; or begin anew."""
        served = [said for said in client.turns if said.status == "served"]
        after = served[choice % len(served)] if served else None
        if after is None:
            marks = [self._mark("q")]
            asked: list[Message] = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": marks[0]}]
        else:
            assert after.answer is not None
            calls = after.answer.get("tool_calls", ())
            marks = [self._mark("r") for _ in calls] + ([self._mark("q")] if not calls or choice % 2 else [])
            asked = [*after.asked, after.answer]
            asked += [
                {"role": "tool", "tool_call_id": call["id"], "content": mark}
                for call, mark in zip(calls, marks, strict=False)
            ]
            asked += [{"role": "user", "content": mark} for mark in marks if mark.startswith("q")]
        self._send(client, asked, marks, after.turn_id if after else None)

    def repeat(self, client: Client, choice: int) -> None:
        """Send the same messages again: another answer is wanted, or the last attempt was lost."""
        done = [said for said in client.turns if said.status != "open"]
        if done:
            old = done[choice % len(done)]
            self._send(client, old.asked, old.new_marks, old.parent)

    def finish(self, choice: int, outcome: str) -> None:
        """One of the requests that are being answered ends: served, failed, or served to a client that has left."""
        waiting = [said for said in self.said.values() if said.status == "open"]
        if not waiting:
            return
        said = waiting[choice % len(waiting)]
        opened = self.opened.pop(said.turn_id)
        if outcome == "failed":
            said.status = "lost"
            self.store.turns.record_failure(said.turn_id, status="failed", error="engine_error")
            return
        turn = self._turn(opened.request, choice)
        self.store.turns.record_turn(turn, context_hash=opened.hasher.extended(turn.answer))
        said.answer, said.status = turn.answer, "served"
        if outcome == "undelivered":
            said.answer, said.status = None, "lost"
            self.store.turns.record_failure(said.turn_id, status="cancelled", error="client_gone")

    # --- what the loops do ---------------------------------------------------------------------------------

    def run_loops(self, *, train: bool) -> None:
        """One pass of rollout, judging and, perhaps, training."""
        run_pass(self.store, self.config, time.time())
        for turn, _ in self.store.turns.claim_for_judging(99, 60):
            self.store.turns.record_judgement(make_judgement(turn.turn_id, 1.0))
        run_pass(self.store, self.config, time.time())
        samples = self.store.samples.claim(99, 60) if train else []
        if samples:
            self.steps += 1
            record = step_record(self.steps, *(sample.turn_id for sample in samples))
            self.store.samples.commit_step(record, candidate(self.steps))

    def finish_all(self) -> None:
        """Answer what is open, and let the loops come to rest."""
        while any(said.status == "open" for said in self.said.values()):
            self.finish(0, "served")
        for _ in range(2):
            self.run_loops(train=True)

    # --- inside --------------------------------------------------------------------------------------------

    def _mark(self, kind: str) -> str:
        self._marks += 1
        return f"{kind}{self._marks}!"

    def _send(self, client: Client, asked: list[Message], marks: list[str], parent: str | None) -> None:
        turn_id = f"t{len(self.said)}"
        messages = [rewritten(message, client.habit, len(self.said)) for message in asked]
        if client.habit == "injecting":
            messages.append({"role": "user", "content": CONTEXT})
        same = [said for said in client.turns if said.asked == asked]
        retries = same[-1].turn_id if same and same[-1].status == "lost" else None
        self.opened[turn_id] = self.recorder._open(
            Arrival(
                turn_id=turn_id,
                key_id=client.key,
                client_session_id=client.session,
                turn_type=None,
                messages=tuple(messages),
                tools=(),
                session_done=False,
                model="policy",
                created_at=time.time(),
            )
        )
        said = Said(turn_id=turn_id, client=client, parent=parent, asked=asked, new_marks=marks, retries=retries)
        client.turns.append(said)
        self.said[turn_id] = said

    def _turn(self, request: Request, choice: int) -> Turn:
        mark = self._mark("a")
        answer: dict[str, Any] = {"role": "assistant", "content": f"<think>hm {mark}</think>\n{mark}"}
        if choice % 3 == 0:
            answer["tool_calls"] = [
                {"id": f"call_{mark[1:-1]}_{n}", "type": "function", "function": _function(mark)} for n in range(2)
            ]
        return Turn(
            request=request,
            answer=answer,
            tokens=TOKENS,
            sampling=SAMPLING,
            finish_reason=FinishReason.STOP,
            state=TurnState.SERVED,
            served_at=time.time(),
        )


def _function(mark: str) -> Mapping[str, str]:
    return {"name": "look", "arguments": json.dumps({"where": mark, "deep": 2.0}, indent=1)}


def marks_in(messages: object) -> list[str]:
    """The marks of questions and tool results in some messages, in order."""
    return re.findall(r"[qr]\d+!", json.dumps(messages))
