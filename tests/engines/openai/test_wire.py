from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw_rl.serving.engines.openai import failures, wire
from openclaw_rl.serving.engines.openai.features import Features
from openclaw_rl.serving.engines.openai.reading import AnswerReader
from openclaw_rl.serving.engines.openai.watcher import sentence
from openclaw_rl.serving.engines.protocol import (
    ChatRequest,
    EngineError,
    EngineOverloaded,
    EngineUnavailable,
    Finished,
    InvalidEngineRequest,
    PromptRead,
    TokensDrawn,
    UnknownVersion,
)
from openclaw_rl.types import SamplingParams

REQUEST = ChatRequest(
    request_id="r",
    messages=({"role": "user", "content": "Hm?"},),
    sampling=SamplingParams(temperature=0.7, top_p=0.9, top_k=4, max_tokens=7, stop=("x",), seed=3),
    version=0,
)


def test_sampling_goes_on_and_what_is_neutral_is_said_as_long_as_answers_may_be_trained() -> None:
    body = wire.request_body(REQUEST, model="big", wording=wire.Wording())
    assert body == {
        "model": "big",
        "messages": REQUEST.messages,
        "stream": True,
        "max_tokens": 7,
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 4,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "stop": ("x",),
        "seed": 3,
        "stream_options": {"include_usage": True},
        "logprobs": True,
        "return_token_ids": True,
    }
    plain = replace(REQUEST, sampling=SamplingParams(max_tokens=7))
    assert wire.NEUTRAL.items() <= wire.request_body(plain, model="big", wording=wire.Wording()).items()
    nothing = wire.Wording(token_ids=False, logprobs=False, usage=False, limit="max_completion_tokens")
    assert wire.request_body(plain, model="big", wording=nothing) == {
        "model": "big",
        "messages": REQUEST.messages,
        "stream": True,
        "max_completion_tokens": 7,
        "temperature": 1.0,
    }


def test_what_is_refused_by_name_is_left_out_one_after_the_other() -> None:
    wording: wire.Wording | None = wire.Wording()
    seen = []
    for refusal in (
        "unknown field min_p",
        "unknown field return_token_ids",
        "stream_options?",
        "no logprobs",
        "use max_completion_tokens",
    ):
        assert wording is not None
        wording = wire.eased(wording, refusal)
        seen.append(wording)
    assert seen[0] == wire.Wording(neutral=False)
    assert seen[-1] == wire.Wording(
        token_ids=False, neutral=False, logprobs=False, usage=False, limit="max_completion_tokens"
    )
    assert wording is not None
    assert wire.eased(wording, "return_token_ids, top_k, logprobs, stream_options, max_completion_tokens") is None
    assert wire.eased(wire.Wording(), "temperature must be below 1") is None


def test_more_tokens_than_the_context_holds_are_as_many_as_it_holds() -> None:
    asked = replace(REQUEST, sampling=SamplingParams(max_tokens=10_000))
    bodies = [wire.request_body(asked, model="big", wording=wire.Wording(), context=most) for most in (512, None)]
    assert [body["max_tokens"] for body in bodies] == [512, 10_000]
    assert wire.request_body(REQUEST, model="big", wording=wire.Wording(), context=512)["max_tokens"] == 7


@given(st.lists(st.text(max_size=20), max_size=6), st.integers(1, 9))
def test_events_are_whole_however_the_bytes_arrive(texts: list[str], size: int) -> None:
    lines = [json.dumps(text, ensure_ascii=False) for text in [*texts, "line\u2028separator"]]
    data = b"".join(f": note\r\ndata: {line}\r\n\r\n".encode() for line in lines)
    splitter = wire.EventSplitter()
    pieces = [data[start : start + size] for start in range(0, len(data), size)]
    assert [event.decode() for piece in pieces for event in splitter.feed(piece)] == [line.strip() for line in lines]


def read(*chunks: dict[str, Any], with_logprobs: bool = True) -> tuple[AnswerReader, list[Any]]:
    reader = AnswerReader(version=3, with_logprobs=with_logprobs)
    events = [event for chunk in chunks for event in reader.add(wire.parse_chunk(json.dumps(chunk).encode()))]
    return reader, [*events, *reader.end()]


def choice(**more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, **more}]}


def entries(*logprobs: float | None) -> dict[str, Any]:
    return {"content": [{"token": "t", "logprob": logprob} for logprob in logprobs]}


