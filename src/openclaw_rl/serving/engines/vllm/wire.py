"""What is sent to vLLM and what comes back, as plain values. Pure.

Generation goes through vLLM's route for tokens in, tokens out (`/inference/v1/generate`), with the ids that our own
`Renderer` made, and its text is made from the ids by the same `AnswerText` as the embedded engine's. The chat route
would render and parse by itself: another template for tools, parsers that take text out of an answer, and special
tokens that a client can type. This way an answer means the same on every engine, its ids are exactly those drawn, and
of all of vLLM's routes this one alone says which weights drew which token, and (where vLLM keeps it) from which set.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from openclaw_rl import fast_json
from openclaw_rl.serving.engines.embedded.answer import AnswerText
from openclaw_rl.serving.engines.protocol import (
    ChatEvent,
    EngineError,
    EngineOverloaded,
    EngineUnavailable,
    Finished,
    InvalidEngineRequest,
    ScoreRequest,
    TokensDrawn,
    UnknownVersion,
)
from openclaw_rl.types import FinishReason, SamplingParams

Json = dict[str, Any]

GENERATE = "/inference/v1/generate"
MISSING_LOGPROB = -9999.0
"""What vLLM sends in the place of a NaN, of minus infinity, and of a log-probability that it does not have."""
_REASONS = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH, "abort": FinishReason.ABORT}
_STATUS_BAD_REQUEST, _STATUS_NOT_FOUND, _STATUS_TOO_MANY, _STATUS_UNAVAILABLE = 400, 404, 429, 503


class NoDistribution(EngineError):
    """The weights that answered gave NaN: the answer is nobody's, and vLLM's cache holds NaN now."""


# --- requests ------------------------------------------------------------------------------------------------------


def generate_body(
    prompt: Sequence[int], sampling: SamplingParams, *, model: str, max_tokens: int, salt: str | None
) -> Json:
    """The body that asks for one streamed answer. `salt`: what prefixes are kept apart by."""
    body: Json = {
        "model": model,
        "token_ids": list(prompt),
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
        "sampling_params": {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "max_tokens": max_tokens,
            "stop": list(sampling.stop),
            "seed": None if sampling.seed is None else sampling.seed & (2**63 - 1),
            "logprobs": 0,  # that of the drawn token, and of no other
            "detokenize": bool(sampling.stop),  # we do it ourselves; vLLM needs it to find stop strings
        },
    }
    return body if salt is None else {**body, "cache_salt": salt}


def check_score(request: ScoreRequest, *, most: int, vocabulary: int) -> None:
    """Return if vLLM can score it: `most` ids at once, each below `vocabulary`.

    Raises:
        InvalidEngineRequest: naming the field.
    """
    if not 1 <= request.start < len(request.ids):
        raise InvalidEngineRequest("start lies between 1 and the number of ids, exclusively", param="start")
    if len(request.ids) > most:
        message = f"{len(request.ids)} ids do not fit: vLLM scores {most} of them at once"
        raise InvalidEngineRequest(message, param="ids", code="context_length_exceeded")
    if not all(0 <= token < vocabulary for token in request.ids):
        raise InvalidEngineRequest(f"token ids lie between 0 and {vocabulary - 1}", param="ids")
    if request.temperature != 1.0:
        message = f"vLLM scores at temperature 1 only, not at {request.temperature}"
        raise InvalidEngineRequest(message, param="temperature")


def score_body(ids: Sequence[int], *, model: str, salt: str | None) -> Json:
    """The body that asks for the log-probabilities of a prompt; one token is drawn, for vLLM always draws one."""
    sampling = {"temperature": 0.0, "max_tokens": 1, "prompt_logprobs": 0, "detokenize": False}
    body: Json = {"model": model, "token_ids": list(ids), "sampling_params": sampling}
    return body if salt is None else {**body, "cache_salt": salt}


# --- answers -------------------------------------------------------------------------------------------------------


async def server_sent(pieces: AsyncIterator[bytes]) -> AsyncIterator[Json]:
    """The JSON objects of a stream of server-sent events, up to `[DONE]`.

    Raises:
        EngineError: an event that is not JSON, or one that tells of an error.
    """
    rest = b""
    async for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if not line.startswith(b"data:"):
                continue
            data = line[5:].strip()
            if data == b"[DONE]":
                return
            yield _event(data)


def _event(data: bytes) -> Json:
    try:
        body = fast_json.loads(data)
    except ValueError as error:
        raise EngineError("vLLM sent an event that is not JSON") from error
    if not isinstance(body, dict):
        raise EngineError("vLLM sent an event that is no object")
    if "error" in body:
        raise error_of(int((body["error"] or {}).get("code") or 500), body)
    return body


@dataclass(frozen=True, kw_only=True, slots=True)
class _Choice:
    """What one chunk says of the answer."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    kept: tuple[tuple[int, ...] | None, ...] | None
    finish_reason: str | None
    spans: Sequence[Mapping[str, Any]] | None

    @classmethod
    def of(cls, choice: Mapping[str, Any]) -> _Choice:
        try:
            ids = tuple(int(token) for token in choice.get("token_ids") or ())
            content = (choice.get("logprobs") or {}).get("content") or ()
            mask = choice.get("sampling_mask")
            read = cls(
                ids=ids,
                logprobs=_logprobs(ids, content),
                kept=None if mask is None else tuple(tuple(kept) for kept in mask),
                finish_reason=choice.get("finish_reason"),
                spans=choice.get("weight_versions"),
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise EngineError(f"vLLM sent a chunk that cannot be read: {error}") from error
        if read.kept is not None and len(read.kept) != len(ids):
            raise EngineError("vLLM sent tokens and kept sets of different lengths")
        return read


def _logprobs(ids: Sequence[int], content: Sequence[Mapping[str, Any]]) -> tuple[float, ...]:
    """One per id.

    Raises:
        NoDistribution: vLLM has none for one of them; a token that was drawn from NaN is no answer.
    """
    if len(content) != len(ids):
        raise ValueError(f"{len(ids)} tokens with {len(content)} log-probabilities")
    if any(int(one["token_id"]) != token for one, token in zip(content, ids, strict=True)):
        raise ValueError("log-probabilities of other tokens than those drawn")
    return tuple(_logprob(one["logprob"]) for one in content)


def _logprob(value: float | None) -> float:
    if value is None or not math.isfinite(value) or value <= MISSING_LOGPROB:
        raise NoDistribution("the model's logits are not finite")
    return value


class AnswerEvents:
    """Turns the chunks of one answer into the protocol's events; `version` is the one that draws at this moment."""

    def __init__(self, text: AnswerText, *, prompt: Sequence[int], truncated: bool) -> None:
        self._text = text
        self._prompt = list(prompt)
        self._truncated = truncated
        self._labels: list[str] = []
        self._certain = True
        self._reason: FinishReason | None = None
        self.finished = False

    def take(
        self, chunk: Mapping[str, Any], *, version: int, label: str, certain: bool = True
    ) -> Iterator[ChatEvent]:
        """The events in one chunk. `label`: what vLLM calls the weights of the model by now.

        Not `certain`: an adapter may have drawn over another model than its base. From then on no log-probability
        is told, so nothing is trained on.

        Raises:
            EngineError: the chunk does not agree with the request, with itself, or with those before it.
        """
        prompt = chunk.get("prompt_token_ids")
        if prompt is not None and prompt != self._prompt:
            raise EngineError("vLLM reads other tokens than it was given")
        self._certain = self._certain and certain
        for choice in chunk.get("choices") or ():
            yield from self._drawn(_Choice.of(choice), version, label)
        usage = chunk.get("usage")
        if usage and self._reason is not None:
            self.finished = True
            yield Finished(
                finish_reason=self._text.finish_reason(self._reason),
                prompt_tokens=int(usage["prompt_tokens"]),
                completion_tokens=int(usage["completion_tokens"]),
            )

    def _drawn(self, choice: _Choice, version: int, label: str) -> Iterator[TokensDrawn]:
        if self._reason is not None:
            raise EngineError("vLLM went on after the end of an answer")
        self._labels += [label] * len(choice.ids)
        parsed = self._text.feed(choice.ids)
        text, calls = parsed.text, parsed.tool_calls
        if choice.finish_reason is not None:
            self._reason = _reason(choice.finish_reason)
            self._check_spans(choice.spans)
            rest = self._text.finish()
            text, calls = text + rest.text, calls + rest.tool_calls
        if choice.ids or text or calls:
            yield TokensDrawn(
                ids=choice.ids,
                logprobs=choice.logprobs if self._certain else (None,) * len(choice.ids),
                versions=(version,) * len(choice.ids),
                text=text,
                tool_calls=calls,
                kept=choice.kept if self._truncated else None,
            )

    def _check_spans(self, spans: Sequence[Mapping[str, Any]] | None) -> None:
        """Whether vLLM itself says of every token the weights that we said."""
        if spans is None or not self._certain:  # a vLLM that does not tell; an answer of which nothing is claimed
            return
        said = [span["version"] for span in spans for _ in range(int(span["end"]) - int(span["start"]))]
        if said != self._labels:
            raise EngineError("vLLM drew tokens with other weights than were recorded for them")


def _reason(name: str) -> FinishReason:
    try:
        return _REASONS[name]
    except KeyError:
        raise EngineError(f"vLLM gave an answer up ({name})") from None


def prompt_logprobs(body: Mapping[str, Any], ids: Sequence[int], start: int) -> tuple[float, ...]:
    """The log-probabilities of `ids[start:]` in the answer to `score_body`.

    Raises:
        NoDistribution: one of them is missing or not finite.
        EngineError: the answer is about other tokens.
    """
    listed = body.get("prompt_logprobs")
    if not isinstance(listed, list) or len(listed) != len(ids):
        raise EngineError("vLLM scored another number of tokens than it was given")
    found: list[float] = []
    for token, one in zip(ids[start:], listed[start:], strict=True):
        found.append(_logprob(((one or {}).get(str(token)) or {}).get("logprob")))
    return tuple(found)


# --- errors --------------------------------------------------------------------------------------------------------


def error_of(status: int, body: Mapping[str, Any]) -> EngineError:
    """vLLM's error as one of ours; `body` as it came."""
    inner = body.get("error")
    said = inner if isinstance(inner, Mapping) else body
    message = str(said.get("message") or said.get("detail") or inner or "vLLM does not say why")
    if status == _STATUS_NOT_FOUND:
        return UnknownVersion(message, param="model")
    if status == _STATUS_TOO_MANY:
        return EngineOverloaded(message)
    if status == _STATUS_UNAVAILABLE:
        return EngineUnavailable(message)
    if status == _STATUS_BAD_REQUEST:
        param = said.get("param")
        return InvalidEngineRequest(message, param=param if isinstance(param, str) else None)
    return EngineError(message)
