"""OpenAI's chat completions as a client speaks them: bodies out, chunks and refusals in. Pure.

Three of vLLM's additions are understood where an upstream has them: `return_token_ids` (`prompt_token_ids` beside the
choices, `token_ids` in the choice), `top_k`, and `max_model_len` in the list of models. Our own gateway has the first
two as well.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from openclaw_rl import fast_json
from openclaw_rl.serving.engines.protocol import ChatRequest, EngineError
from openclaw_rl.types import FinishReason, SamplingParams

Json = dict[str, Any]

FINISH: Mapping[str, FinishReason] = {
    "stop": FinishReason.STOP,
    "length": FinishReason.LENGTH,
    "tool_calls": FinishReason.TOOL_CALLS,
    "function_call": FinishReason.TOOL_CALLS,
}


NEUTRAL: Json = {"top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
"""What draws from the model's own distribution. In the place of what is not said vLLM puts what stands in the model's
`generation_config.json`, and so would draw from another distribution than is recorded."""
MISSING = -9999.0
"""What OpenAI and vLLM write, since it can be written, of a token whose log-probability they do not have."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Wording:
    """How an upstream is asked. It begins with everything; what the upstream refuses is left out from then on.

    `neutral`: the values of `NEUTRAL` are said too, while there are token ids, without which nothing is trained.
    """

    token_ids: bool = True
    neutral: bool = True
    logprobs: bool = True
    usage: bool = True
    limit: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"


def request_body(request: ChatRequest, *, model: str, wording: Wording, context: int | None = None) -> Json:
    """The body of one chat request, always streamed: whether the client streams is the gateway's affair.

    `context`: the upstream's context (tokens) where it says so. Clients ask for more tokens than fit, and mean as
    many as do; vLLM refuses a `max_tokens` beyond its context.
    """
    body: Json = {"model": model, "messages": request.messages, "stream": True}
    if request.tools:
        body["tools"] = request.tools
    sampling = request.sampling
    if context is not None and sampling.max_tokens > context:
        sampling = replace(sampling, max_tokens=context)
    body |= sampling_fields(sampling, wording)
    if wording.usage:
        body["stream_options"] = {"include_usage": True}
    if wording.logprobs:
        body["logprobs"] = True
    if wording.token_ids:
        body["return_token_ids"] = True
    return body


def sampling_fields(sampling: SamplingParams, wording: Wording) -> Json:
    """The sampling parameters; not every upstream knows all that are at their neutral value (`Wording.neutral`)."""
    fields: Json = {wording.limit: sampling.max_tokens, "temperature": sampling.temperature}
    if wording.neutral and wording.token_ids:
        fields |= NEUTRAL
    if sampling.top_p < 1.0:
        fields["top_p"] = sampling.top_p
    if sampling.top_k > 0:
        fields["top_k"] = sampling.top_k
    if sampling.stop:
        fields["stop"] = sampling.stop
    if sampling.seed is not None:
        fields["seed"] = sampling.seed
    return fields


def eased(wording: Wording, refusal: str) -> Wording | None:
    """The wording without what `refusal` (the text of a 400 or 422) names; None where it names nothing of ours."""
    if wording.token_ids and "return_token_ids" in refusal:
        return replace(wording, token_ids=False)
    if wording.usage and ("stream_options" in refusal or "include_usage" in refusal):
        return replace(wording, usage=False)
    if wording.logprobs and "logprobs" in refusal:
        return replace(wording, logprobs=False)
    if wording.neutral and any(name in refusal for name in NEUTRAL):
        return replace(wording, neutral=False)
    if wording.limit == "max_tokens" and "max_completion_tokens" in refusal:
        return replace(wording, limit="max_completion_tokens")
    return None


# --- what comes back ---------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Chunk:
    """One chunk of a stream, or a whole answer. None: it does not say. `usage`: tokens of prompt and answer."""

    prompt_ids: tuple[int, ...] | None = None
    ids: tuple[int, ...] | None = None
    logprobs: tuple[float | None, ...] | None = None
    text: str = ""
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    finish_reason: str | None = None
    usage: tuple[int, int] | None = None


