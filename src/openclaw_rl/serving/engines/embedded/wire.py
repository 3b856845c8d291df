"""The engine's HTTP in JSON: requests, NDJSON events and errors, to and fro. Shared by server, client and fake."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from openclaw_rl import fast_json
from openclaw_rl.serving.engines.protocol import (
    ChatEvent,
    ChatRequest,
    EngineError,
    EngineHealth,
    EngineOverloaded,
    EngineUnavailable,
    Finished,
    InvalidEngineRequest,
    PromptRead,
    ScoreRequest,
    TokensDrawn,
    UnknownVersion,
    UnreadableVersion,
)
from openclaw_rl.types import FinishReason, SamplingParams

Json = dict[str, Any]

_SAMPLING = tuple(field.name for field in dataclasses.fields(SamplingParams))
_ERRORS: tuple[type[EngineError], ...] = (EngineError, EngineUnavailable, EngineOverloaded, UnreadableVersion)


def chat_request_to_json(request: ChatRequest) -> Json:
    """The body of POST /chat; the messages themselves, not copies."""
    return {
        "request_id": request.request_id,
        "messages": request.messages,
        "tools": request.tools,
        "sampling": {name: getattr(request.sampling, name) for name in _SAMPLING},
        "version": request.version,
        "pinned": request.pinned,
    }


def chat_request_from_json(body: Mapping[str, Any]) -> ChatRequest:
    """Read the body of POST /chat.

    Raises:
        InvalidEngineRequest: the body does not fit.
    """
    try:
        sampling = dict(body["sampling"])
        sampling["stop"] = tuple(sampling.get("stop", ()))
        return ChatRequest(
            request_id=str(body["request_id"]),
            messages=tuple(body["messages"]),
            tools=tuple(body.get("tools", ())),
            sampling=SamplingParams(**sampling),
            version=int(body["version"]),
            pinned=bool(body.get("pinned", False)),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidEngineRequest(f"not a chat request: {error}") from error


def score_request_to_json(request: ScoreRequest) -> Json:
    """The body of POST /score."""
    return dataclasses.asdict(request)


def score_request_from_json(body: Mapping[str, Any]) -> ScoreRequest:
    """Read the body of POST /score.

    Raises:
        InvalidEngineRequest: the body does not fit.
    """
    try:
        return ScoreRequest(
            ids=tuple(int(token) for token in body["ids"]),
            start=int(body["start"]),
            version=int(body["version"]),
            temperature=float(body.get("temperature", 1.0)),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidEngineRequest(f"not a score request: {error}") from error


def event_to_line(event: ChatEvent) -> str:
    """One NDJSON line of the answer to POST /chat."""
    names = {PromptRead: "prompt_read", TokensDrawn: "tokens_drawn", Finished: "finished"}
    return json.dumps({"event": names[type(event)], **dataclasses.asdict(event)}, ensure_ascii=False) + "\n"


def parse_object(data: bytes) -> Json:
    """The JSON object in `data`.

    Raises:
        EngineError: it is none.
    """
    try:
        body = fast_json.loads(data)
    except ValueError as error:
        raise EngineError("the engine answered with something that is not JSON") from error
    if not isinstance(body, dict):
        raise EngineError("the engine answered with JSON that is no object")
    return body


def _objects(lines: Sequence[bytes]) -> Iterable[Json]:
    """The objects in these lines, read as one array; where that fails, line by line, up to the one at fault."""
    if len(lines) > 1:
        try:
            bodies: list[Any] = fast_json.loads(b"[" + b",".join(lines) + b"]")
        except ValueError:
            return map(parse_object, lines)
        if len(bodies) == len(lines) and all(isinstance(body, dict) for body in bodies):
            return bodies
    return map(parse_object, lines)


def events_from_lines(lines: Sequence[bytes]) -> Iterator[ChatEvent]:
    """The events in lines that arrived together. Tokens that did are one event: nobody could have seen them apart.

    Raises:
        EngineError: a line carries an error, or is none that we know; after the events before it.
    """
    drawn: list[Json] = []
    for body in _objects(lines):
        if body.get("event") == "tokens_drawn":
            drawn.append(body)
            continue
        if drawn:
            yield _tokens_drawn(drawn)
            drawn = []
        yield event_from_json(body)
    if drawn:
        yield _tokens_drawn(drawn)


def _tokens_drawn(bodies: Sequence[Json]) -> TokensDrawn:
    """One event of all the tokens in these."""
    try:
        kept = [_kept(body.get("kept")) for body in bodies]
        told = any(of_one is not None for of_one in kept)
        return TokensDrawn(
            ids=tuple([token for body in bodies for token in body["ids"]]),
            logprobs=tuple([logprob for body in bodies for logprob in body["logprobs"]]),
            versions=tuple([version for body in bodies for version in body["versions"]]),
            text="".join([body["text"] for body in bodies]),
            tool_calls=tuple([call for body in bodies for call in body["tool_calls"]]),
            kept=_all_kept(bodies, kept) if told else None,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise EngineError(f"the engine sent a broken event: {error}") from error


def _all_kept(
    bodies: Sequence[Json], kept: Sequence[tuple[tuple[int, ...] | None, ...] | None]
) -> tuple[tuple[int, ...] | None, ...]:
    """The kept sets of all tokens: unknown (None) for those of an event that does not tell."""
    return tuple(
        [
            one
            for body, of_one in zip(bodies, kept, strict=True)
            for one in ([None] * len(body["ids"]) if of_one is None else of_one)
        ]
    )


def event_from_json(body: Mapping[str, Any]) -> ChatEvent:
    """The event in one line; an error line raises what the server raised.

    Raises:
        EngineError: the line carries an error, or is none that we know.
    """
    kind = body.get("event")
    if kind == "error":
        raise error_from_json(body)
    try:
        if kind == "prompt_read":
            return PromptRead(prompt_ids=tuple(body["prompt_ids"]), version=body.get("version"))
        if kind == "tokens_drawn":
            return _tokens_drawn([dict(body)])
        if kind == "finished":
            return Finished(
                finish_reason=FinishReason(body["finish_reason"]),
                prompt_tokens=body["prompt_tokens"],
                completion_tokens=body["completion_tokens"],
            )
    except (KeyError, TypeError, ValueError) as error:
        raise EngineError(f"the engine sent a broken event: {error}") from error
    raise EngineError(f"the engine sent an unknown event {kind!r}")


def _kept(kept: Any) -> tuple[tuple[int, ...] | None, ...] | None:
    return None if kept is None else tuple(None if ids is None else tuple(ids) for ids in kept)


def health_to_json(health: EngineHealth) -> Json:
    """The answer to GET /health."""
    return dataclasses.asdict(health)


def health_from_json(body: Mapping[str, Any]) -> EngineHealth:
    """Read the answer to GET /health.

    Raises:
        EngineError: it is something else; another program may listen there.
    """
    try:
        return EngineHealth(**{**body, "loaded_versions": tuple(body["loaded_versions"])})
    except (KeyError, TypeError) as error:
        raise EngineError("what answers at the engine's address does not say how an engine is") from error


def error_to_json(error: EngineError) -> Json:
    """An error as a body, or (with `event`) as the last line of a stream."""
    param = error.param if isinstance(error, InvalidEngineRequest) else None
    kind = type(error).__name__
    body = {"status": error.status, "code": error.code, "param": param, "message": str(error), "type": kind}
    return {"event": "error", "error": body}


def error_from_json(body: Mapping[str, Any]) -> EngineError:
    """The exception that the server raised."""
    error = body.get("error")
    if not isinstance(error, Mapping):
        return EngineError("the engine answered with an error that it did not explain")
    message, param, code = str(error.get("message")), error.get("param"), error.get("code")
    if error.get("type") == UnknownVersion.__name__:
        return UnknownVersion(message, param=param, code=code)
    if error.get("type") == InvalidEngineRequest.__name__:
        return InvalidEngineRequest(message, param=param, code=code)
    for kind in _ERRORS:
        if error.get("type") == kind.__name__:
            return kind(message)
    return EngineError(message)


def error_line(error: EngineError) -> str:
    """The last NDJSON line of a stream that failed."""
    return json.dumps(error_to_json(error), ensure_ascii=False) + "\n"
