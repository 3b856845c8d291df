"""Two conversations of the real OpenClaw, replayed: sessions, parents and next states are what they were."""

from __future__ import annotations

import copy
import json
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.config import Config
from openclaw_rl.rollout.loop import run_pass
from openclaw_rl.serving.gateway.recorder import Arrival, Recorder
from openclaw_rl.store import Store
from openclaw_rl.types import FinishReason, Request, Turn, TurnState, TurnType
from tests.builders import SAMPLING, TOKENS

DATA = Path(__file__).parent.parent / "data"
Body = dict[str, Any]
Change = Callable[[Body], tuple[Body, str | None]]


def recorded(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATA / f"openclaw_{name}.jsonl").read_text().splitlines()]


def with_session_id(body: Body) -> tuple[Body, str | None]:
    return body, "openclaw-session"


def as_it_came(body: Body) -> tuple[Body, str | None]:
    return body, None


def without_any_name(body: Body) -> tuple[Body, str | None]:
    """Neither cache key nor Runtime line: nothing but what was said."""
    body = copy.deepcopy(body)
    del body["prompt_cache_key"]
    for message in body["messages"]:
        if message["role"] == "user" and isinstance(message["content"], str):
            message["content"] = re.sub(r"\n\nRuntime: .*", "", message["content"])
    assert "sessionId=" not in json.dumps(body)
    return body, None


CHANGES = pytest.mark.parametrize("change", [with_session_id, as_it_came, without_any_name])
NAMES = pytest.mark.parametrize("name", ["lean", "full"])


def arrival(turn_id: str, body: Body, session: str | None, **values: Any) -> Arrival:
    defaults: dict[str, Any] = {"key_id": "k", "turn_type": None, "session_done": False}
    return Arrival(
        turn_id=turn_id,
        client_session_id=session,
        messages=tuple(body["messages"]),
        tools=tuple(body.get("tools", ())),
        model=body.get("model", "policy"),
        prompt_cache_key=body.get("prompt_cache_key"),
        created_at=time.time(),
        **{**defaults, **values},
    )


def replay(store: Store, config: Config, entries: list[dict[str, Any]], change: Change, prefix: str) -> list[Request]:
    """Each request is recorded, then its answer or its failure, and the rollout loop runs: as it happens live."""
    recorder = Recorder(store, config.rollout)
    requests = []
    for entry in entries:
        body, session = change(entry["body"])
        turn_id = f"{prefix}{entry['request']}"
        opened = recorder._open(arrival(turn_id, body, session))
        requests.append(opened.request)
        if entry["status"] != 200:
            store.turns.record_failure(turn_id, status="failed", error="engine_error")
            continue
        turn = Turn(
            request=opened.request,
            answer=entry["answer"],
            tokens=TOKENS,
            sampling=SAMPLING,
            finish_reason=FinishReason.STOP,
            state=TurnState.SERVED,
            served_at=time.time(),
        )
        store.turns.record_turn(turn, context_hash=opened.hasher.extended(turn.answer))
        run_pass(store, config, time.time())
    return requests


def assert_as_expected(store: Store, entries: list[dict[str, Any]], requests: list[Request], prefix: str) -> None:
    assert len({request.session_id for request in requests}) == 1
    for entry, request in zip(entries, requests, strict=True):
        expect = entry["expect"]
        if expect is None:
            assert store.turns.get(request.turn_id) is None
            continue
        parent = None if expect["parent"] is None else f"{prefix}{expect['parent']}"
        assert request.parent_turn_id == parent
        turn = store.turns.get(request.turn_id)
        assert turn is not None
        next_state = turn.next_state or ()
        assert [message["role"] for message in next_state] == [one["role"] for one in expect["next_state"]]
        for message, one in zip(next_state, expect["next_state"], strict=True):
            assert message.get("tool_call_id") == one.get("tool_call_id")
            assert one.get("contains", "") in json.dumps(message)
            assert "INTERNAL_CONTEXT" not in json.dumps(message)
            assert "Continue the current task" not in json.dumps(message)
            assert "[Sun 2026" not in json.dumps(message)


@NAMES
@CHANGES
def test_one_conversation(store: Store, config: Config, name: str, change: Change) -> None:
    entries = recorded(name)
    requests = replay(store, config, entries, change, "t")
    assert_as_expected(store, entries, requests, "t")
    # Request 5 failed; 6 says the same and "continue", which does not count: a retry, and no sibling of anything.
    retries: Mapping[str, str | None] = {request.turn_id: request.retry_of for request in requests}
    assert {turn for turn, earlier in retries.items() if earlier} == {"t6"}
    assert retries["t6"] == "t5"
    assert not any(request.sibling_of for request in requests)
    assert all(request.turn_type is TurnType.MAIN for request in requests)
    # What was recorded is what came, injections included.
    assert requests[5].messages == tuple(change(entries[5]["body"])[0]["messages"])


@CHANGES
def test_both_conversations_interleaved(store: Store, config: Config, change: Change) -> None:
    both = {name: recorded(name) for name in ("lean", "full")}
    requests: dict[str, list[Request]] = {"lean": [], "full": []}
    for number in range(7):
        for name, entries in both.items():

            def named(body: Body, name: str = name) -> tuple[Body, str | None]:
                body, session = change(body)
                return body, None if session is None else f"{session}-{name}"

            requests[name] += replay(store, config, entries[number : number + 1], named, name)
    for name, entries in both.items():
        assert_as_expected(store, entries, requests[name], name)
    assert requests["lean"][0].session_id != requests["full"][0].session_id


@NAMES
def test_two_clients_who_say_the_same_at_once(store: Store, config: Config, name: str) -> None:
    """Identical openings and answers: told apart by what the client calls them, else ambiguous."""
    entries = recorded(name)[:2]

    def another(body: Body) -> tuple[Body, str | None]:
        return json.loads(re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}", "0" * 32, json.dumps(body))), None

    for number in range(2):
        first = replay(store, config, entries[number : number + 1], as_it_came, "a")
        second = replay(store, config, entries[number : number + 1], another, "b")
    assert (first[0].parent_turn_id, second[0].parent_turn_id) == ("a1", "b1")
    assert first[0].session_id != second[0].session_id

    for number in range(2):
        third = replay(store, config, entries[number : number + 1], without_any_name, "c")
    assert (third[0].ambiguous, third[0].parent_turn_id, third[0].new_messages) == (True, None, ())
    assert store.status.counts().counters["requests_ambiguous"] == 1
    turn = store.turns.get("c2")
    assert turn is not None
    assert turn.reason == "ambiguous_parent"
