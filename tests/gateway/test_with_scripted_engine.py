"""The gateway's own process entry against the scripted engine's, over real HTTP on both sides."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import openai
import pytest

from openclaw_rl.config import Config
from openclaw_rl.serving.gateway import server
from openclaw_rl.store import Store
from openclaw_rl.testing import scripted_engine
from openclaw_rl.types import ExclusionReason, TurnState
from tests.gateway.conftest import free_port, wait_until

SCRIPT: list[dict[str, Any]] = [
    {"match": "sunny", "on": "tool", "text": "It will be sunny in Bern."},
    {"match": "weather", "tool_calls": [{"name": "forecast", "arguments": {"place": "Bern", "days": 2}}]},
    {"match": "broken", "text": "too few", "fail": 502, "fail_after": 3},
    {"match": "refused", "fail": 503},
    {"match": "miscounted", "text": "off by one", "extra_tokens": 1},
    {"match": "blind", "text": "no numbers", "logprobs": "nan"},
    {"match": "slow", "text": "word " * 400, "delay_per_token_s": 0.01},
    {"text": "You are welcome."},
]
TOOLS: list[Any] = [{"type": "function", "function": {"name": "forecast", "parameters": {"type": "object"}}}]

Talk = tuple[openai.OpenAI, Store, httpx.Client]


@pytest.fixture(scope="module")
def talk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Talk]:
    folder = tmp_path_factory.mktemp("scripted")
    script = folder / "script.json"
    script.write_text(json.dumps(SCRIPT))
    config = Config.model_validate({
        "run_dir": folder / "run",
        "serving": {"port": free_port(), "engine_wait_s": 0.5},
        "engine": {"kind": "scripted", "script": script, "port": free_port(), "context_length": 8192},
        "supervisor": {"shutdown_timeout_s": 3},
    })  # fmt: skip
    stops = [threading.Event(), threading.Event()]
    loops: list[Callable[[Config, threading.Event], None]] = [server.run, scripted_engine.run]
    threads = [threading.Thread(target=run, args=(config, stop)) for run, stop in zip(loops, stops, strict=True)]
    store = Store.open(config.store_path)
    for thread in threads:
        thread.start()
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{config.serving.port}", timeout=20, verify=False) as http:
            wait_until(lambda: _ready(http), timeout_s=30)
            client = openai.OpenAI(base_url=f"{http.base_url}/v1", api_key="none", max_retries=0)
            yield client, store, http
    finally:
        for thread, stop in zip(threads, stops, strict=True):  # the gateway first
            stop.set()
            thread.join(20)
        store.close()
    assert not any(thread.is_alive() for thread in threads)


def _ready(http: httpx.Client) -> bool:
    try:
        return http.get("/readyz").status_code == 200
    except httpx.TransportError:
        return False


@pytest.mark.parametrize("headers", [{}, {"X-Session-Id": "weather-talk"}])
def test_conversation_with_one_tool_call(talk: Talk, headers: dict[str, str]) -> None:
    client, store, _ = talk
    messages: list[Any] = [{"role": "user", "content": f"How will the weather be? {sorted(headers)}"}]
    turn_ids: list[str] = []

    def ask() -> Any:
        with client.chat.completions.stream(
            model="policy", messages=messages, tools=TOOLS, extra_headers=headers
        ) as stream:
            answer = stream.get_final_completion()
        turn_ids.append(answer.id.removeprefix("chatcmpl-"))
        message = answer.choices[0].message
        sent: dict[str, Any] = {"role": "assistant", "content": message.content}
        if message.tool_calls:
            sent["tool_calls"] = [
                {
                    "id": item.id,
                    "type": "function",
                    "function": {"name": item.function.name, "arguments": item.function.arguments},
                }
                for item in message.tool_calls
            ]
        messages.append(sent)
        return answer.choices[0]

    first = ask()
    assert first.finish_reason == "tool_calls"
    call = first.message.tool_calls[0]
    assert (call.function.name, json.loads(call.function.arguments)) == ("forecast", {"place": "Bern", "days": 2})
    assert call.id.isalnum()
    result = {"role": "tool", "tool_call_id": call.id, "content": "sunny, 20 degrees"}
    messages.append(result)
    assert ask().message.content == SCRIPT[0]["text"]
    thanks = {"role": "user", "content": "Thanks!"}
    messages.append(thanks)
    assert ask().message.content == "You are welcome."

    turns = [store.turns.get(turn_id) for turn_id in turn_ids]
    called, told, thanked = (turn for turn in turns if turn is not None)
    assert [turn.request.parent_turn_id for turn in (called, told, thanked)] == [None, *turn_ids[:2]]
    assert told.request.new_messages == (result,)
    assert thanked.request.new_messages == (thanks,)
    assert len({turn.request.session_id for turn in (called, told, thanked)}) == 1
    assert called.request.tools == tuple(TOOLS)
    # What rollout will take as next states: each turn's first child.
    next_states = {turn_id: request.new_messages for turn_id, request in _children(store, turn_ids)}
    assert next_states == {turn_ids[0]: (result,), turn_ids[1]: (thanks,)}
    assert bytes(told.tokens.response_ids[:-1]).decode() == SCRIPT[0]["text"]
    assert told.tokens.untrainable_reason() is None


def _children(store: Store, turn_ids: list[str]) -> Any:
    for turn_id in turn_ids:
        store.turns.move(turn_id, TurnState.AWAITING_NEXT_STATE)
    found = store.turns.with_next_request()
    for turn_id in turn_ids:
        store.turns.move(turn_id, TurnState.EXCLUDED, reason=ExclusionReason.GREEDY)  # out of the next test's way
    return found


def ask_plainly(http: httpx.Client, text: str, **fields: Any) -> httpx.Response:
    body = {"model": "policy", "messages": [{"role": "user", "content": text}], **fields}
    return http.post("/v1/chat/completions", json=body)


def test_streamed_equals_not_streamed(talk: Talk) -> None:
    client, _, http = talk
    whole = ask_plainly(http, "hello").json()["choices"][0]["message"]["content"]
    stream = client.chat.completions.create(
        model="policy", messages=[{"role": "user", "content": "hello"}], stream=True
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == whole == "You are welcome."


def test_engine_that_breaks_off(talk: Talk) -> None:
    _, _, http = talk
    assert ask_plainly(http, "broken").status_code == 502
    events = ask_plainly(http, "broken", stream=True).text.rstrip().split("\n\n")
    assert "error" in json.loads(events[-1].removeprefix("data: "))


def test_engine_that_refuses_is_waited_for_then_503(talk: Talk) -> None:
    response = ask_plainly(talk[2], "refused")
    assert response.status_code == 503
    assert response.headers["retry-after"] == "1"


def test_miscounted_and_blind_turns_are_served(talk: Talk) -> None:
    _, store, http = talk
    counted = store.turns.get(ask_plainly(http, "miscounted").headers["x-turn-id"])
    assert counted is not None
    assert counted.reason is ExclusionReason.TOKEN_COUNT_MISMATCH
    answer = ask_plainly(http, "blind", logprobs=True)
    assert answer.json()["choices"][0]["logprobs"]["content"][0]["logprob"] is None
    blind = store.turns.get(answer.headers["x-turn-id"])
    assert blind is not None
    assert blind.tokens.untrainable_reason() is ExclusionReason.NONFINITE_LOGPROBS


def test_context_overflow_names_messages(talk: Talk) -> None:
    response = ask_plainly(talk[2], "long " * 3000)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "messages"


def test_client_that_leaves_frees_the_engine(talk: Talk) -> None:
    _, store, http = talk
    before = store.status.counts().counters.get("requests_cancelled", 0)
    body = {"model": "policy", "messages": [{"role": "user", "content": "slow"}], "stream": True}
    with http.stream("POST", "/v1/chat/completions", json=body) as response:
        next(response.iter_lines())
    wait_until(lambda: store.status.counts().counters.get("requests_cancelled", 0) == before + 1, timeout_s=2.0)
    wait_until(lambda: http.get("/readyz").json()["active_requests"] == 0, timeout_s=2.0)
