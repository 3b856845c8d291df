"""Which samples of a batch are left out, and that nothing which counts is."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.store import Store
from openclaw_rl.training.batch import build_batch
from openclaw_rl.training.trainer import Trainer
from openclaw_rl.types import Method, Origin, Sample, SampleState
from tests.training.support import into_store, make_sample, tiny_trainer
from tests.training.test_cycle import make_config, make_loop
from tests.training.test_reconstructed import reconstructed

GROUPED = {"baseline": "group"}


def kinds(trainer: Trainer) -> dict[str, Sample]:
    """A sample of each kind, by its name."""
    return {
        "reward": make_sample(trainer, 0),
        "hint": make_sample(trainer, 1, reward=None, hint="hm"),
        "both": make_sample(trainer, 2, hint="hm"),
        "retry": make_sample(trainer, 3, reward=None, retry=(8, 2)),
        "reward and retry": make_sample(trainer, 4, retry=(8, 2)),
        "hint and retry": make_sample(trainer, 5, reward=None, hint="hm", retry=(8, 2)),
        "imported": reconstructed(make_sample(trainer, 6, reward=None, hint="hm")),
    }


@pytest.mark.parametrize("w_retry", [0.0, 0.5])
@pytest.mark.parametrize(
    ("method", "silent"),
    [
        (Method.COMBINE, {"retry"}),
        (Method.BINARY_RL, {"hint", "retry", "hint and retry", "imported"}),
        (Method.OPD, {"reward", "retry", "reward and retry"}),
    ],
)
def test_a_sample_is_left_out_if_and_only_if_nothing_of_it_counts(
    method: Method, silent: set[str], w_retry: float
) -> None:
    """By name, and by the batch itself: a sample is there for nothing if it has no weight and shows nothing."""
    trainer = tiny_trainer({"w_retry": w_retry}, method=method)
    samples = kinds(trainer)
    if w_retry:
        silent = {name for name in silent if "retry" not in name}
    left_out = {name for name, sample in samples.items() if trainer.usable.obstacle(sample) == "no_signal"}
    assert left_out == silent
    by_turn = {sample.turn_id: name for name, sample in samples.items()}
    found = trainer.usable.obstacles(list(samples.values()))
    assert {by_turn[turn_id] for turn_id in found} == silent
    for name, sample in samples.items():
        assert (build_batch([sample], method, trainer.config.loss).signals == 0) is (name in silent)


@pytest.mark.parametrize("weight", ["w_rl", "w_opd"])
def test_a_weight_of_0_is_no_use_of_a_signal(weight: str) -> None:
    trainer = tiny_trainer({weight: 0.0})
    obstacle = trainer.usable.obstacle
    expected = ("no_signal", None) if weight == "w_rl" else (None, "no_signal")
    assert (obstacle(make_sample(trainer, 0)), obstacle(make_sample(trainer, 1, reward=None, hint="hm"))) == expected


def test_a_reward_that_does_not_count_does_not_save_a_hint_that_cannot_be_read() -> None:
    long = {"prompt": 250, "response": 6, "hint": "hm"}
    for method, expected in ((Method.OPD, "hint_too_long"), (Method.COMBINE, None), (Method.BINARY_RL, None)):
        trainer = tiny_trainer(method=method)
        assert trainer.usable.obstacle(make_sample(trainer, 1, **long)) == expected  # type: ignore[arg-type]


def grouped(trainer: Trainer, number: int, group: str | None, **values: Any) -> Sample:
    origin = Origin(key_id="k", group_id=group, task_id=None, step=0)
    return dataclasses.replace(make_sample(trainer, number, **values), origin=origin)


def test_a_group_of_equal_rewards_is_left_out() -> None:
    trainer = tiny_trainer(GROUPED, method=Method.BINARY_RL)
    samples = [
        grouped(trainer, 0, "equal"),
        grouped(trainer, 1, "equal"),
        grouped(trainer, 2, "different"),
        grouped(trainer, 3, "different", reward=-1.0),
        grouped(trainer, 4, "alone"),
        grouped(trainer, 5, None),
    ]
    assert trainer.usable.obstacles(samples) == {"t0": "no_signal", "t1": "no_signal"}
    plain = tiny_trainer(method=Method.BINARY_RL)
    assert plain.usable.obstacles(samples) == {}


def test_a_group_of_equal_rewards_stays_whole_where_one_of_it_has_more_to_say() -> None:
    """Left behind, that one would be alone, and measured against the moving average."""
    trainer = tiny_trainer({**GROUPED, "w_retry": 0.5})
    for extra in ({"hint": "hm"}, {"retry": (8, 2)}):
        samples = [grouped(trainer, 0, "g"), grouped(trainer, 1, "g", **extra)]
        assert trainer.usable.obstacles(samples) == {}
        batch = build_batch(samples, Method.COMBINE, trainer.config.loss)
        assert not batch.reward_mask.any()
    unreadable = grouped(trainer, 2, "h", prompt=250, response=6, hint="hm")
    found = trainer.usable.obstacles([unreadable, grouped(trainer, 3, "h")])
    assert found == {"t2": "hint_too_long", "t3": "no_signal"}


def test_samples_of_another_method_do_not_become_a_step(tmp_path: Path) -> None:
    """After a restart with `binary_rl` those with a hint only are rejected, counted, and the others trained."""
    trainer = tiny_trainer()
    with contextlib.closing(Store.open(tmp_path / "store.sqlite")) as store:
        for number, reward in enumerate([None, None, None, 1.0]):
            into_store(store, make_sample(trainer, number, reward=reward, hint="hm"))
        loop = make_loop(make_config(tmp_path, method=Method.BINARY_RL), store)
        loop.resume()
        assert [loop.cycle() for _ in range(2)] == [False, True]  # nothing is left of the first two
        assert [step.sample_ids for step in store.samples.steps()] == [("t3",)]
        counts = store.status.counts()
        assert counts.samples_by_state == {SampleState.REJECTED: 3, SampleState.TRAINED: 1}
        assert counts.counters["samples_rejected_no_signal"] == counts.counters["samples_unusable"] == 3
