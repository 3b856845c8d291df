from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw_rl.config import RolloutConfig
from openclaw_rl.rollout.batches import DueDecision, batch_due

CONFIG = RolloutConfig(batch_size=8, max_batch_wait_s=300.0, min_batch_size=2)
NOW = 1_000_000.0


@pytest.mark.parametrize(
    ("ready", "age", "due", "size", "why"),
    [
        (0, None, False, 0, "0 of 8 samples"),
        (5, 41.2, False, 0, "5 of 8 samples; the oldest is 41 s old, due at 300 s"),
        (8, 0.0, True, 8, "8 of 8 samples"),
        (11, 400.0, True, 8, "11 samples ready (a batch takes 8)"),
        (5, 299.9, False, 0, "5 of 8 samples; the oldest is 300 s old, due at 300 s"),
        (5, 300.0, True, 5, "5 of 8 samples; the oldest is 300 s old, due at 300 s"),
        (2, 900.0, True, 2, "2 of 8 samples; the oldest is 900 s old, due at 300 s"),
        (1, 900.0, False, 0, "1 of 8 samples; the oldest is 900 s old, due at 300 s, but never with fewer than 2"),
        (1, 58.0, False, 0, "1 of 8 samples; the oldest is 58 s old, due at 300 s, but never with fewer than 2"),
        (3, -5.0, False, 0, "3 of 8 samples; the oldest is 0 s old, due at 300 s"),
    ],
)
def test_when_a_batch_is_due(ready: int, age: float | None, due: bool, size: int, why: str) -> None:
    oldest = None if age is None else NOW - age
    assert batch_due(ready, oldest, NOW, CONFIG) == DueDecision(due=due, size=size, why=why)


def test_samples_without_a_time_are_an_error() -> None:
    with pytest.raises(ValueError, match="oldest"):
        batch_due(1, None, NOW, CONFIG)


@given(
    ready=st.integers(0, 50),
    age=st.floats(0, 1e6),
    batch=st.integers(1, 20),
    wait=st.floats(0.1, 1e5),
    data=st.data(),
)
def test_a_due_batch_is_never_empty_too_large_or_too_small(
    ready: int, age: float, batch: int, wait: float, data: Any
) -> None:
    least = data.draw(st.integers(1, batch + 3))
    config = RolloutConfig(batch_size=batch, max_batch_wait_s=wait, min_batch_size=least)
    decision = batch_due(ready, NOW - age, NOW, config)
    assert decision.due == (decision.size > 0)
    if decision.due:
        assert min(least, batch) <= decision.size <= min(batch, ready)
    elif ready >= batch:
        pytest.fail("a full batch is always due")
