"""What goes to vLLM and what comes back, without vLLM."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from typing import Any

import pytest

from openclaw_rl.serving.engines.embedded.answer import AnswerText
from openclaw_rl.serving.engines.protocol import (
    ChatEvent,
    EngineError,
    EngineOverloaded,
    EngineUnavailable,
    Finished,
    InvalidEngineRequest,
    TokensDrawn,
    UnknownVersion,
)
from openclaw_rl.serving.engines.vllm import wire
from openclaw_rl.testing.tiny_model import smollm2_tokenizer
from openclaw_rl.types import FinishReason, SamplingParams

TOKENIZER = smollm2_tokenizer()
USAGE = {"usage": {"prompt_tokens": 2, "completion_tokens": 3}, "choices": []}


def content(*pairs: tuple[int, float]) -> dict[str, Any]:
    return {"content": [{"token_id": token, "logprob": logprob} for token, logprob in pairs]}


def chunk(*pairs: tuple[int, float], **values: Any) -> dict[str, Any]:
    ids = [token for token, _ in pairs]
    return {"choices": [{"index": 0, "token_ids": ids, "logprobs": content(*pairs), **values}]}


def answer_of(*chunks: dict[str, Any], truncated: bool = False, labels: tuple[str, ...] = ()) -> list[ChatEvent]:
    """The events of these chunks; chunk i is drawn by the weights `labels[i]`, of version i."""
    text = AnswerText(TOKENIZER, stop=(), has_tools=False)
    events = wire.AnswerEvents(text, prompt=(1, 2), truncated=truncated)
    found: list[ChatEvent] = []
    for number, one in enumerate(chunks):
        label = labels[min(number, len(labels) - 1)] if labels else "default"
        found += events.take(one, version=labels.index(label) if labels else 0, label=label)
    assert events.finished == any(isinstance(event, Finished) for event in found)
    return found


def test_tokens_text_and_counts_are_as_they_came() -> None:
    ids = TOKENIZER.encode("Hi you", add_special_tokens=False)
    pairs = [(token, -0.5 - place) for place, token in enumerate(ids)]
    events = answer_of(
        {**chunk(pairs[0]), "prompt_token_ids": [1, 2]}, chunk(*pairs[1:], finish_reason="stop"), USAGE
    )
    drawn = [event for event in events if isinstance(event, TokensDrawn)]
    assert [token for event in drawn for token in event.ids] == ids
    assert [logprob for event in drawn for logprob in event.logprobs] == [logprob for _, logprob in pairs]
    assert "".join(event.text for event in drawn) == "Hi you"
    assert events[-1] == Finished(finish_reason=FinishReason.STOP, prompt_tokens=2, completion_tokens=3)


@pytest.mark.parametrize("said", [-9999.0, math.nan, -math.inf, None])
def test_a_token_without_a_log_probability_ends_the_answer(said: float | None) -> None:
    with pytest.raises(wire.NoDistribution, match="not finite"):
        answer_of(chunk((5, -0.25), (6, said)))  # type: ignore[arg-type]


def test_kept_sets_are_told_where_sampling_was_truncated() -> None:
    one = chunk((5, -0.5), (6, -0.25), sampling_mask=[[5, 9], [6]])
    (cut,) = answer_of(one, truncated=True)
    (whole,) = answer_of(one)
    assert isinstance(cut, TokensDrawn)
    assert isinstance(whole, TokensDrawn)
    assert cut.kept == ((5, 9), (6,))
    assert whole.kept is None


def test_versions_change_where_vllm_says_that_its_weights_did() -> None:
    spans = [{"version": "default", "start": 0, "end": 2}, {"version": "new", "start": 2, "end": 3}]
    last = chunk((7, -1.0), finish_reason="length", weight_versions=spans)
    events = answer_of(chunk((5, -1.0), (6, -1.0)), last, labels=("default", "new"))
    assert [version for event in events if isinstance(event, TokensDrawn) for version in event.versions] == [0, 0, 1]
    with pytest.raises(EngineError, match="other weights"):
        answer_of(
            chunk((5, -1.0)),
            chunk(
                (6, -1.0),
                (7, -1.0),
                **last["choices"][0] | {"token_ids": [6, 7], "logprobs": content((6, -1.0), (7, -1.0))},
            ),
            labels=("default", "new"),
        )


@pytest.mark.parametrize(
    "broken",
    [
        {"choices": [{"token_ids": [5, 6], "logprobs": content((5, -1.0))}]},
        {"choices": [{"token_ids": [5], "logprobs": content((6, -1.0))}]},
        {"choices": [{"token_ids": [5], "logprobs": None}]},
        {"choices": [{"token_ids": ["x"], "logprobs": content((5, -1.0))}]},
        {"choices": [], "prompt_token_ids": [1, 3]},
        chunk((5, -1.0), finish_reason="repetition"),
        chunk((5, -1.0), sampling_mask=[]),
    ],
)
def test_a_chunk_that_does_not_add_up_is_an_error(broken: dict[str, Any]) -> None:
    with pytest.raises(EngineError):
        answer_of(broken)


def test_nothing_comes_after_the_end() -> None:
    with pytest.raises(EngineError, match="after the end"):
        answer_of(chunk((5, -1.0), finish_reason="stop"), chunk((6, -1.0)))


def test_events_are_read_however_they_are_cut() -> None:
    data = b'data: {"a": 1}\n\n: ping\n\ndata: {"b": 2}\n\ndata: [DONE]\n\ndata: {"c": 3}\n\n'

    async def read(size: int) -> list[dict[str, Any]]:
        async def pieces() -> AsyncIterator[bytes]:
            for start in range(0, len(data), size):
                yield data[start : start + size]

        return [event async for event in wire.server_sent(pieces())]

    for size in (1, 7, len(data)):
        assert asyncio.run(read(size)) == [{"a": 1}, {"b": 2}]


@pytest.mark.parametrize("line", [b"data: {", b"data: 3", b'data: {"error": {"message": "no", "code": 400}}'])
def test_an_event_that_is_an_error_is_raised(line: bytes) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield line + b"\n\n"

    async def read() -> None:
        async for _ in wire.server_sent(pieces()):
            pass

    with pytest.raises(EngineError):
        asyncio.run(read())


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, InvalidEngineRequest), (404, UnknownVersion), (429, EngineOverloaded), (503, EngineUnavailable)],
)
def test_errors_are_told_as_ours(status: int, kind: type[EngineError]) -> None:
    error = wire.error_of(status, {"error": {"message": "too long", "param": "input"}})
    assert type(error) is kind
    assert str(error) == "too long"
    assert str(wire.error_of(500, {"detail": "odd"})) == "odd"


def test_scores_are_read_by_token() -> None:
    body = {"prompt_logprobs": [None, {"7": {"logprob": -0.5}, "9": {"logprob": -0.1}}, {"8": {"logprob": -2.0}}]}
    assert wire.prompt_logprobs(body, (6, 7, 8), 1) == (-0.5, -2.0)
    assert wire.prompt_logprobs(body, (6, 7, 8), 2) == (-2.0,)
    for ids in [(6, 7), (6, 1, 8)]:
        with pytest.raises(EngineError):
            wire.prompt_logprobs(body, ids, 1)
    with pytest.raises(EngineError, match="not finite"):
        wire.prompt_logprobs({"prompt_logprobs": [None, {"7": {"logprob": -9999.0}}]}, (6, 7), 1)


def test_a_request_says_all_that_sampling_says() -> None:
    sampling = SamplingParams(temperature=0.7, top_p=0.9, top_k=40, max_tokens=99, stop=("END",), seed=-1)
    body = wire.generate_body((1, 2), sampling, model="m", max_tokens=8, salt="s")
    assert (body["model"], body["token_ids"], body["cache_salt"]) == ("m", [1, 2], "s")
    assert body["sampling_params"] == {
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 40,
        "max_tokens": 8,
        "stop": ["END"],
        "seed": 2**63 - 1,
        "logprobs": 0,
        "detokenize": True,
    }
