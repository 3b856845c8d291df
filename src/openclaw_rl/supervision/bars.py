"""Progress bars of `status`, in plain text. Pure."""

from __future__ import annotations

from collections.abc import Mapping

WIDTH = 20
FULL, EMPTY = "█", "░"


def bar(done: int, total: int, width: int = WIDTH) -> str:
    """`███████░░░░░░░░░░░░░`: full only when all is done; more than all is full, too.

    Raises:
        ValueError: there is nothing to be done.
    """
    if total < 1:
        raise ValueError(f"a bar needs something to be done, got {total}")
    filled = max(0, min(done, total)) * width // total
    return FULL * filled + EMPTY * (width - filled)


def rollout_words(
    rollouts: Mapping[str, int], groups: Mapping[str, int], groups_wanted: int | None, *, drawn: bool = True
) -> str:
    """How far the driver has come: closed groups of those that the tasks ask for (None: nobody knows how many).

    `drawn`: with a bar.
    """
    closed = sum(number for state, number in groups.items() if state != "open")
    dropped = f", {groups['dropped']} of them dropped" if groups.get("dropped") else ""
    made = ", ".join(f"{state} {number}" for state, number in sorted(rollouts.items())) or "none yet"
    of = f" of {groups_wanted}" if groups_wanted else ""
    picture = f"{bar(closed, groups_wanted)}  " if groups_wanted and drawn else ""
    return f"{picture}{closed}{of} groups done{dropped}; rollouts: {made}"