def test_ids_and_logprobs_are_taken_as_they_come() -> None:
    first = choice(delta={"role": "assistant", "content": ""}) | {"prompt_token_ids": [8, 9]}
    both = choice(delta={"content": "ab"}, token_ids=[1, 2], logprobs=entries(-0.5, -1.5))
    silent = choice(delta={}, token_ids=[3], logprobs=entries(-2.5), finish_reason="stop")
    usage = {"choices": [], "usage": {"prompt_tokens": 2, "completion_tokens": 3}}
    reader, events = read(first, both, silent, usage)
    assert events == [
        PromptRead(prompt_ids=(8, 9)),
        TokensDrawn(ids=(1, 2), logprobs=(-0.5, -1.5), versions=(3, 3), text="ab"),
        TokensDrawn(ids=(3,), logprobs=(-2.5,), versions=(3,)),
        Finished(finish_reason=wire.FINISH["stop"], prompt_tokens=2, completion_tokens=3),
    ]
    assert (reader.has_ids, reader.has_logprobs) == (True, True)


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
@pytest.mark.parametrize("said", ["delta", "message"])
def test_ids_of_what_an_upstream_shows_as_reasoning_are_there_and_its_text_is_not(name: str, said: str) -> None:
    thought = choice(**{said: {name: "Hm.", "content": None}}, token_ids=[1, 2], logprobs=entries(-0.5, -1.5))
    silent = choice(delta={}, token_ids=[3], logprobs=entries(-2.5))
    shown = choice(delta={"content": "Yes."}, token_ids=[4], logprobs=entries(-3.5), finish_reason="stop")
    reader, events = read(thought | {"prompt_token_ids": [9]}, silent, shown)
    drawn = [event for event in events if isinstance(event, TokensDrawn)]
    assert [(event.ids, event.text) for event in drawn] == [((1, 2), ""), ((3,), ""), ((4,), "Yes.")]
    assert [logprob for event in drawn for logprob in event.logprobs] == [-0.5, -1.5, -2.5, -3.5]
    assert (reader.has_ids, reader.has_logprobs) == (True, True)


@pytest.mark.parametrize("told", [None, entries(-0.5), entries(-0.5, -1.0, -2.0)])
def test_a_logprob_that_does_not_stand_beside_its_id_is_missing(told: Any) -> None:
    chunk = choice(delta={"content": "ab"}, token_ids=[1, 2], logprobs=told, finish_reason="stop")
    reader, events = read(chunk)
    assert events[1].logprobs == (None, None)
    assert not reader.has_logprobs


@pytest.mark.parametrize("value", [-9999.0, -math.inf, math.nan, math.inf, None])
def test_a_logprob_that_stands_for_none_is_missing(value: float | None) -> None:
    content = [{"token": "t", "logprob": value}, {"token": "t", "logprob": -9.5}]
    chunk = choice(delta={"content": "ab"}, token_ids=[1, 2], logprobs={"content": content})
    assert wire._chunk(chunk).logprobs == (None, -9.5)


def test_logprobs_of_another_distribution_are_not_taken_and_still_known_to_be_there() -> None:
    chunk = choice(delta={"content": "a"}, token_ids=[1], logprobs=entries(-0.5), finish_reason="stop")
    reader, events = read(chunk, with_logprobs=False)
    assert events[1].logprobs == (None,)
    assert reader.has_logprobs


def test_without_ids_there_is_text_and_without_counts_there_are_none() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    reader, events = read(choice(message={"content": "hi", "tool_calls": [call]}, finish_reason="tool_calls"))
    assert events == [
        PromptRead(prompt_ids=()),
        TokensDrawn(ids=(), logprobs=(), versions=(), text="hi", tool_calls=({"index": 0, **call},)),
        Finished(finish_reason=wire.FINISH["tool_calls"], prompt_tokens=None, completion_tokens=None),
    ]
    assert (reader.said_something, reader.has_ids) == (True, False)


@pytest.mark.parametrize(
    ("chunk", "words"),
    [
        (choice(delta={"content": "a"}), "without finishing it"),
        (choice(delta={}, finish_reason="content_filter"), "content filter"),
        (choice(delta={}, finish_reason="bored"), "unknown reason: bored"),
        ({"error": {"message": "out of memory"}}, "broke off: out of memory"),
        ({"choices": 3}, "broken chunk"),
        (choice(delta={"content": "a"}, token_ids=["x"]), "broken chunk"),
    ],
)
def test_a_broken_answer_is_an_error(chunk: dict[str, Any], words: str) -> None:
    with pytest.raises(EngineError, match=words):
        read(chunk)


