"""OpenAI's chat completions: a body to what it asks for, and what was generated to bodies and chunks. Pure.

Strict: every problem is a 400 that names the field. A field that would change the answer is honoured or refused;
a field that changes nothing is ignored by name; any other field is refused with the nearest name that exists.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from openclaw_rl import fast_json
from openclaw_rl.serving.gateway.dialects import checks
from openclaw_rl.serving.gateway.dialects.openai_messages import parse_messages, parse_tools
from openclaw_rl.serving.gateway.errors import bad_request
from openclaw_rl.types import FinishReason, Message, SamplingParams, TurnType

MAX_TOKENS_LIMIT = 2**31 - 1
_MAX_STOPS = 4
_MAX_STOP_CHARACTERS = 1024
_INT64 = 2**63

_HONOURED = frozenset({
    "model", "messages", "tools", "tool_choice", "max_tokens", "max_completion_tokens", "temperature", "top_p",
    "top_k", "stop", "seed", "stream", "stream_options", "logprobs", "top_logprobs", "user", "metadata",
    "session_id", "turn_type", "session_done", "return_token_ids",
})  # fmt: skip
_IGNORED = frozenset({
    "store", "service_tier", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention",
    "reasoning_effort", "safety_identifier", "verbosity",
})  # fmt: skip

# Fields that would change the answer, each with the values that ask for nothing.
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "logit_bias": ({},),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "min_p": (0,),
    "response_format": ({"type": "text"},),
    "parallel_tool_calls": (True,),
    "modalities": (["text"],),
    "echo": (False,),
    "audio": (),
    "prediction": (),
    "functions": (),
    "function_call": (),
    "web_search_options": (),
    "moderation": (),
    "suffix": (),
}
_NUMERIC = frozenset({"n", "best_of", "frequency_penalty", "presence_penalty", "repetition_penalty", "min_p"})
_KNOWN = _HONOURED | _IGNORED | _NEUTRAL.keys()

_FINISH = {FinishReason.STOP: "stop", FinishReason.LENGTH: "length", FinishReason.TOOL_CALLS: "tool_calls"}


@dataclass(frozen=True, kw_only=True, slots=True)
class ParsedChat:
    """What a body asks for. `session_id`, `turn_type` and `session_done` are None where the body is silent.

    `tools` are those that the model may see: none with `tool_choice` `none`.
    """

    model: str
    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...]
    sampling: SamplingParams
    stream: bool
    include_usage: bool
    logprobs: bool
    session_id: str | None
    turn_type: TurnType | None
    session_done: bool | None
    prompt_cache_key: str | None = None
    return_token_ids: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenIds:
    """The ids that `return_token_ids` asks for, where vLLM has them too: `prompt_token_ids` beside the choices (in a
    stream in the first chunk), `token_ids` in the choice. None where there is nothing to say of either.
    """

    prompt: Sequence[int] | None = None
    drawn: Sequence[int] | None = None


NO_IDS = TokenIds()


@dataclass(frozen=True, kw_only=True, slots=True)
class Head:
    """What all bodies and chunks of one answer share. `version` is the name of the policy version."""

    turn_id: str
    created: int
    model: str
    version: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Usage:
    """The engine's own token counts."""

    prompt_tokens: int
    completion_tokens: int


# --- parsing -----------------------------------------------------------------------------------------------


def parse(body: bytes, *, default_max_tokens: int) -> ParsedChat:
    """What the body of a `POST /v1/chat/completions` asks for.

    Raises:
        GatewayError: 400 naming the field.
    """
    fields = checks.parse_object(body)
    given = {name: value for name, value in fields.items() if value is not None}  # null means: not given
    checks.known_fields(fields, _KNOWN)
    for name in ("model", "messages"):
        if name not in given:
            raise checks.missing(name)
    _refuse_unsupported(given)
    _check_labels(given)
    stream = checks.boolean(given.get("stream", False), "stream")
    return ParsedChat(
        model=checks.text(given["model"], "model"),
        messages=parse_messages(given["messages"]),
        tools=_tools(given),
        sampling=_sampling(given, default_max_tokens),
        stream=stream,
        include_usage=_include_usage(given, stream=stream),
        logprobs=_logprobs(given),
        session_id=_session_id(given),
        turn_type=_turn_type(given),
        session_done=_session_done(given),
        prompt_cache_key=_prompt_cache_key(given),
        return_token_ids=checks.boolean(given.get("return_token_ids", False), "return_token_ids"),
    )


