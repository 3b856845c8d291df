"""The learning rate of a step: by hand, by properties, and that a trainer takes it, also after resuming."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from openclaw_rl.config import TrainingConfig
from openclaw_rl.training.checkpoint import load_checkpoint, save_checkpoint
from openclaw_rl.training.schedule import lr_share
from tests.training.support import mixed_samples, tiny_trainer


def shares(config: TrainingConfig, steps: int) -> list[float]:
    return [lr_share(committed, config) for committed in range(steps)]


def test_constant_without_warm_up_is_the_whole_rate() -> None:
    assert shares(TrainingConfig(), 3) == [1.0, 1.0, 1.0]


def test_warm_up_rises_in_equal_parts_to_the_step_after_it() -> None:
    assert shares(TrainingConfig(warmup_steps=3), 6) == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0, 1.0])


def test_linear_falls_in_equal_parts_and_stays() -> None:
    config = TrainingConfig(schedule="linear", schedule_steps=4, min_lr_share=0.2)
    assert shares(config, 7) == pytest.approx([1.0, 0.8, 0.6, 0.4, 0.2, 0.2, 0.2])


def test_linear_after_a_warm_up_counts_it() -> None:
    config = TrainingConfig(schedule="linear", warmup_steps=1, schedule_steps=5, min_lr_share=0.2)
    assert shares(config, 7) == pytest.approx([0.5, 1.0, 0.8, 0.6, 0.4, 0.2, 0.2])


def test_cosine_is_half_way_down_in_the_middle() -> None:
    config = TrainingConfig(schedule="cosine", schedule_steps=4, min_lr_share=0.1)
    quarter = 0.1 + 0.9 * 0.5 * (1 + math.sqrt(0.5))
    assert shares(config, 6) == pytest.approx([1.0, quarter, 0.55, 0.1 + 0.9 - (quarter - 0.1), 0.1, 0.1])


@given(
    kind=st.sampled_from(["linear", "cosine"]),
    warmup=st.integers(0, 30),
    more=st.integers(1, 60),
    least=st.floats(0.01, 1.0),
)
def test_it_rises_falls_and_never_ends(kind: str, warmup: int, more: int, least: float) -> None:
    config = TrainingConfig(schedule=kind, warmup_steps=warmup, schedule_steps=warmup + more, min_lr_share=least)  # type: ignore[arg-type]
    values = shares(config, warmup + more + 3)
    up, down = values[: warmup + 1], values[warmup:]
    assert up == sorted(up)
    assert down == sorted(down, reverse=True)
    assert max(values) == 1.0
    assert min(values) > 0
    assert values[-1] == pytest.approx(least)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"schedule": "cosine"}, "needs training.schedule_steps"),
        ({"schedule": "linear", "schedule_steps": 3, "warmup_steps": 3}, "must be more than training.warmup_steps"),
        ({"schedule_steps": 3}, "schedule_steps does nothing with training.schedule = constant"),
        ({"min_lr_share": 0.5}, "min_lr_share does nothing with training.schedule = constant"),
        ({"schedule": "linear", "schedule_steps": 3, "min_lr_share": 0.0}, "greater than 0"),
    ],
)
def test_what_means_nothing_is_an_error(values: dict[str, object], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        TrainingConfig(**values)  # type: ignore[arg-type]


def test_a_trainer_takes_it_and_takes_it_up_again(tmp_path: Path) -> None:
    """Three steps; the third in another trainer, from the second's checkpoint. A small batch shrinks it further."""
    schedule: dict[str, Any] = {"schedule": "linear", "warmup_steps": 1, "schedule_steps": 3, "min_lr_share": 0.1}
    trainer = tiny_trainer(lr=1e-2, **schedule)
    assert trainer.step(mixed_samples(trainer)).metrics["lr"] == pytest.approx(0.5e-2)
    assert trainer.step(mixed_samples(trainer)).metrics["lr"] == pytest.approx(1e-2)
    saved = load_checkpoint(save_checkpoint(trainer, tmp_path))
    other = tiny_trainer(lr=1e-2, full_batch=20, **schedule)
    other.restore(saved)
    outcome = other.step(mixed_samples(other))
    signals = 5  # of the six samples one has nothing but an accepted retry
    assert outcome.metrics["lr"] == pytest.approx(0.55e-2 * signals / 20)
