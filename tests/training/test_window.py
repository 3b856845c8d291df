"""When the trainer may take steps."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path

import pytest
from pydantic import ValidationError

from openclaw_rl.config_window import WindowConfig
from openclaw_rl.training.window import closed_because, last_use


def at(clock: str) -> datetime:
    return datetime.fromisoformat(f"2026-11-29T{clock}")


@pytest.mark.parametrize(
    ("hours", "clock", "is_open"),
    [
        ("09:00-17:00", "08:59:59", False),
        ("09:00-17:00", "09:00:00", True),
        ("09:00-17:00", "17:00:00", False),
        ("22:00-07:00", "23:30:00", True),
        ("22:00-07:00", "06:59:59", True),
        ("22:00-07:00", "07:00:00", False),
    ],
)
def test_hours_may_go_on_past_midnight(hours: str, clock: str, is_open: bool) -> None:
    reason = closed_because(WindowConfig(hours=hours), now=at(clock), last_request_at=None)
    assert (reason is None) == is_open
    assert reason is None or f"opens at {hours[:5]}" in reason


def test_a_policy_in_use_is_left_alone() -> None:
    now = at("12:00:00")
    config = WindowConfig(idle_s=60.0)
    reason = closed_because(config, now=now, last_request_at=now.timestamp() - 20.0)
    assert reason is not None
    assert "60 s without a request" in reason
    assert "20 s" in reason
    assert closed_because(config, now=now, last_request_at=now.timestamp() - 60.0) is None
    assert closed_because(config, now=now, last_request_at=None) is None


def test_without_a_window_training_may_always_go_on() -> None:
    now = at("12:00:00")
    assert closed_because(WindowConfig(), now=now, last_request_at=now.timestamp()) is None


@pytest.mark.parametrize("hours", ["9-17", "24:00-07:00", "09:00-09:00", "", "09:60-10:00"])
def test_what_is_no_span_of_hours_is_refused(hours: str) -> None:
    with pytest.raises(ValidationError, match="span"):
        WindowConfig(hours=hours)


def test_the_last_use_is_the_later_of_record_and_mark(tmp_path: Path) -> None:
    mark = tmp_path / "last-use"
    assert last_use(mark, None) is None
    assert last_use(mark, 50.0) == 50.0
    mark.touch()
    os.utime(mark, (70.0, 70.0))
    assert last_use(mark, None) == 70.0
    assert last_use(mark, 50.0) == 70.0
    assert last_use(mark, 90.0) == 90.0