def fails(status: int, body: Any = None, version: int = 0, **headers: str) -> EngineError:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return failures.failure_of(status, named, data, model="big", version=version, now=1_000_000_000.0)


def test_a_refused_key_names_the_setting() -> None:
    for status in (401, 403):
        error = fails(status, {"error": {"message": "Incorrect API key"}})
        assert (error.status, error.code) == (502, "upstream_key_refused")
        assert "set engine.api_key (OPENCLAW_RL_ENGINE__API_KEY) (Incorrect API key)" in str(error)


def test_the_field_at_fault_is_passed_on_in_either_shape() -> None:
    ours = fails(400, {"error": {"message": "stop is too long", "param": "stop", "code": "invalid_value"}})
    assert isinstance(ours, InvalidEngineRequest)
    assert (ours.status, ours.param, ours.code, str(ours)) == (400, "stop", "invalid_value", "stop is too long")
    theirs = fails(422, {"detail": [{"loc": ["body", "messages", 0, "role"], "msg": "wrong role"}]})
    assert isinstance(theirs, InvalidEngineRequest)
    assert (theirs.param, str(theirs)) == ("messages.0.role", "wrong role")
    assert fails(413, {"error": "too long"}).status == 413


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (
            {"message": "This model's maximum context length is 512 tokens.", "param": "input_tokens", "code": 400},
            ("messages", "context_length_exceeded"),
        ),
        ({"message": "exceeds the available context size (512 tokens)"}, ("messages", "context_length_exceeded")),
        (
            {"message": "The decoder prompt (length 512) is longer than the maximum model length of 512."},
            ("messages", "context_length_exceeded"),
        ),
        (
            {"message": "max_tokens is more than the context length", "param": "max_tokens", "code": 400},
            ("max_tokens", "invalid_request"),
        ),
        ({"message": "context length", "param": "messages", "code": "string_above_max_length"}, None),
    ],
)
def test_messages_that_are_too_long_are_told_as_agents_know_it(said: Any, expected: tuple[str, str] | None) -> None:
    error = fails(400, {"error": said})
    assert isinstance(error, InvalidEngineRequest)
    assert (error.status, error.param, error.code) == (400, *(expected or (said["param"], said["code"])))
    assert str(error) == said["message"]


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("7", 7.0), ("0.5", 0.5), ("-3", 0.0), ("Sun, 09 Sep 2001 01:46:50 GMT", 10.0), ("soon", None), ("inf", None)],
)
def test_retry_after_is_passed_on(value: str, seconds: float | None) -> None:
    for status, kind in ((429, EngineOverloaded), (503, EngineUnavailable), (529, EngineUnavailable)):
        error = fails(status, {"error": {"message": "slow down"}}, retry_after=value)
        assert isinstance(error, kind)
        assert error.retry_after_s == seconds
        assert "slow down" in str(error)


def test_other_statuses_are_the_upstreams_fault() -> None:
    assert [fails(status, b"<html>").status for status in (402, 405, 451, 500, 502, 504)] == [502] * 6
    unknown = fails(404, {"error": {"message": "no such model"}})
    assert (unknown.status, unknown.code) == (502, "upstream_model_unknown")
    assert "engine.upstream_model" in str(unknown)
    assert isinstance(fails(404, {}, version=3), UnknownVersion)
    assert "without an explanation" in str(fails(500, b""))


def test_the_sentence_says_which_kind_of_upstream_it_is() -> None:
    told = Features(token_ids=True, logprobs=True, lora_versions=True)
    assert told.words().startswith("served, judged and trainable: ")
    for lacking, words in {
        "token_ids": "served and judged, not trainable: the upstream returns no token ids",
        "logprobs": "served and judged, not trainable: the upstream returns no log-probabilities",
        "lora_versions": "served and judged; the upstream returns token ids and log-probabilities, but loads no "
        "versions",
    }.items():
        assert replace(told, **{lacking: False}).words() == words
    assert sentence([("a", told, ""), ("b", None, "")]) == (f"a: {told.words()}; b: asking it", False)
    assert sentence([("a", told, ""), ("b", None, "it is away")]) == ("b: it is away", True)