def _refuse_unsupported(given: Mapping[str, Any]) -> None:
    for name in given.keys() & _NEUTRAL.keys():
        value = given[name]
        if name in _NUMERIC and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise checks.wrong_type(name, "a number", value)
        neutral = _NEUTRAL[name]
        if not any(value == allowed and isinstance(value, bool) == isinstance(allowed, bool) for allowed in neutral):
            only = f" Only {' or '.join(map(json.dumps, neutral))} can be honoured." if neutral else ""
            raise bad_request(name, f"{name} is not supported here.{only}", code="unsupported_parameter")


def _check_labels(given: Mapping[str, Any]) -> None:
    if "user" in given:
        checks.text(given["user"], "user", empty=True)
    for key, value in checks.mapping(given.get("metadata", {}), "metadata").items():
        checks.text(value, f"metadata.{key}", empty=True)


def _tools(given: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    tools = parse_tools(given["tools"]) if "tools" in given else ()
    wanted = given.get("tool_choice", "auto")
    if isinstance(wanted, dict) or wanted == "required":
        message = "tool_choice can be auto or none: no engine here can be made to call a tool."
        raise bad_request("tool_choice", message, code="unsupported_value")
    return () if checks.choice(wanted, "tool_choice", ("auto", "none")) == "none" else tools


def _sampling(given: Mapping[str, Any], default_max_tokens: int) -> SamplingParams:
    limits = {
        name: checks.integer(given[name], name, low=1, high=MAX_TOKENS_LIMIT)
        for name in ("max_completion_tokens", "max_tokens")
        if name in given
    }
    if len(set(limits.values())) > 1:
        raise bad_request("max_tokens", "max_tokens and max_completion_tokens differ; send one of them.")
    top_p = checks.number(given.get("top_p", 1.0), "top_p", low=0.0, high=1.0)
    if top_p == 0.0:
        raise bad_request("top_p", "top_p must be above 0.")
    return SamplingParams(
        temperature=checks.number(given.get("temperature", 1.0), "temperature", low=0.0, high=2.0),
        top_p=top_p,
        top_k=max(0, checks.integer(given.get("top_k", 0), "top_k", low=-1, high=MAX_TOKENS_LIMIT)),
        max_tokens=next(iter(limits.values()), default_max_tokens),
        stop=_stop(given.get("stop")),
        seed=checks.integer(given["seed"], "seed", low=-_INT64, high=_INT64 - 1) if "seed" in given else None,
    )


def _stop(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    if isinstance(value, str):
        value, paths = [value], ["stop"]
    elif isinstance(value, list):
        paths = [f"stop[{index}]" for index in range(len(value))]
    else:
        raise checks.wrong_type("stop", "a string or an array of strings", value)
    if len(value) > _MAX_STOPS:
        raise bad_request("stop", f"stop can hold at most {_MAX_STOPS} strings.")
    for stop, path in zip(value, paths, strict=True):
        if len(checks.text(stop, path)) > _MAX_STOP_CHARACTERS:
            raise bad_request(path, f"{path} can hold at most {_MAX_STOP_CHARACTERS} characters.")
    return tuple(value)


def _include_usage(given: Mapping[str, Any], *, stream: bool) -> bool:
    if "stream_options" not in given:
        return False
    options = checks.mapping(given["stream_options"], "stream_options")
    if not stream:
        raise bad_request("stream_options", "stream_options needs stream = true.")
    checks.known_fields(options, frozenset({"include_usage", "include_obfuscation"}), "stream_options.")
    include = options.get("include_usage")
    return include is not None and checks.boolean(include, "stream_options.include_usage")


def _logprobs(given: Mapping[str, Any]) -> bool:
    wanted = checks.boolean(given.get("logprobs", False), "logprobs")
    if "top_logprobs" in given:
        top = checks.integer(given["top_logprobs"], "top_logprobs", low=0, high=20)
        if not wanted:
            raise bad_request("top_logprobs", "top_logprobs needs logprobs = true.")
        if top > 0:
            message = "top_logprobs above 0 is not supported: engines report the sampled tokens only."
            raise bad_request("top_logprobs", message, code="unsupported_value")
    return wanted


def _session_id(given: Mapping[str, Any]) -> str | None:
    return parse_session_id(given["session_id"], "session_id") if "session_id" in given else None


def _turn_type(given: Mapping[str, Any]) -> TurnType | None:
    return TurnType(checks.choice(given["turn_type"], "turn_type", TurnType)) if "turn_type" in given else None


def _session_done(given: Mapping[str, Any]) -> bool | None:
    return checks.boolean(given["session_done"], "session_done") if "session_done" in given else None


def _prompt_cache_key(given: Mapping[str, Any]) -> str | None:
    """The cache key, where it is text: it changes nothing, so nothing about it is an error."""
    value = given.get("prompt_cache_key")
    return value[:256] if isinstance(value, str) and value else None


def parse_session_id(value: Any, path: str) -> str:
    """A session id as clients may choose it: 1 to 256 visible ASCII characters, since it is sent back in a header."""
    name = checks.text(value, path)
    if len(name) > 256 or not all("!" <= character <= "~" for character in name):
        raise bad_request(path, f"{path} must be 1 to 256 visible ASCII characters without spaces.")
    return name


# --- rendering ---------------------------------------------------------------------------------------------


def render_logprobs(ids: Sequence[int], logprobs: Sequence[float | None]) -> dict[str, Any]:
    """The sampled tokens' log-probabilities (nats).

    Engines report ids, not strings, and one token need not be text by itself; so `token` is `token_id:ID`. A
    log-probability that the engine did not give, or that JSON cannot hold, is null.
    """
    content: list[dict[str, Any]] = [
        {
            "token": f"token_id:{token}",
            "logprob": None if logprob is None or not math.isfinite(logprob) else logprob,
            "bytes": None,
            "top_logprobs": [],
        }
        for token, logprob in zip(ids, logprobs, strict=True)
    ]
    return {"content": content, "refusal": None}


def render_completion(
    head: Head,
    answer: Message,
    *,
    finish_reason: FinishReason,
    usage: Usage | None,
    logprobs: Mapping[str, Any] | None = None,
    ids: TokenIds = NO_IDS,
) -> bytes:
    """The body of an answer that is not streamed."""
    choice: dict[str, Any] = {
        "index": 0,
        "message": {**answer, "refusal": None},
        "logprobs": logprobs,
        "finish_reason": _FINISH[finish_reason],
    }
    body = {**_shared(head, "chat.completion"), "choices": [choice]}
    body["usage"] = None if usage is None else _usage(usage)
    _add_ids(body, choice, ids)
    return fast_json.dumps(body)


def render_chunk(
    head: Head,
    delta: Mapping[str, Any] | None,
    *,
    finish_reason: FinishReason | None = None,
    usage: Usage | None = None,
    include_usage: bool = False,
    logprobs: Mapping[str, Any] | None = None,
    ids: TokenIds = NO_IDS,
) -> bytes:
    """One SSE event. `delta` None is the usage chunk, whose choices are empty; with `include_usage` the other
    chunks carry `usage` null.
    """  # fmt: skip
    body = _shared(head, "chat.completion.chunk")
    choice: dict[str, Any] = {
        "index": 0,
        "delta": delta,
        "logprobs": logprobs,
        "finish_reason": None if finish_reason is None else _FINISH[finish_reason],
    }
    body["choices"] = [] if delta is None else [choice]
    _add_ids(body, choice, ids)
    if include_usage:
        body["usage"] = None if usage is None else _usage(usage)
    return b"data: " + fast_json.dumps(body) + b"\n\n"


DONE = b"data: [DONE]\n\n"


def render_stream_error(body: bytes) -> bytes:
    """An SSE event for an error after the stream began."""
    return b"data: " + body + b"\n\n"


def _shared(head: Head, kind: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{head.turn_id}",
        "object": kind,
        "created": head.created,
        "model": head.model,
        "system_fingerprint": head.version,
        "service_tier": None,
    }


def _add_ids(body: dict[str, Any], choice: dict[str, Any], ids: TokenIds) -> None:
    if ids.prompt is not None:
        body["prompt_token_ids"] = list(ids.prompt)
    if ids.drawn is not None:
        choice["token_ids"] = list(ids.drawn)


def _usage(usage: Usage) -> dict[str, int]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
