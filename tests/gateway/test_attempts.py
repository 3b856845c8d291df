"""Real OpenClaw conversations, retries, siblings and side turns through a gateway that listens."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from openclaw_rl.rollout.loop import run_pass
from openclaw_rl.serving.engines.protocol import ChatRequest, EngineError
from openclaw_rl.types import SignalKind, TurnState
from tests.gateway.conftest import Gateway, running, wait_until
from tests.gateway.fake_engine import FakeEngine, Said

DATA = Path(__file__).parent.parent / "data"
USER: Any = {"role": "user", "content": "Hello there"}
SYSTEM: Any = {"role": "system", "content": "Be kind."}


def recorded(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATA / f"openclaw_{name}.jsonl").read_text().splitlines()]


def as_recorded(answer: Mapping[str, Any] | None) -> Said:
    if answer is None:
        return Said(first_error=EngineError("as recorded"))
    calls = [{"index": number, **call} for number, call in enumerate(answer.get("tool_calls", ()))]
    return Said(text=answer["content"] or "", tool_calls=tuple(calls))


@pytest.mark.parametrize("session", [None, "openclaw-session"])
@pytest.mark.parametrize("name", ["lean", "full"])
def test_openclaw_through_the_gateway(tmp_path: Path, name: str, session: str | None) -> None:
    entries = recorded(name)
    answers = iter(entries)
    engine = FakeEngine(say=lambda _request: as_recorded(next(answers)["answer"]))
    with running(tmp_path / "run", engine) as gateway:
        turns: dict[int, str] = {}
        for entry in entries:
            headers = {**entry["headers"], **({"X-Session-Id": session} if session else {})}
            response = gateway.post(entry["body"], headers=headers)
            assert (response.status_code == 200) == (entry["status"] == 200)
            turns[entry["request"]] = response.headers["X-Turn-Id"]
            run_pass(gateway.store, gateway.config, time.time())
        rows = {row["turn_id"]: row for row in gateway.requests()}
        assert len({row["session_id"] for row in rows.values()}) == 1
        assert rows[turns[6]]["retry_of"] == turns[5]
        for entry in entries:
            expect = entry["expect"]
            turn = gateway.store.turns.get(turns[entry["request"]])
            assert (turn is None) == (expect is None)
            if turn is not None:
                parent = turns[expect["parent"]] if expect["parent"] else None
                assert turn.request.parent_turn_id == parent
                assert len(turn.next_state or ()) == len(expect["next_state"])
                for message, one in zip(turn.next_state or (), expect["next_state"], strict=True):
                    assert (message["role"], message.get("tool_call_id")) == (one["role"], one.get("tool_call_id"))
                    assert one.get("contains", "") in message["content"]


def ask(gateway: Gateway, *messages: Any, headers: Mapping[str, str] | None = None, **fields: Any) -> httpx.Response:
    return gateway.post({"model": "policy", "messages": list(messages), **fields}, headers=dict(headers or {}))


def row(gateway: Gateway, response: httpx.Response) -> dict[str, Any]:
    return next(one for one in gateway.requests() if one["turn_id"] == response.headers["X-Turn-Id"])


def test_first_message_retried_after_a_failure_stays_in_its_session(gateway: Gateway) -> None:
    said = iter([Said(first_error=EngineError("down")), Said(text="Hi.")])
    gateway.engine.say = lambda _request: next(said)
    failed, answered = ask(gateway, SYSTEM, USER), ask(gateway, SYSTEM, USER)
    assert (failed.status_code, answered.status_code) == (502, 200)
    assert row(gateway, answered)["retry_of"] == failed.headers["X-Turn-Id"]
    assert row(gateway, answered)["session_id"] == row(gateway, failed)["session_id"]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({}, {"x-stainless-retry-count": "1"}),
        ({"Idempotency-Key": "a"}, {"Idempotency-Key": "a"}),
    ],
)
@pytest.mark.parametrize("pass_between", [False, True])
def test_what_its_client_asks_for_again_is_not_trained(
    gateway: Gateway, first: dict[str, str], second: dict[str, str], pass_between: bool
) -> None:
    lost = ask(gateway, USER, headers=first)
    if pass_between:
        run_pass(gateway.store, gateway.config, time.time())
    taken = ask(gateway, USER, headers=second)
    assert row(gateway, taken)["retry_of"] == lost.headers["X-Turn-Id"]
    assert row(gateway, taken)["session_id"] == row(gateway, lost)["session_id"]
    turn = gateway.store.turns.get(lost.headers["X-Turn-Id"])
    assert turn is not None
    assert (turn.state, turn.reason) == (TurnState.EXCLUDED, "not_delivered")
    assert gateway.store.status.counts().counters["requests_retried"] == 1


@pytest.mark.parametrize("count", ["0", "", "many", "-1"])
def test_no_retry_without_a_count(gateway: Gateway, count: str) -> None:
    headers = {"X-Session-Id": "s", "x-stainless-retry-count": count}
    ask(gateway, USER, headers=headers)
    assert row(gateway, ask(gateway, USER, headers=headers))["retry_of"] is None


def test_regenerated_answer_is_a_sibling_and_a_signal(gateway: Gateway) -> None:
    headers = {"X-Session-Id": "s"}
    first = ask(gateway, USER, headers=headers)
    second = ask(gateway, USER, headers=headers)
    assert row(gateway, second)["sibling_of"] == first.headers["X-Turn-Id"]
    signals = gateway.store.lineage.signals(first.headers["X-Turn-Id"])
    assert [(one.kind, one.by_turn_id) for one in signals] == [(SignalKind.REGENERATED, second.headers["X-Turn-Id"])]
    assert gateway.store.turns.get(first.headers["X-Turn-Id"]).reason is None  # type: ignore[union-attr]


def test_edited_question_is_a_signal(gateway: Gateway) -> None:
    opening = ask(gateway, USER)
    answer = opening.json()["choices"][0]["message"]
    old = ask(gateway, USER, answer, {"role": "user", "content": "What is a poem?"})
    new = ask(gateway, USER, answer, {"role": "user", "content": "What is a short poem?"})
    assert row(gateway, new)["parent_turn_id"] == row(gateway, old)["parent_turn_id"] == opening.headers["X-Turn-Id"]
    signals = gateway.store.lineage.signals(old.headers["X-Turn-Id"])
    assert [(one.kind, one.by_turn_id) for one in signals] == [(SignalKind.EDITED, new.headers["X-Turn-Id"])]
    # The first child gave the next state; the edited question is a branch.
    run_pass(gateway.store, gateway.config, time.time())
    turn = gateway.store.turns.get(opening.headers["X-Turn-Id"])
    assert turn is not None
    assert turn.next_state == ({"role": "user", "content": "What is a poem?"},)


def test_client_that_leaves_has_abandoned_the_answer_and_retries_it(gateway: Gateway) -> None:
    gateway.engine.say = lambda _request: Said(text="a b c d e f g h", pause_s=0.2)
    with gateway.http.stream(
        "POST", "/v1/chat/completions", json={"model": "policy", "messages": [USER], "stream": True}
    ) as response:
        next(response.iter_lines())
        left = response.headers["X-Turn-Id"]
    wait_until(lambda: gateway.requests()[0]["status"] == "cancelled")
    assert [one.kind for one in gateway.store.lineage.signals(left)] == [SignalKind.ABANDONED]
    gateway.engine.say = lambda _request: Said(text="Hi.")
    again = ask(gateway, USER)
    assert row(gateway, again)["retry_of"] == left
    assert gateway.store.turns.get(left) is None


def test_housekeeping_is_recognised_unless_the_client_says_what_it_is(gateway: Gateway) -> None:
    heartbeat = {"role": "user", "content": "Read HEARTBEAT.md if it exists (workspace context)."}
    side = row(gateway, ask(gateway, heartbeat))
    assert (side["turn_type"], side["side_rule"]) == ("side", "heartbeat")
    main = row(gateway, ask(gateway, heartbeat, headers={"X-Turn-Type": "main"}))
    assert (main["turn_type"], main["side_rule"]) == ("main", None)
    said = row(gateway, ask(gateway, USER, turn_type="side"))
    assert (said["turn_type"], said["side_rule"]) == ("side", None)
    counters = gateway.store.status.counts().counters
    assert (counters["side_turns_heartbeat"], counters["side_turns_said_by_client"]) == (1, 1)


def test_a_group_of_rollouts_at_once_are_siblings_without_signals(gateway: Gateway) -> None:
    def slow(_request: ChatRequest) -> Said:
        return Said(text="a b c", pause_s=0.1)

    gateway.engine.say = slow
    import concurrent.futures

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        headers = {"X-Session-Id": "group"}
        group = list(pool.map(lambda _: ask(gateway, USER, headers=headers), range(4)))
    rows = [row(gateway, one) for one in group]
    assert sum(one["sibling_of"] is None for one in rows) == 1
    assert not any(one["retry_of"] for one in rows)
    assert not any(gateway.store.lineage.signals(one["turn_id"]) for one in rows)


def test_user_who_comes_back_after_the_session_was_ended_still_reacts(gateway: Gateway) -> None:
    headers = {"X-Session-Id": "s"}
    first = ask(gateway, USER, headers=headers)
    turn_id = first.headers["X-Turn-Id"]
    run_pass(gateway.store, gateway.config, time.time())
    assert gateway.http.post("/v1/sessions/s/end").status_code == 200
    run_pass(gateway.store, gateway.config, time.time())
    assert gateway.turn(turn_id).reason == "no_next_state"
    ask(gateway, USER, first.json()["choices"][0]["message"], {"role": "user", "content": "Thanks."}, headers=headers)
    run_pass(gateway.store, gateway.config, time.time())
    assert gateway.turn(turn_id).state is TurnState.JUDGING
    assert gateway.turn(turn_id).next_state == ({"role": "user", "content": "Thanks."},)
