"""Waiting for another process, with an end."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

PATIENCE_S = 30.0
T = TypeVar("T")


def eventually(look: Callable[[], T | None], what: str) -> T:
    """Look until there is something truthy to see; the first such thing."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if seen := look():
            return seen
        time.sleep(0.05)
    raise AssertionError(f"not within {PATIENCE_S:.0f} s: {what}")
