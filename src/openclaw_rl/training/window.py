"""When the trainer may take steps, so that a laptop is not slowed while somebody uses it."""

from __future__ import annotations

from datetime import datetime, time
from pathlib import Path

from openclaw_rl.config_window import WindowConfig, parse_hours


def closed_because(config: WindowConfig, *, now: datetime, last_request_at: float | None) -> str | None:
    """What the trainer waits for before it may take a step, or None where it may now.

    Args:
        now: local time, as the hours are.
        last_request_at: when the last request came, in seconds since the epoch; None if none ever did.
    """
    if config.hours is not None:
        begin, end = parse_hours(config.hours)
        if not _within(now.time(), begin, end):
            return f"the training window, which opens at {begin:%H:%M} (training.window.hours = {config.hours})"
    if config.idle_s > 0 and last_request_at is not None:
        quiet = now.timestamp() - last_request_at
        if quiet < config.idle_s:
            return (
                f"{config.idle_s:g} s without a request (training.window.idle_s); it has been {max(quiet, 0.0):.0f} s"
            )
    return None


def last_use(mark: Path, recorded: float | None) -> float | None:
    """When the policy was last used, in seconds since the epoch; None if it never was.

    Args:
        mark: the file that the gateway touches (`gateway.use`); it need not be there.
        recorded: when the last request came that is in the record.
    """
    try:
        marked = mark.stat().st_mtime
    except FileNotFoundError:
        return recorded
    return marked if recorded is None else max(marked, recorded)


def _within(moment: time, begin: time, end: time) -> bool:
    """Whether `moment` lies in [begin, end), which may go on past midnight."""
    if begin <= end:
        return begin <= moment < end
    return moment >= begin or moment < end
