"""Strict checks of JSON values, each naming the field at fault. Shared by the dialects; pure."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

from openclaw_rl.serving.gateway.errors import GatewayError, bad_request

MAX_DEPTH = 64
_MAX_INT_DIGITS = 30


# --- from bytes to an object -------------------------------------------------------------------------------


class _Numbers:
    """Number hooks for the parser that note what JSON writes but no field may hold."""

    def __init__(self) -> None:
        self.nonfinite = False

    def constant(self, literal: str) -> float:
        self.nonfinite = True
        return float(literal)

    def floating(self, literal: str) -> float:
        value = float(literal)
        self.nonfinite |= not math.isfinite(value)
        return value

    def integer(self, literal: str) -> int | float:
        if len(literal) <= _MAX_INT_DIGITS:
            return int(literal)
        self.nonfinite = True
        return math.inf


def parse_object(body: bytes) -> dict[str, Any]:
    """The JSON object in `body`.

    Raises:
        GatewayError: 400 where it is not UTF-8, not JSON, not an object, nested too deeply, or where it holds a
            number that is not finite or text that is not Unicode (half a surrogate pair); the last two by field.
    """
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise bad_request(None, f"The body is not UTF-8 (byte {error.start}).", code="invalid_body") from error
    numbers = _Numbers()
    try:
        value = json.loads(
            text, parse_constant=numbers.constant, parse_float=numbers.floating, parse_int=numbers.integer
        )
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise bad_request(None, f"The body is not JSON ({where}: {error.msg}).", code="invalid_body") from error
    except RecursionError as error:
        raise bad_request(None, "The body is nested too deeply.", code="invalid_body") from error
    if not isinstance(value, dict):
        raise bad_request(None, f"The body must be a JSON object, not {kind(value)}.", code="invalid_body")
    if numbers.nonfinite or "\\ud" in text or "\\uD" in text:
        _refuse_unstorable(value)
    return value


def _refuse_unstorable(body: dict[str, Any]) -> None:
    """Name the first number that is not finite, or text that is not Unicode; iterative, whatever the depth."""
    pending: list[tuple[str, Any]] = [(key, value) for key, value in reversed(body.items())]
    while pending:
        path, value = pending.pop()
        if isinstance(value, float) and not math.isfinite(value):
            raise bad_request(_printable(path), f"{_printable(path)} must be a finite number.")
        if isinstance(value, str) and not _is_unicode(value):
            raise bad_request(_printable(path), f"{_printable(path)} holds half a surrogate pair.")
        if isinstance(value, dict):
            for key, inner in reversed(value.items()):
                if not _is_unicode(key):
                    raise bad_request(_printable(path), f"{_printable(path)} has a key with half a surrogate pair.")
                pending.append((f"{path}.{key}", inner))
        elif isinstance(value, list):
            pending.extend((f"{path}[{index}]", inner) for index, inner in reversed(list(enumerate(value))))
    if not all(map(_is_unicode, body)):
        raise bad_request(None, "The body has a field name with half a surrogate pair.")


def _is_unicode(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _printable(path: str) -> str:
    return path.encode("ascii", "backslashreplace").decode()[:200]


# --- single values -----------------------------------------------------------------------------------------


def kind(value: Any) -> str:
    """The JSON name of a value's type, for messages to people."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return "a string"
    return "an array" if isinstance(value, list) else "an object"


def wrong_type(path: str, expected: str, value: Any) -> GatewayError:
    """400: `path` holds another type than it must."""
    return bad_request(path, f"{path} must be {expected}, not {kind(value)}.", code="invalid_type")


def missing(path: str, message: str | None = None) -> GatewayError:
    """400: a required field is absent."""
    return bad_request(path, message or f"{path} is required.", code="missing_required_parameter")


def text(value: Any, path: str, *, empty: bool = False) -> str:
    """A string, non-empty unless `empty`."""
    if not isinstance(value, str):
        raise wrong_type(path, "a string", value)
    if not value and not empty:
        raise bad_request(path, f"{path} must not be empty.")
    return value


def boolean(value: Any, path: str) -> bool:
    """True or false, not a number."""
    if not isinstance(value, bool):
        raise wrong_type(path, "a boolean", value)
    return value


def integer(value: Any, path: str, *, low: int, high: int) -> int:
    """A whole number from `low` to `high`; `true` and 1.0 are none."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong_type(path, "an integer", value)
    if not low <= value <= high:
        raise bad_request(path, f"{path} must be between {low} and {high}.")
    return value


def number(value: Any, path: str, *, low: float, high: float) -> float:
    """A finite number from `low` to `high`; `true` is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong_type(path, "a number", value)
    if not low <= value <= high:  # also false for NaN
        raise bad_request(path, f"{path} must be between {low:g} and {high:g}.")
    return float(value)


def array(value: Any, path: str) -> list[Any]:
    """A JSON array."""
    if not isinstance(value, list):
        raise wrong_type(path, "an array", value)
    return value


def mapping(value: Any, path: str) -> dict[str, Any]:
    """A JSON object."""
    if not isinstance(value, dict):
        raise wrong_type(path, "an object", value)
    return value


def choice(value: Any, path: str, allowed: Iterable[str]) -> str:
    """One of a few strings."""
    names = tuple(allowed)
    if not isinstance(value, str):
        raise wrong_type(path, "a string", value)
    if value not in names:
        raise bad_request(path, f"{path} must be one of {', '.join(names)}.")
    return value


def known_fields(value: Mapping[str, Any], known: frozenset[str], prefix: str = "") -> None:
    """Refuse fields that nobody here knows, naming the nearest known one; a silent typo helps nobody."""
    for name in value:
        if name in known:
            continue
        path = _printable(f"{prefix}{name}")
        near = difflib.get_close_matches(name[:64], known, n=1)
        meant = f" Did you mean {prefix}{near[0]}?" if near else ""
        raise bad_request(path, f"{path} is not a field of this request.{meant}", code="unknown_parameter")


def shallow(value: Any, path: str) -> None:
    """Refuse what is nested deeper than `MAX_DEPTH`: others must be able to write it out again."""
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return
    raise bad_request(path, f"{path} is nested deeper than {MAX_DEPTH} levels.")
