"""Versions as lines of text, one each whoever they belong to and however wide the terminal is; and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.cells import cell_len

from openclaw_rl.cli_names import shown
from openclaw_rl.types import BASE_VERSION, PolicyVersion, StepRecord

_HEADINGS = ("version", "owner", "state", "since", "samples", "mean reward", "on disk", "")
_OWNER = _HEADINGS.index("owner")
NAMED = 3
"""Owners who are kept at the base, and are named."""


def listing(
    versions: Sequence[PolicyVersion],
    steps: Mapping[int, StepRecord],
    since: Mapping[int, float],
    at_base: Set[str],
    *,
    width: int | None,
) -> str:
    """A table of the versions.

    No name in it is broken between two lines, and what others chose is text, never markup. What is said of a version
    stands on a line of its own where the terminal has no room for it.

    Args:
        versions: those to be listed.
        steps: what made them, by their numbers.
        since: since when each is in its state.
        at_base: owners who are kept at the base.
        width: of the terminal; None where it is none, and each version has one line.
    """
    rows = [_HEADINGS, *(_row(one, steps.get(one.version), since[one.version], at_base) for one in versions)]
    if not any(one.owner for one in versions):
        rows = [(*row[:_OWNER], *row[_OWNER + 1 :]) for row in rows]
    widths = [max(cell_len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    lines: list[str] = []
    for *cells, said in rows:
        padded = (cell + " " * (size - cell_len(cell)) for cell, size in zip(cells, widths, strict=True))
        line = "  ".join(padded)
        if said and width is not None and cell_len(line) + 2 + cell_len(said) > width:
            lines += [line.rstrip(), f"    {said}"]
        else:
            lines.append(f"{line}  {said}".rstrip())
    return "\n".join(lines)


def _row(version: PolicyVersion, step: StepRecord | None, since: float, at_base: Set[str]) -> tuple[str, ...]:
    reward = None if step is None else step.metrics.get("mean_reward")
    return (
        version.name,
        shown(version.owner),
        version.state.value,
        when(since),
        "-" if step is None else str(len(step.sample_ids)),
        "-" if reward is None else f"{reward:+.2f}",
        "yes" if on_disk(version) else "no",
        _said(version, at_base),
    )


def _said(version: PolicyVersion, at_base: Set[str]) -> str:
    said = ["pinned" if version.pinned else shown(version.reason or "")]
    if version.version == BASE_VERSION and at_base:
        said.append(f"pinned for {names(at_base)}")
    return "; ".join(words for words in said if words)


def names(owners: Set[str]) -> str:
    """Some of them by name, the others by how many there are."""
    named = [shown(one) for one in sorted(owners)]
    more = len(named) - NAMED
    return ", ".join(named if more <= 0 else [*named[:NAMED], f"{more} more"])


def as_json(version: PolicyVersion, step: StepRecord | None, since: float, at_base: Set[str]) -> dict[str, Any]:
    """A version for programs."""
    base = version.version == BASE_VERSION
    return {
        "version": version.version,
        "name": version.name,
        "owner": version.owner or None,
        "state": version.state.value,
        "since": since,
        "pinned": version.pinned,
        "pinned_for": sorted(at_base) if base else [version.owner] * bool(version.pinned and version.owner),
        "reason": version.reason,
        "path": version.path,
        "on_disk": on_disk(version),
        "step": None if step is None else step.step,
        "seconds": None if step is None else round(step.seconds, 3),
        "samples": None if step is None else list(step.sample_ids),
        "metrics": None if step is None else dict(step.metrics),
    }


def on_disk(version: PolicyVersion) -> bool:
    """Whether its weights are there still; the base's are the model's own."""
    return version.path is None if version.version == BASE_VERSION else Path(str(version.path)).is_dir()


def when(moment: float) -> str:
    """A time of this machine's clock, to the second."""
    return datetime.fromtimestamp(moment).isoformat(sep=" ", timespec="seconds")
