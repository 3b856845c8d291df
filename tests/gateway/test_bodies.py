"""Bodies that are wrong are 400s that name the field; bodies that are only unusual are answered."""

from __future__ import annotations

import json
from typing import Any

import pytest

from openclaw_rl.serving.gateway.dialects import openai_chat
from openclaw_rl.serving.gateway.errors import GatewayError
from tests.gateway.conftest import USER, Gateway

CALL: dict[str, Any] = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "policy", "messages": [USER], **fields}


def messages(*items: Any) -> dict[str, Any]:
    return body(messages=list(items))


def tools(*items: Any) -> dict[str, Any]:
    return body(tools=list(items))


def nested(depth: int) -> Any:
    value: Any = {}
    for _ in range(depth):
        value = {"properties": value}
    return value


WRONG: list[tuple[Any, str | None]] = [
    (b"", None),
    (b"{", None),
    (b"[]", None),
    (b'"text"', None),
    (b"null", None),
    (b'{"model": "policy"} trailing', None),
    (b'\xff\xfe{"model"', None),
    (b"\xef\xbb\xbf{}", None),
    (json.dumps(body()).encode("utf-16"), None),
    (b"[" * 100_000, None),
    ({"messages": [USER]}, "model"),
    (body(model=None), "model"),
    (body(model=""), "model"),
    (body(model=7), "model"),
    ({"model": "policy"}, "messages"),
    (body(messages=None), "messages"),
    (body(messages=[]), "messages"),
    (body(messages={}), "messages"),
    (body(messages="Hello"), "messages"),
    (messages("Hello"), "messages[0]"),
    (messages(USER, None), "messages[1]"),
    (messages({"content": "x"}), "messages[0].role"),
    (messages({"role": "robot", "content": "x"}), "messages[0].role"),
    (messages({"role": "function", "name": "f", "content": "x"}), "messages[0].role"),
    (messages({"role": 1, "content": "x"}), "messages[0].role"),
    (messages(USER, USER, {"role": "user"}), "messages[2].content"),
    (messages({"role": "user", "content": None}), "messages[0].content"),
    (messages({"role": "user", "content": 5}), "messages[0].content"),
    (messages({"role": "user", "content": {}}), "messages[0].content"),
    (messages({"role": "user", "content": []}), "messages[0].content"),
    (messages({"role": "user", "content": ["x"]}), "messages[0].content[0]"),
    (messages({"role": "user", "content": [{"text": "x"}]}), "messages[0].content[0].type"),
    (messages({"role": "user", "content": [{"type": "text"}]}), "messages[0].content[0].text"),
    (messages({"role": "user", "content": [{"type": "text", "text": 1}]}), "messages[0].content[0].text"),
    (
        messages({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}),
        "messages[0].content[0].type",
    ),
    (messages({**USER, "contents": "x"}), "messages[0].contents"),
    (messages({**USER, "name": 3}), "messages[0].name"),
    (messages({**USER, "tool_calls": [CALL]}), "messages[0].tool_calls"),
    (messages(USER, {"role": "assistant"}), "messages[1].content"),
    (messages(USER, {"role": "assistant", "content": None, "tool_calls": []}), "messages[1].content"),
    (messages(USER, {"role": "assistant", "content": "x", "tool_calls": {}}), "messages[1].tool_calls"),
    (messages(USER, {"role": "assistant", "content": "x", "audio": {"id": "a"}}), "messages[1].audio"),
    (
        messages(USER, {"role": "assistant", "tool_calls": [{**CALL, "id": None}]}),
        "messages[1].tool_calls[0].id",
    ),
    (
        messages(USER, {"role": "assistant", "tool_calls": [{**CALL, "type": "custom"}]}),
        "messages[1].tool_calls[0].type",
    ),
    (
        messages(USER, {"role": "assistant", "tool_calls": [{**CALL, "function": {"arguments": "{}"}}]}),
        "messages[1].tool_calls[0].function.name",
    ),
    (
        messages(USER, {"role": "assistant", "tool_calls": [{**CALL, "function": {"name": "f", "arguments": {}}}]}),
        "messages[1].tool_calls[0].function.arguments",
    ),
    (messages(USER, {"role": "tool", "content": "x"}), "messages[1].tool_call_id"),
    (messages(USER, {"role": "tool", "content": "x", "tool_call_id": ""}), "messages[1].tool_call_id"),
    (messages(USER, {"role": "tool", "tool_call_id": "call_1"}), "messages[1].content"),
    (body(stream="yes"), "stream"),
    (body(stream=1), "stream"),
    (body(temperature="hot"), "temperature"),
    (body(temperature=True), "temperature"),
    (body(temperature=2.5), "temperature"),
    (body(temperature=-0.1), "temperature"),
    (b'{"model":"policy","messages":[{"role":"user","content":"x"}],"temperature":NaN}', "temperature"),
    (b'{"model":"policy","messages":[{"role":"user","content":"x"}],"temperature":1e999}', "temperature"),
    (b'{"model":"policy","messages":[{"role":"user","content":"x"}],"seed":1' + b"0" * 5000 + b"}", "seed"),
    (b'{"model":"policy","messages":[{"role":"user","content":"\\ud800"}]}', "messages[0].content"),
    (body(top_p=0), "top_p"),
    (body(top_p=1.5), "top_p"),
    (body(max_tokens=0), "max_tokens"),
    (body(max_tokens=1.5), "max_tokens"),
    (body(max_tokens=True), "max_tokens"),
    (body(max_tokens=2**40), "max_tokens"),
    (body(max_completion_tokens=-1), "max_completion_tokens"),
    (body(max_tokens=1, max_completion_tokens=2), "max_tokens"),
    (body(seed=2**64), "seed"),
    (body(seed="x"), "seed"),
    (body(stop=""), "stop"),
    (body(stop=5), "stop"),
    (body(stop=["a", 1]), "stop[1]"),
    (body(stop=list("abcde")), "stop"),
    (body(stream_options={"include_usage": True}), "stream_options"),
    (body(stream=True, stream_options=[]), "stream_options"),
    (body(stream=True, stream_options={"include_usage": 1}), "stream_options.include_usage"),
    (body(stream=True, stream_options={"usage": True}), "stream_options.usage"),
    (body(n=2), "n"),
    (body(n=True), "n"),
    (body(n="1"), "n"),
    (body(logit_bias={"5": 1}), "logit_bias"),
    (body(frequency_penalty=0.5), "frequency_penalty"),
    (body(frequency_penalty=False), "frequency_penalty"),
    (body(presence_penalty=-1), "presence_penalty"),
    (body(response_format={"type": "json_object"}), "response_format"),
    (body(functions=[]), "functions"),
    (body(function_call="auto"), "function_call"),
    (body(audio={"voice": "x"}), "audio"),
    (body(modalities=["audio"]), "modalities"),
    (body(parallel_tool_calls=False), "parallel_tool_calls"),
    (body(top_k=-2), "top_k"),
    (body(top_k=1.5), "top_k"),
    (body(logprobs=2), "logprobs"),
    (body(top_logprobs=0), "top_logprobs"),
    (body(logprobs=True, top_logprobs=3), "top_logprobs"),
    (body(user=5), "user"),
    (body(metadata=[]), "metadata"),
    (body(metadata={"a": 1}), "metadata.a"),
    (body(tools={}), "tools"),
    (tools("look"), "tools[0]"),
    (tools({"function": {"name": "f"}}), "tools[0].type"),
    (tools({"type": "custom", "custom": {}}), "tools[0].type"),
    (tools({"type": "function"}), "tools[0].function"),
    (tools(TOOL, {"type": "function", "function": {}}), "tools[1].function.name"),
    (tools({"type": "function", "function": {"name": "a b"}}), "tools[0].function.name"),
    (tools({"type": "function", "function": {"name": "f", "parameters": []}}), "tools[0].function.parameters"),
    (
        tools({"type": "function", "function": {"name": "f", "parameters": nested(200)}}),
        "tools[0].function.parameters",
    ),
    (tools({"type": "function", "function": {"name": "f", "strict": True}}), "tools[0].function.strict"),
    (tools(TOOL, TOOL), "tools[1].function.name"),
    (body(tools=[TOOL], tool_choice="required"), "tool_choice"),
    (body(tools=[TOOL], tool_choice={"type": "function", "function": {"name": "look"}}), "tool_choice"),
    (body(tools=[TOOL], tool_choice="maybe"), "tool_choice"),
    (body(session_id=""), "session_id"),
    (body(session_id="two words"), "session_id"),
    (body(session_id="a\r\nX-Evil: 1"), "session_id"),
    (body(session_id="x" * 257), "session_id"),
    (body(turn_type="MAIN"), "turn_type"),
    (body(session_done="yes"), "session_done"),
    (body(temprature=1.0), "temprature"),
]


