"""The section `training.window`: when the trainer may take steps."""

from __future__ import annotations

import re
from datetime import time
from typing import Annotated

from pydantic import AfterValidator, Field

from openclaw_rl.config_base import Section

_HOURS = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)-([01]?\d|2[0-3]):([0-5]\d)")


def parse_hours(text: str) -> tuple[time, time]:
    """`22:00-07:00` as its two times.

    Raises:
        ValueError: it is not of that form, or begins when it ends.
    """
    found = _HOURS.fullmatch(text.strip())
    if found is None:
        raise ValueError("not a span of hours such as 22:00-07:00")
    begin, end = time(int(found[1]), int(found[2])), time(int(found[3]), int(found[4]))
    if begin == end:
        raise ValueError("a span that begins when it ends: leave it out for the whole day")
    return begin, end


def _checked(text: str) -> str:
    parse_hours(text)
    return text


class WindowConfig(Section):
    """When the trainer may take steps; without either, always. Publishing what is trained never waits."""

    hours: Annotated[str, AfterValidator(_checked)] | None = None
    """Local time, such as `22:00-07:00`; it may go on past midnight."""
    idle_s: Annotated[float, Field(ge=0.0)] = 0.0
    """Only when for this long no chat request came, recorded or not, and none was being answered; 0: also while the
    policy is used."""
