"""`POST /v1/feedback`: what a person thinks of an answer. The body, read and checked. Pure but for the reading."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

from openclaw_rl.serving.gateway.dialects import checks
from openclaw_rl.serving.gateway.errors import GatewayError, bad_request, too_large

MAX_BODY_BYTES = 64 * 1024
MAX_COMMENT_CHARACTERS = 4000
BODY_TIMEOUT_S = 20.0
RESPONSE_PREFIX = "chatcmpl-"

_IDS = ("turn_id", "id")
_THUMBS = {"up": 1.0, "down": -1.0}


@dataclass(frozen=True, kw_only=True, slots=True)
class Feedback:
    """A score in [-1, 1] for one turn, and perhaps words."""

    turn_id: str
    score: float
    comment: str | None


async def read_small_body(request: Request) -> bytes:
    """The body of a request that has no reason to be large.

    Raises:
        GatewayError: 408 or 413.
    """
    body = b""
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            async for piece in request.stream():
                body += piece
                if len(body) > MAX_BODY_BYTES:
                    raise too_large(MAX_BODY_BYTES)
    except TimeoutError:
        raise GatewayError(408, f"No whole body within {BODY_TIMEOUT_S:g} s.", code="request_timeout") from None
    return body


def parse_feedback(body: bytes) -> Feedback:
    """What a body says: `turn_id`, or `id` as the answer carried it; `score`, or `thumb` up or down; `comment`.

    Raises:
        GatewayError: 400 naming the field.
    """
    fields = checks.parse_object(body)
    checks.known_fields(fields, frozenset({*_IDS, "score", "thumb", "comment"}))
    given = {name: value for name, value in fields.items() if value is not None}
    return Feedback(turn_id=turn_id_of(given), score=_score(given), comment=_comment(given))


def turn_id_of(given: Mapping[str, Any]) -> str:
    """The turn that `turn_id` or `id` names.

    Raises:
        GatewayError: 400 where neither is there, or they name two.
    """
    named = {checks.text(given[name], name).removeprefix(RESPONSE_PREFIX) for name in _IDS if name in given}
    if not named:
        raise checks.missing("turn_id")
    if len(named) > 1:
        raise bad_request("turn_id", "turn_id and id name two turns; send one of them.")
    return named.pop()


def _score(given: Mapping[str, Any]) -> float:
    if ("score" in given) == ("thumb" in given):
        raise bad_request("score", "Send either score (-1 to 1) or thumb (up or down).")
    if "thumb" in given:
        return _THUMBS[checks.choice(given["thumb"], "thumb", tuple(_THUMBS))]
    return checks.number(given["score"], "score", low=-1.0, high=1.0)


def _comment(given: Mapping[str, Any]) -> str | None:
    if "comment" not in given:
        return None
    comment = checks.text(given["comment"], "comment", empty=True)
    if len(comment) > MAX_COMMENT_CHARACTERS:
        raise bad_request("comment", f"comment can hold at most {MAX_COMMENT_CHARACTERS} characters.")
    return comment