@pytest.mark.parametrize(("content", "param"), WRONG)
def test_wrong_body_is_a_400_that_names_the_field(shared: Gateway, content: Any, param: str | None) -> None:
    raw = content if isinstance(content, bytes) else json.dumps(content).encode()
    response = shared.http.post("/v1/chat/completions", content=raw)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"
    assert error["message"]
    assert error["code"]


def test_nothing_wrong_was_recorded_or_asked(shared: Gateway) -> None:
    before = len(shared.engine.asked), len(shared.requests())
    assert shared.post(body(temperature="hot")).status_code == 400
    assert (len(shared.engine.asked), len(shared.requests())) == before


def test_unknown_field_names_the_nearest(shared: Gateway) -> None:
    message = shared.post(body(max_token=5)).json()["error"]["message"]
    assert "max_tokens" in message


UNUSUAL: list[dict[str, Any]] = [
    body(store=True, service_tier="auto", prompt_cache_key="k", reasoning_effort="low", verbosity="low"),
    body(n=1, frequency_penalty=0.0, presence_penalty=0, logit_bias={}, response_format={"type": "text"}),
    body(parallel_tool_calls=True, top_logprobs=None, tools=None, stop=None, stream_options=None, seed=-5),
    body(user="me", metadata={"a": "b"}, safety_identifier="x", temperature=0, top_p=1),
    body(tools=[], tool_choice="none"),
    body(messages=[{"role": "developer", "content": "Be kind."}, {**USER, "name": "Ann"}]),
    body(messages=[{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]),
    messages(
        USER,
        {
            "role": "assistant",
            "content": None,
            "refusal": None,
            "audio": None,
            "function_call": None,
            "annotations": [],
            "parsed": None,
            "tool_calls": [{**CALL, "index": 0, "function": {**CALL["function"], "parsed_arguments": None}}],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "found"}]},
    ),
    messages(USER, {"role": "assistant", "content": "", "reasoning_content": "hm"}, USER),
]


