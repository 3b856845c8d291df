"""Bars and the driver's line of `status`, by hand."""

from __future__ import annotations

import pytest

from openclaw_rl.supervision.bars import bar, rollout_words


@pytest.mark.parametrize(
    ("done", "total", "drawn"),
    [
        (0, 8, "░░░░"),
        (1, 8, "░░░░"),
        (2, 8, "█░░░"),
        (7, 8, "███░"),
        (8, 8, "████"),
        (11, 8, "████"),
        (-1, 8, "░░░░"),
    ],
)
def test_a_bar_is_full_only_when_all_is_done(done: int, total: int, drawn: str) -> None:
    assert bar(done, total, width=4) == drawn


def test_a_bar_of_nothing_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="something to be done"):
        bar(0, 0)


def test_the_drivers_line() -> None:
    assert rollout_words({}, {}, None) == "0 groups done; rollouts: none yet"
    said = rollout_words({"finished": 9, "failed": 1}, {"released": 2, "dropped": 1, "open": 1}, 6)
    assert said == f"{'█' * 10}{'░' * 10}  3 of 6 groups done, 1 of them dropped; rollouts: failed 1, finished 9"
