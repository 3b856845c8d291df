"""What an upstream's refusal means for us and for whoever asked. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime

from openclaw_rl.serving.engines.openai.wire import Explained, parse_error
from openclaw_rl.serving.engines.protocol import (
    EngineError,
    EngineOverloaded,
    EngineUnavailable,
    InvalidEngineRequest,
    UnknownVersion,
)

KEY_SETTING = "engine.api_key (OPENCLAW_RL_ENGINE__API_KEY)"
LONGEST_WAIT_S = 3600.0
_TOO_LONG = re.compile(r"context (length|window|size)|maximum model length", re.IGNORECASE)
_LIMITS = frozenset({"max_tokens", "max_completion_tokens"})


class UpstreamKeyRefused(EngineError):
    """The upstream does not take our key, or wants one."""

    code = "upstream_key_refused"


class UpstreamModelUnknown(EngineError):
    """The upstream does not have the configured model."""

    code = "upstream_model_unknown"


class BodyTooLarge(InvalidEngineRequest):
    """The messages are too large for the upstream."""

    status = 413
    code = "request_too_large"


def failure_of(
    status: int, headers: Mapping[str, str], body: bytes, *, model: str, version: int, now: float
) -> EngineError:
    """The error that an answer with `status` (not 200) is, to a request for `model` at the time `now`."""
    said = parse_error(body)
    if status == 404:
        return _not_found(said, model=model, version=version)
    if status in _BY_STATUS:
        error = _BY_STATUS[status](said)
    elif status >= 500:
        error = EngineError(f"the upstream failed ({status}): {said.message}")
    else:
        error = EngineError(f"the upstream refuses to serve this deployment ({status}): {said.message}")
    if isinstance(error, EngineUnavailable | EngineOverloaded):
        error.retry_after_s = retry_after_s(headers.get("retry-after"), now)
    return error


def _not_found(said: Explained, *, model: str, version: int) -> EngineError:
    if version:
        return UnknownVersion(f"the upstream has not loaded {model}", param="model")
    return UpstreamModelUnknown(
        f"the upstream has no model {model!r} at this address: set engine.upstream_model and engine.urls "
        f"({said.message})"
    )


def _invalid(said: Explained) -> EngineError:
    """As it is said. Only that it is too long is told as OpenAI does: agents shorten their messages by that code."""
    if said.code is None and said.param not in _LIMITS and _TOO_LONG.search(said.message):
        return InvalidEngineRequest(said.message, param="messages", code="context_length_exceeded")
    return InvalidEngineRequest(said.message, param=said.param, code=said.code)


def _key(said: Explained) -> EngineError:
    return UpstreamKeyRefused(f"the upstream refuses our key: set {KEY_SETTING} ({said.message})")


def _overloaded(said: Explained) -> EngineError:
    return EngineOverloaded(f"the upstream limits requests: {said.message}")


def _unavailable(said: Explained) -> EngineError:
    return EngineUnavailable(f"the upstream is not available: {said.message}")


_BY_STATUS: Mapping[int, Callable[[Explained], EngineError]] = {
    400: _invalid,
    401: _key,
    403: _key,
    413: lambda said: BodyTooLarge(said.message, param=said.param or "messages"),
    422: _invalid,
    429: _overloaded,
    503: _unavailable,
    529: _unavailable,
}


def retry_after_s(value: str | None, now: float) -> float | None:
    """The seconds that a Retry-After header asks to wait from `now`; None where there is none that can be read."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(value).timestamp() - now
        except ValueError:
            return None
    return min(max(0.0, seconds), LONGEST_WAIT_S) if math.isfinite(seconds) else None
