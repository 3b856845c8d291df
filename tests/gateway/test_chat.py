"""One request at a time, asked with the official client: streamed and not, recorded before it ends."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.serving.engines.protocol import EngineCapabilities
from openclaw_rl.types import ExclusionReason, FinishReason, TurnState
from tests.gateway.conftest import USER, Gateway, running, wait_until
from tests.gateway.fake_engine import FakeEngine, Said, call

ANSWER = "You said: Hello there, how are you?"


def test_answer_not_streamed(shared: Gateway) -> None:
    answer = shared.client().chat.completions.create(model="policy", messages=[USER], max_tokens=9, seed=1)
    assert answer.choices[0].message.content == ANSWER
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.object == "chat.completion"
    assert answer.model == "policy"
    assert answer.system_fingerprint == "base"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (3, 7, 10)
    asked = shared.engine.asked[-1]
    assert (asked.sampling.max_tokens, asked.sampling.seed, asked.version) == (9, 1, 0)


def test_turn_is_recorded_exactly(shared: Gateway) -> None:
    answer = shared.client().chat.completions.create(model="policy", messages=[USER], temperature=0.7)
    turn = shared.turn(answer.id)
    assert turn.answer == {"role": "assistant", "content": ANSWER}
    assert turn.tokens.prompt_ids == (1, 2, 3)
    assert turn.tokens.response_ids == (10, 11, 12, 13, 14, 15, 16)
    assert turn.tokens.logprobs == (-0.1, -0.11, -0.12, -0.13, -0.14, -0.15, -0.16)
    assert turn.tokens.versions == (0,) * 7
    assert turn.sampling.temperature == 0.7
    assert turn.finish_reason is FinishReason.STOP
    assert turn.state is TurnState.SERVED
    assert turn.request.messages == (USER,)
    assert turn.request.key_id == "local"
    assert turn.request.model == "policy"
    assert turn.turn_id.isalnum()


def test_stream_in_the_order_that_clients_expect(shared: Gateway) -> None:
    chunks = list(
        shared.client().chat.completions.create(
            model="policy", messages=[USER], stream=True, stream_options={"include_usage": True}
        )
    )
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == ANSWER
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * 8 + ["stop"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 7
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert shared.turn(chunks[0].id).answer["content"] == ANSWER


def test_stream_on_the_wire(shared: Gateway) -> None:
    response = shared.post({"model": "policy", "messages": [USER], "stream": True})
    assert response.headers["content-type"].startswith("text/event-stream")
    events = response.text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    assert all(event.startswith("data: {") for event in events[:-2])
    assert all("usage" not in json.loads(event[6:]) for event in events[:-2])


def test_every_answer_says_who_gave_it(shared: Gateway) -> None:
    for stream in (False, True):
        response = shared.post({"model": "policy", "messages": [USER], "stream": stream})
        turn = shared.turn(response.headers["x-turn-id"])
        assert f"chatcmpl-{turn.turn_id}" in response.text
        assert response.headers["x-session-id"] == turn.request.session_id
        assert response.headers["x-policy-version"] == "0"
        assert "access-control-allow-origin" not in response.headers


def test_asynchronous_client_many_at_once(shared: Gateway) -> None:
    async def one(client: Any, number: int) -> str:
        text = ""
        stream = await client.chat.completions.create(
            model="policy", messages=[{"role": "user", "content": f"number {number}"}], stream=True
        )
        async for chunk in stream:
            text += chunk.choices[0].delta.content or ""
        return text

    async def many() -> list[str]:
        async with shared.async_client() as client:
            return await asyncio.gather(*(one(client, number) for number in range(20)))

    assert asyncio.run(many()) == [f"You said: number {number}" for number in range(20)]


def test_committed_before_the_client_sees_the_end(shared: Gateway) -> None:
    body = {"model": "policy", "messages": [USER], "stream": True}
    seen: list[tuple[str, bool]] = []
    with shared.http.stream("POST", "/v1/chat/completions", json=body) as response:
        turn_id = response.headers["x-turn-id"]
        for line in response.iter_lines():
            if line.startswith("data: "):
                seen.append((line, shared.store.turns.get(turn_id) is not None))
    finish = next(index for index, (line, _) in enumerate(seen) if '"finish_reason":"stop"' in line)
    assert seen[-1] == ("data: [DONE]", True)
    assert seen[finish][1]


def test_request_is_recorded_before_the_engine_is_asked(tmp_path: Path) -> None:
    seen: list[list[str]] = []

    def say(request: Any) -> Said:
        seen.append([row["status"] for row in gateway.requests() if row["turn_id"] == request.request_id])
        return Said(text="Fine.")

    with running(tmp_path / "run", FakeEngine(say=say)) as gateway:
        assert gateway.post({"model": "policy", "messages": [USER]}).status_code == 200
        assert [row["status"] for row in gateway.requests()] == ["served"]
    assert seen == [["open"]]


def test_logprobs_of_the_sampled_tokens(shared: Gateway) -> None:
    client = shared.client()
    whole = client.chat.completions.create(model="policy", messages=[USER], logprobs=True)
    logprobs = whole.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert [entry.logprob for entry in logprobs.content] == [-0.1, -0.11, -0.12, -0.13, -0.14, -0.15, -0.16]
    assert logprobs.content[0].token == "token_id:10"
    streamed: list[float] = []
    for chunk in client.chat.completions.create(
        model="policy", messages=[USER], logprobs=True, top_logprobs=0, stream=True
    ):
        if chunk.choices[0].logprobs and chunk.choices[0].logprobs.content:
            streamed += [entry.logprob for entry in chunk.choices[0].logprobs.content]
    assert streamed == [entry.logprob for entry in logprobs.content]


def test_tool_calls_streamed_and_not(tmp_path: Path) -> None:
    deltas = (*call(0, "look", '{"place": "here"}', "call0"), *call(1, "wait", "{}", "call1"))
    tools: list[Any] = [{"type": "function", "function": {"name": name}} for name in ("look", "wait")]
    with running(tmp_path / "run", FakeEngine(say=lambda _: Said(tool_calls=deltas))) as gateway:
        client = gateway.client()
        whole = client.chat.completions.create(model="policy", messages=[USER], tools=tools)
        assert whole.choices[0].finish_reason == "tool_calls"
        assert whole.choices[0].message.content is None
        calls = whole.choices[0].message.tool_calls
        assert calls is not None
        assert [item.to_dict() for item in calls] == [
            {"id": "call0", "type": "function", "function": {"name": "look", "arguments": '{"place": "here"}'}},
            {"id": "call1", "type": "function", "function": {"name": "wait", "arguments": "{}"}},
        ]
        with client.chat.completions.stream(model="policy", messages=[USER], tools=tools) as stream:
            final = stream.get_final_completion()
        streamed = final.choices[0].message.tool_calls
        assert streamed is not None
        assert [item.function.arguments for item in streamed] == ['{"place": "here"}', "{}"]
        assert gateway.turn(final.id).answer["tool_calls"] == [item.to_dict() for item in calls]


@pytest.mark.parametrize(
    ("field", "value"), [("tools", [{"type": "function", "function": {"name": "f"}}]), ("logprobs", True)]
)
def test_what_the_engine_cannot_do_is_refused_by_name(tmp_path: Path, field: str, value: Any) -> None:
    poor = EngineCapabilities(token_ids=True, logprobs=False, lora_versions=True, score=True, tools=False)
    with running(tmp_path / "run", FakeEngine(capabilities=poor)) as gateway:
        response = gateway.post({"model": "policy", "messages": [USER], field: value})
        assert response.status_code == 400
        assert response.json()["error"]["param"] == field


def test_models_and_unknown_models(shared: Gateway) -> None:
    assert [model.id for model in shared.client().models.list()] == ["policy", "base"]
    for name in ("gpt-4", "policy-v7", "policy-v0", "POLICY"):
        response = shared.post({"model": name, "messages": [USER]})
        assert response.status_code == 404
        assert response.json()["error"]["param"] == "model"


def test_base_is_served_and_never_trained(shared: Gateway) -> None:
    answer = shared.client().chat.completions.create(model="base", messages=[USER])
    turn = shared.turn(answer.id)
    assert (turn.state, turn.reason) == (TurnState.EXCLUDED, ExclusionReason.NOT_FROM_POLICY)


def test_count_mismatch_is_served_and_marked(tmp_path: Path) -> None:
    engine = FakeEngine(say=lambda _: Said(text="Fine.", extra_completion_tokens=1))
    with running(tmp_path / "run", engine) as gateway:
        answer = gateway.client().chat.completions.create(model="policy", messages=[USER])
        assert answer.choices[0].message.content == "Fine."
        assert gateway.turn(answer.id).reason is ExclusionReason.TOKEN_COUNT_MISMATCH
        assert gateway.store.status.counts().counters["turns_excluded_token_count_mismatch"] == 1


def test_no_train_leaves_no_trace(gateway: Gateway) -> None:
    response = gateway.post({"model": "policy", "messages": [USER]}, headers={"X-No-Train": "1", "X-Session-Id": "j"})
    assert response.status_code == 200
    assert response.headers["x-session-id"] == "j"
    assert gateway.requests() == []
    assert gateway.store.status.counts().sessions == 0


def test_health_routes_and_unknown_ones(shared: Gateway) -> None:
    assert shared.http.get("/healthz").json() == {"status": "ok"}
    ready = shared.http.get("/readyz").json()
    assert ready["ready"]
    wait_until(lambda: shared.http.get("/readyz").json()["loops"]["gateway"]["activity"] == "serving")
    listed = shared.http.get("/v1/models").json()["data"]
    for one in listed:
        assert shared.http.get(f"/v1/models/{one['id']}").json()["id"] == one["id"]
    for method, path, status in (
        ("GET", "/v1/models/gpt-4", 404),
        ("GET", "/v1/models/mine/of-many-parts", 404),
        ("GET", "/nowhere", 404),
        ("GET", "/v1/chat/completions", 405),
        ("POST", "/v1/models", 405),
        ("POST", "/v1/chat/completions/", 404),
        ("GET", "/docs", 404),
    ):
        response = shared.http.request(method, path)
        assert response.status_code == status
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}


def test_token_ids_are_returned_to_whoever_asks_for_them(shared: Gateway) -> None:
    body = {"model": "policy", "messages": [USER], "return_token_ids": True}
    whole = shared.post(body).json()
    assert whole["prompt_token_ids"] == [1, 2, 3]
    assert whole["choices"][0]["token_ids"] == [10, 11, 12, 13, 14, 15, 16]
    lines = shared.post({**body, "stream": True, "logprobs": True}).text.split("\n\n")
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert [chunk.get("prompt_token_ids") for chunk in chunks] == [[1, 2, 3], *[None] * (len(chunks) - 1)]
    choices = [chunk["choices"][0] for chunk in chunks]
    assert [token for choice in choices for token in choice.get("token_ids", ())] == [10, 11, 12, 13, 14, 15, 16]
    for choice in choices:
        assert len((choice["logprobs"] or {"content": []})["content"]) == len(choice.get("token_ids", ()))
    plain = shared.post({**body, "return_token_ids": False}).json()
    assert "prompt_token_ids" not in plain
    assert "token_ids" not in plain["choices"][0]
    assert shared.post({**body, "return_token_ids": 1}).json()["error"]["param"] == "return_token_ids"
