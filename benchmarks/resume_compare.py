"""What two runs made of one store, side by side: every checkpoint bit for bit, every step, every version."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from openclaw_rl.policy_files import MANIFEST, verify_manifest

QUERIES = {
    "steps": "SELECT step, version, sample_ids, metrics, teacher FROM steps ORDER BY step",
    "samples": "SELECT turn_id, state, step FROM samples ORDER BY turn_id",
    "versions": "SELECT version, state, step, reason FROM versions ORDER BY version",
}
"""What has to be equal in the record: all but times and places."""


def differences(one: Path, other: Path) -> list[str]:
    """Where two run directories differ, in sentences; empty where they are equal."""
    found = []
    for name, query in QUERIES.items():
        first, second = _rows(one, query), _rows(other, query)
        found += [f"{name}: {a} and {b}" for a, b in zip(first, second, strict=False) if a != b]
        if len(first) != len(second):
            found.append(f"{name}: {len(first)} rows and {len(second)}")
    names = [sorted(path.name for path in (run / "checkpoints").iterdir()) for run in (one, other)]
    if names[0] != names[1]:
        return [*found, f"checkpoints: {', '.join(names[0])} and {', '.join(names[1])}"]
    for name in names[0]:
        found += _files_differ(one / "checkpoints" / name, other / "checkpoints" / name)
    return found


def _files_differ(one: Path, other: Path) -> list[str]:
    """The files of two checkpoints: weights and settings byte by byte, the trainer's state value by value."""
    files = sorted(verify_manifest(one).files)
    if files != sorted(verify_manifest(other).files):
        return [f"{one.name}: other files"]
    found = []
    for name in (name for name in files if Path(name).name != MANIFEST):
        if name.endswith(".pt"):
            states = (torch.load(path / name, map_location="cpu", weights_only=True) for path in (one, other))
            found += [f"{one.name}/{name}: {place}" for place in unequal(*states)]
        elif (one / name).read_bytes() != (other / name).read_bytes():
            found.append(f"{one.name}/{name}")
    return found


def unequal(one: Any, other: Any, place: str = "") -> list[str]:
    """Where two nested values differ; tensors by kind and by every bit that counts, numbers exactly."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return [] if one.dtype == other.dtype and torch.equal(one, other) else [place]
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        if one.keys() != other.keys():
            return [f"{place}: other keys"]
        return [found for key in one for found in unequal(one[key], other[key], f"{place}/{key}")]
    if isinstance(one, Sequence) and isinstance(other, Sequence) and not isinstance(one, str):
        if len(one) != len(other):
            return [f"{place}: {len(one)} and {len(other)} entries"]
        return [
            found for i, (a, b) in enumerate(zip(one, other, strict=True)) for found in unequal(a, b, f"{place}/{i}")
        ]
    return [] if one == other else [place]


def final(run_dir: Path) -> Mapping[str, Any]:
    """How a run ended, for the figures."""
    versions = _rows(run_dir, QUERIES["versions"])
    steps = _rows(run_dir, "SELECT metrics FROM steps ORDER BY step")
    return {
        "steps": len(steps),
        "refused_by_gate": sum(state == "rejected" for _, state, _, _ in versions),
        "last_loss": json.loads(steps[-1][0]).get("loss"),
    }


def _rows(run_dir: Path, query: str) -> list[tuple[Any, ...]]:
    path = run_dir / "store.sqlite"
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=10)) as connection:
        return connection.execute(query).fetchall()
