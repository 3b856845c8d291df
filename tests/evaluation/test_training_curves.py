"""What is drawn of a deployment's steps, and that a picture comes out."""

from __future__ import annotations

from pathlib import Path

import pytest

from openclaw_rl.evaluation.training_curves import CurvePoint, points_of, save_curves
from openclaw_rl.types import PolicyVersion, StepRecord, VersionState


def step(number: int, **metrics: float) -> StepRecord:
    return StepRecord(
        step=number, version=number, sample_ids=(), metrics=metrics, checkpoint="", seconds=1.0, created_at=1.0
    )


def version(number: int, state: VersionState, reason: str | None = None) -> PolicyVersion:
    return PolicyVersion(version=number, state=state, path=None, step=number, created_at=1.0, reason=reason)


def test_what_was_not_measured_is_missing_and_what_was_refused_says_why() -> None:
    steps = [
        step(1, mean_reward=0.5, kl=0.1, kl_after=0.2, entropy=2.0, nats_below_told_base=-0.3),
        step(2, kl=0.25, entropy=2.0, entropy_after=1.5),
        step(3),
    ]
    versions = [
        version(0, VersionState.RETIRED),
        version(1, VersionState.SERVING),
        version(2, VersionState.REJECTED, "language"),
        version(3, VersionState.REJECTED),
    ]
    nothing = {"reward": None, "kl": None, "entropy": None, "nats_below_told_base": None}
    assert points_of(steps, versions) == [
        CurvePoint(step=1, reward=0.5, kl=0.2, entropy=2.0, nats_below_told_base=-0.3, refused=None),
        CurvePoint(step=2, reward=None, kl=0.25, entropy=1.5, nats_below_told_base=None, refused="language"),
        CurvePoint(step=3, **nothing, refused="rejected"),
    ]


@pytest.mark.parametrize("count", [1, 40])
def test_a_png_is_written_whatever_the_file_is_called(tmp_path: Path, count: int) -> None:
    points = [
        CurvePoint(
            step=number,
            reward=None if number % 5 == 0 else (-1.0) ** number,
            kl=number / 100,
            entropy=2.0,
            nats_below_told_base=None,
            refused="language" if number % 9 == 0 else None,
        )
        for number in range(1, count + 1)
    ]
    save_curves(points, "a run", tmp_path / "picture")
    data = (tmp_path / "picture").read_bytes()
    assert data.startswith(b"\x89PNG")
    width, height = int.from_bytes(data[16:20]), int.from_bytes(data[20:24])
    assert min(width, height) > 1000
