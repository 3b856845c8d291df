"""JSON where it is written and read for every request: orjson, with the standard library for what orjson refuses.

orjson knows neither NaN nor integers of more than 64 bits. Reading: an engine may say NaN of a log-probability, which
must not get lost. Writing: it would make NaN null, so only values that came from JSON belong here.
"""

from __future__ import annotations

import json
from typing import Any

import orjson


def dumps(value: Any) -> bytes:
    """A value that came from JSON as JSON again."""
    try:
        return orjson.dumps(value)
    except TypeError:  # an integer of more than 64 bits
        return json.dumps(value, ensure_ascii=False).encode()


def loads(data: bytes) -> Any:
    """The value in `data`.

    Raises:
        ValueError: it is not JSON.
    """
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return json.loads(data)
