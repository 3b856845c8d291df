"""From the wire to what is asked: headers, the body within its limit, and who asks."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from starlette.types import Receive, Scope

from openclaw_rl.serving.gateway.auth import KeyRing, Principal
from openclaw_rl.serving.gateway.dialects import openai_chat
from openclaw_rl.serving.gateway.errors import GatewayError, bad_request, too_large
from openclaw_rl.serving.gateway.wire import ClientGone
from openclaw_rl.types import TurnType

MAX_BODY_BYTES = 32 * 1024 * 1024
BODY_TIMEOUT_S = 60.0
MAX_IDEMPOTENCY_KEY = 256
"""Characters of an idempotency key that count."""

T = TypeVar("T")

_BOOLEANS = {"1": True, "true": True, "0": False, "false": False}


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """One request, understood: headers and body merged. `record` False: served, nothing is written."""

    principal: Principal
    chat: openai_chat.ParsedChat
    session_id: str | None
    turn_type: TurnType | None
    session_done: bool
    retry_count: int
    idempotency_key: str | None
    record: bool
    user_header: str | None = None


def headers_of(scope: Scope) -> dict[str, str]:
    """Headers by lower-case name; the first of a repeated one."""
    headers: dict[str, str] = {}
    for name, value in scope["headers"]:
        headers.setdefault(name.decode("latin-1"), value.decode("latin-1"))
    return headers


async def read_request(scope: Scope, receive: Receive, keys: KeyRing, *, default_max_tokens: int) -> Asked:
    """Read and check one chat request.

    Raises:
        GatewayError: 400, 401, 408 or 413.
        ClientGone: the client went away while it was sending.
    """
    headers = headers_of(scope)
    authorization = headers.get("authorization")
    principal = keys.principal(None if authorization is None else authorization.encode("latin-1"))
    body = await _read_body(headers, receive)
    return _merge(principal, headers, openai_chat.parse(body, default_max_tokens=default_max_tokens))


async def _read_body(headers: Mapping[str, str], receive: Receive) -> bytes:
    declared = headers.get("content-length", "0")
    if declared.isascii() and declared.isdigit() and int(declared[:20]) > MAX_BODY_BYTES:
        raise too_large(MAX_BODY_BYTES)
    pieces: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone
                piece = message.get("body", b"")
                size += len(piece)
                if size > MAX_BODY_BYTES:
                    raise too_large(MAX_BODY_BYTES)
                pieces.append(piece)
                if not message.get("more_body", False):
                    return b"".join(pieces)
    except TimeoutError:
        raise GatewayError(408, f"No whole body within {BODY_TIMEOUT_S:g} s.", code="request_timeout") from None


def _merge(principal: Principal, headers: Mapping[str, str], chat: openai_chat.ParsedChat) -> Asked:
    session_id = _one("session_id", _session_header(headers), chat.session_id)
    turn_type = _one("turn_type", _turn_type_header(headers), chat.turn_type)
    session_done = _one("session_done", _boolean_header(headers, "X-Session-Done"), chat.session_done)
    no_train = _boolean_header(headers, "X-No-Train") or False
    return Asked(
        principal=principal,
        chat=chat,
        session_id=session_id,
        turn_type=turn_type,
        session_done=session_done or False,
        retry_count=_retry_count(headers),
        idempotency_key=headers.get("idempotency-key", "")[:MAX_IDEMPOTENCY_KEY] or None,
        record=principal.train and not no_train,
        user_header=headers.get("x-user-id"),
    )


def _one(name: str, header: T | None, field: T | None) -> T | None:
    """A value that may come in a header, in the body, or in both if they agree."""
    if header is not None and field is not None and header != field:
        raise bad_request(name, f"{name} and its header differ; send one of them.")
    return field if header is None else header


def _session_header(headers: Mapping[str, str]) -> str | None:
    value = headers.get("x-session-id")
    return None if value is None else openai_chat.parse_session_id(value, "X-Session-Id")


def _turn_type_header(headers: Mapping[str, str]) -> TurnType | None:
    value = headers.get("x-turn-type")
    if value is None:
        return None
    try:
        return TurnType(value)
    except ValueError:
        raise bad_request("X-Turn-Type", "X-Turn-Type must be main or side.") from None


def _retry_count(headers: Mapping[str, str]) -> int:
    """How often the client says it has tried before; anything but a number is taken for not saying."""
    value = headers.get("x-stainless-retry-count", "0")[:9]
    return int(value) if value.isascii() and value.isdigit() else 0


def _boolean_header(headers: Mapping[str, str], name: str) -> bool | None:
    value = headers.get(name.lower())
    if value is None:
        return None
    if value.lower() not in _BOOLEANS:
        raise bad_request(name, f"{name} must be 1, true, 0 or false.")
    return _BOOLEANS[value.lower()]