def parse_chunk(data: bytes) -> Chunk:
    """The chunk in the data of one event, or in the body of an answer that was not streamed.

    Raises:
        EngineError: the upstream reports an error in the stream, or sent what is no chunk.
    """
    try:
        body = fast_json.loads(data)
    except ValueError as error:
        raise EngineError("the upstream sent something that is not JSON") from error
    if not isinstance(body, dict):
        raise EngineError("the upstream sent JSON that is no object")
    if body.get("error"):
        raise EngineError(f"the upstream broke off: {error_of(body).message}")
    try:
        return _chunk(body)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise EngineError(f"the upstream sent a broken chunk ({type(error).__name__})") from error


def _chunk(body: Json) -> Chunk:
    choices = [choice for choice in body.get("choices") or () if choice.get("index", 0) == 0]
    choice: Json = choices[0] if choices else {}
    said: Json = choice.get("delta") or choice.get("message") or {}
    ids = choice.get("token_ids")
    content = (choice.get("logprobs") or {}).get("content")
    prompt_ids = body.get("prompt_token_ids") or choice.get("prompt_token_ids")
    return Chunk(
        prompt_ids=None if prompt_ids is None else tuple(map(int, prompt_ids)),
        ids=None if ids is None else tuple(map(int, ids)),
        logprobs=None if content is None else tuple(_logprob(entry) for entry in content),
        text=(said.get("content") or "") + (said.get("refusal") or ""),
        tool_calls=tuple({"index": place, **call} for place, call in enumerate(said.get("tool_calls") or ())),
        finish_reason=choice.get("finish_reason"),
        usage=_usage(body.get("usage")),
    )


def _logprob(entry: Json) -> float | None:
    value = entry.get("logprob")
    return float(value) if value is not None and MISSING < value < math.inf else None  # NaN is neither


def _usage(usage: Json | None) -> tuple[int, int] | None:
    if not usage or usage.get("prompt_tokens") is None or usage.get("completion_tokens") is None:
        return None
    return int(usage["prompt_tokens"]), int(usage["completion_tokens"])


class EventSplitter:
    """The data of server-sent events, from bytes as they come.

    Lines end with a line feed only: a text decoder's `splitlines` would cut JSON at U+2028, which may stand in it.
    """

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The data of the lines that have become whole."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [line[5:].strip() for line in lines if line.startswith(b"data:")]


# --- refusals ----------------------------------------------------------------------------------------------

MOST_SHOWN = 500
"""Characters of an upstream's message that a client is shown."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Explained:
    """What an upstream says of an error; `message` is never empty."""

    message: str
    param: str | None = None
    code: str | None = None


def error_of(body: Any) -> Explained:
    """The explanation in an error's body: OpenAI's shape, FastAPI's `detail`, or none that we know."""
    said = body.get("error", body) if isinstance(body, Mapping) else body
    if isinstance(said, str) and said:
        return Explained(message=said[:MOST_SHOWN])
    if isinstance(said, Mapping):
        detail = said.get("detail")
        if isinstance(detail, list) and detail and isinstance(detail[0], Mapping):
            return _first_detail(detail)
        message = said.get("message") or (detail if isinstance(detail, str) else None) or "without an explanation"
        param, code = said.get("param"), said.get("code")
        return Explained(
            message=str(message)[:MOST_SHOWN],
            param=param if isinstance(param, str) else None,
            code=code if isinstance(code, str) else None,
        )
    return Explained(message="without an explanation")


def _first_detail(detail: Sequence[Mapping[str, Any]]) -> Explained:
    where = [str(part) for part in detail[0].get("loc") or () if part != "body"]
    return Explained(message=str(detail[0].get("msg", "refused"))[:MOST_SHOWN], param=".".join(where) or None)


def parse_error(data: bytes) -> Explained:
    """The explanation in the bytes of an error's body."""
    try:
        return error_of(fast_json.loads(data))
    except ValueError:
        text = data.decode("utf-8", errors="replace").strip()
        return Explained(message=text[:MOST_SHOWN] or "without an explanation")
