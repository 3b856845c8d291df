"""`POST /v1/sessions/{id}/reward`: what an environment makes of an answer. The body, checked; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from openclaw_rl.serving.gateway.dialects import checks
from openclaw_rl.serving.gateway.errors import bad_request
from openclaw_rl.serving.gateway.feedback import turn_id_of

DEFAULT_SOURCE = "environment"
MAX_SOURCE_CHARACTERS = 64
_FIELDS = frozenset({"turn_id", "id", "score", "range", "source"})
_LARGEST = 1e12


@dataclass(frozen=True, kw_only=True, slots=True)
class Reward:
    """A score in [-1, 1], `raw` as it was sent; `turn_id` None: of the session's last main turn."""

    turn_id: str | None
    score: float
    raw: float
    source: str


def parse_reward(body: bytes) -> Reward:
    """What a body says: `score`, on a scale of -1 to 1 or of its own `range` [lowest, highest]; whose; by whom.

    Raises:
        GatewayError: 400 naming the field.
    """
    fields = checks.parse_object(body)
    checks.known_fields(fields, _FIELDS)
    given = {name: value for name, value in fields.items() if value is not None}
    if "score" not in given:
        raise checks.missing("score")
    low, high = _range(given)
    raw = checks.number(given["score"], "score", low=low, high=high)
    return Reward(
        turn_id=turn_id_of(given) if {"turn_id", "id"} & given.keys() else None,
        score=2.0 * (raw - low) / (high - low) - 1.0,
        raw=raw,
        source=_source(given),
    )


def _range(given: Mapping[str, Any]) -> tuple[float, float]:
    if "range" not in given:
        return -1.0, 1.0
    bounds = checks.array(given["range"], "range")
    if len(bounds) != 2:
        raise bad_request("range", "range must hold two numbers, the lowest and the highest score.")
    low, high = (
        checks.number(bound, f"range[{place}]", low=-_LARGEST, high=_LARGEST) for place, bound in enumerate(bounds)
    )
    if not low < high:
        raise bad_request("range", "range must begin with the lower of two different numbers.")
    return low, high


def _source(given: Mapping[str, Any]) -> str:
    source = checks.text(given.get("source", DEFAULT_SOURCE), "source")
    if len(source) > MAX_SOURCE_CHARACTERS:
        raise bad_request("source", f"source can hold at most {MAX_SOURCE_CHARACTERS} characters.")
    return source