@pytest.mark.parametrize("content", UNUSUAL)
def test_unusual_body_is_answered(shared: Gateway, content: dict[str, Any]) -> None:
    response = shared.post(content)
    assert response.status_code == 200, response.text


def test_parse_reads_everything_that_it_honours() -> None:
    raw = json.dumps(
        body(
            max_completion_tokens=7,
            temperature=0.5,
            top_p=0.9,
            stop=["a", "b"],
            seed=3,
            stream=True,
            stream_options={"include_usage": True},
            tools=[TOOL],
            tool_choice="auto",
            logprobs=True,
            top_logprobs=0,
            session_id="s1",
            turn_type="side",
            session_done=True,
        )
    ).encode()
    parsed = openai_chat.parse(raw, default_max_tokens=99)
    assert parsed.messages == (USER,)
    assert parsed.tools == (TOOL,)
    assert (parsed.sampling.max_tokens, parsed.sampling.temperature, parsed.sampling.top_p) == (7, 0.5, 0.9)
    assert (parsed.sampling.stop, parsed.sampling.seed) == (("a", "b"), 3)
    assert parsed.stream
    assert parsed.include_usage
    assert parsed.logprobs
    assert (parsed.session_id, parsed.turn_type, parsed.session_done) == ("s1", "side", True)


def test_parse_defaults() -> None:
    parsed = openai_chat.parse(json.dumps(body()).encode(), default_max_tokens=99)
    assert (parsed.sampling.max_tokens, parsed.sampling.temperature, parsed.sampling.top_p) == (99, 1.0, 1.0)
    assert not parsed.stream
    assert parsed.session_id is None
    assert parsed.turn_type is None
    assert parsed.session_done is None


def test_tool_choice_none_hides_the_tools() -> None:
    raw = json.dumps(body(tools=[TOOL], tool_choice="none")).encode()
    assert openai_chat.parse(raw, default_max_tokens=1).tools == ()


def test_a_number_that_is_not_finite_is_named_wherever_it_hides() -> None:
    raw = b'{"model":"p","messages":[],"tools":[{"function":{"parameters":{"maximum":-Infinity}}}]}'
    with pytest.raises(GatewayError) as caught:
        openai_chat.parse(raw, default_max_tokens=1)
    assert caught.value.param == "tools[0].function.parameters.maximum"


def test_whole_surrogate_pairs_are_text() -> None:
    raw = b'{"model":"p","messages":[{"role":"user","content":"\\ud83d\\ude00"}]}'
    assert openai_chat.parse(raw, default_max_tokens=1).messages[0]["content"] == "\U0001f600"


def test_body_above_the_limit_is_413(shared: Gateway) -> None:
    huge = b" " * (32 * 1024 * 1024 + 1)
    response = shared.http.post("/v1/chat/completions", content=huge)
    assert response.status_code == 413
    assert response.json()["error"]["code"] == "request_too_large"
    chunked = shared.http.post("/v1/chat/completions", content=iter([huge[: 2**24]] * 3))
    assert chunked.status_code == 413
