"""The learning curve's numbers, and that a picture comes out."""

from pathlib import Path

import pytest

from openclaw_rl.evaluation.plot import LearningCurve, rolling_mean, save_plot


def test_a_rolling_mean_leaves_out_what_is_missing() -> None:
    assert rolling_mean([1.0, 0.0, None, 1.0, None, None], window=2) == [1.0, 0.5, 0.0, 1.0, 1.0, None]
    assert rolling_mean([]) == []


@pytest.mark.parametrize("count", [0, 1, 48])
def test_a_png_is_written(tmp_path: Path, count: int) -> None:
    curve = LearningCurve(
        title="a run",
        satisfied=[place % 3 == 0 for place in range(count)],
        rewards=[None if place % 5 == 0 else (-1.0) ** place for place in range(count)],
        version_marks=[(place, place // 8) for place in range(8, count, 8)],
        score_before=0.05 if count else None,
        score_after=0.9 if count else None,
    )
    save_plot(curve, tmp_path / "curve.png")
    data = (tmp_path / "curve.png").read_bytes()
    assert data.startswith(b"\x89PNG")
    width, height = int.from_bytes(data[16:20]), int.from_bytes(data[20:24])
    assert width > height > 600
