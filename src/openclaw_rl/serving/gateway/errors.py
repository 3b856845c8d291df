"""Every way in which a request can fail, and the one shape in which clients are told: OpenAI's.

`{"error": {"message", "type", "param", "code"}}`; `param` names the field at fault, null where no field is.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

from openclaw_rl.serving.engines.protocol import (
    EngineError,
    EngineOverloaded,
    EngineUnavailable,
    InvalidEngineRequest,
)

RETRY_AFTER_S = 1

_TYPES = {
    401: "authentication_error",
    429: "rate_limit_error",
    500: "server_error",
    502: "server_error",
    503: "server_error",
    504: "server_error",
}


class GatewayError(Exception):
    """What the client is told instead of an answer."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.headers: Mapping[str, str] = {} if headers is None else headers

    def body(self) -> bytes:
        """The JSON body of the answer, or the data of an SSE event."""
        return error_body(self.status, self.message, code=self.code, param=self.param)


def error_body(status: int, message: str, *, code: str, param: str | None = None) -> bytes:
    """An error in OpenAI's shape."""
    kind = _TYPES.get(status, "invalid_request_error")
    error = {"message": message, "type": kind, "param": param, "code": code}
    return json.dumps({"error": error}).encode()


def bad_request(param: str | None, message: str, *, code: str = "invalid_value") -> GatewayError:
    """400: something in the body or a header is at fault."""
    return GatewayError(400, message, code=code, param=param)


def unauthorized() -> GatewayError:
    """401: no key, or a wrong one; the message does not say which keys there are."""
    return GatewayError(
        401,
        "A valid API key is needed: send it as `Authorization: Bearer KEY`.",
        code="invalid_api_key",
        headers={"www-authenticate": "Bearer"},
    )


def not_local(header: str) -> GatewayError:
    """403: without keys, a request that a web page or another machine's name may be behind; `header` says so."""
    return GatewayError(
        403,
        f"Without API keys only programs on this machine are served, and this request's {header} header is not "
        "loopback: ask http://127.0.0.1 from a program, or configure serving.api_keys and send a key.",
        code="not_local",
        param=header,
    )


def unknown_model(model: str, known: str) -> GatewayError:
    """404: a model name that is none of ours, or a version that is not loaded."""
    message = f"The model {model!r} is not served here. Served: {known}."
    return GatewayError(404, message, code="model_not_found", param="model")


def too_large(limit_bytes: int) -> GatewayError:
    """413: the body is above the limit."""
    return GatewayError(413, f"The body is above {limit_bytes} bytes.", code="request_too_large")


def busy(active: int) -> GatewayError:
    """429: as many requests as `serving.max_queue` allows are being served."""
    return GatewayError(
        429,
        f"{active} requests are being served; try again shortly.",
        code="overloaded",
        headers={"retry-after": str(RETRY_AFTER_S)},
    )


def unavailable(reason: str) -> GatewayError:
    """503: no engine to ask, for now."""
    return GatewayError(503, reason, code="engine_unavailable", headers={"retry-after": str(RETRY_AFTER_S)})


def record_unavailable() -> GatewayError:
    """503: what is asked cannot be recorded now, and must not go unrecorded."""
    return GatewayError(
        503,
        "The record cannot be written now; try again shortly.",
        code="record_unavailable",
        headers={"retry-after": str(RETRY_AFTER_S)},
    )


def timed_out(limit_s: float) -> GatewayError:
    """504: the answer took longer than `serving.request_timeout_s`."""
    return GatewayError(504, f"The answer took longer than {limit_s:g} s.", code="timeout")


def internal() -> GatewayError:
    """500: a fault of ours; the log names it, the client is not shown it."""
    return GatewayError(500, "The gateway failed on this request.", code="internal_error")


def from_engine(error: EngineError) -> GatewayError:
    """An engine's error as the client should see it."""
    param = error.param if isinstance(error, InvalidEngineRequest) else None
    retry = isinstance(error, EngineUnavailable | EngineOverloaded)
    wait_s = RETRY_AFTER_S if error.retry_after_s is None else math.ceil(error.retry_after_s)
    headers = {"retry-after": str(wait_s)} if retry else None
    return GatewayError(error.status, str(error), code=error.code, param=param, headers=headers)
