"""Reconstructed samples: distilled from, never a ratio with log-probabilities that nobody had."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch

from openclaw_rl.training.batch import build_batch
from openclaw_rl.types import NO_VERSION, Method, Sample, TokenRecord
from tests.training.support import logprobs_of, make_sample, shake, tiny_trainer


def reconstructed(sample: Sample) -> Sample:
    """The same answer, as it would be had it been imported."""
    length = len(sample.tokens.response_ids)
    tokens = TokenRecord(
        prompt_ids=sample.tokens.prompt_ids,
        response_ids=sample.tokens.response_ids,
        logprobs=(None,) * length,
        versions=(NO_VERSION,) * length,
    )
    return dataclasses.replace(sample, tokens=tokens, reward=None, retry=None, reconstructed=True)


def after_step(loss: dict[str, Any], samples: Any, **values: Any) -> tuple[dict[str, torch.Tensor], Any]:
    trainer = tiny_trainer(loss, shaken=True, **values)
    outcome = trainer.step(samples(trainer))
    assert outcome.refused is None
    return trainer.state().weights, outcome.metrics


def test_a_reward_or_a_retry_is_refused() -> None:
    sample = make_sample(tiny_trainer(), 1, hint="hm")
    with pytest.raises(ValueError, match="distilled from only"):
        dataclasses.replace(sample, reconstructed=True)


def test_missing_log_probabilities_are_nan_in_a_batch_and_never_zero() -> None:
    trainer = tiny_trainer()
    own, told = make_sample(trainer, 1, hint="hm"), reconstructed(make_sample(trainer, 2, hint="hm"))
    batch = build_batch([own, told], Method.COMBINE, trainer.config.loss)
    assert batch.old.isnan().tolist() == [False] * 4 + [True] * 4
    assert batch.reward_mask.tolist() == [True] * 4 + [False] * 4
    assert batch.hint_mask.all()
    assert all(math.isnan(logprob) for logprob in told.logprobs)


@pytest.mark.parametrize("top_k", [0, 3])
@pytest.mark.parametrize("epochs", [1, 3])
def test_it_trains_like_one_drawn_by_the_student_as_it_is_before_the_step(top_k: int, epochs: int) -> None:
    """An identity: for a sample that the present weights drew, the engine's log-probabilities are the student's."""
    loss = {"opd_top_k": top_k, "kl_coef": 0.0, "clip_low": 0.01, "clip_high": 0.01}

    def drawn(trainer: Any) -> list[Sample]:
        return [make_sample(trainer, 1, reward=None, hint="be kind"), make_sample(trainer, 2, reward=None, hint="hm")]

    def told(trainer: Any) -> list[Sample]:
        return [reconstructed(sample) for sample in drawn(trainer)]

    by_engine, _ = after_step(loss, drawn, epochs_per_batch=epochs)
    by_student, metrics = after_step(loss, told, epochs_per_batch=epochs)
    for name, tensor in by_engine.items():
        torch.testing.assert_close(tensor, by_student[name], rtol=2e-3, atol=2e-5)
    assert metrics["ratio_max"] == pytest.approx(1.0, abs=1e-5) or epochs > 1
    assert "logprob_gap" not in metrics


def test_the_old_policy_is_the_student_and_not_whatever_stands_in_the_log_probabilities() -> None:
    """Log-probabilities of another deployment's policy, which an export brings along, change nothing."""
    loss = {"opd_top_k": 0, "kl_coef": 0.0}

    def told(trainer: Any) -> list[Sample]:
        return [reconstructed(make_sample(trainer, 1, reward=None, hint="be kind"))]

    def brought(trainer: Any) -> list[Sample]:
        (sample,) = told(trainer)
        tokens = dataclasses.replace(sample.tokens, logprobs=(-9.0,) * len(sample.tokens.response_ids))
        return [dataclasses.replace(sample, tokens=tokens)]

    one, _ = after_step(loss, told)
    other, _ = after_step(loss, brought)
    for name, tensor in one.items():
        torch.testing.assert_close(tensor, other[name], rtol=0.0, atol=0.0)


def test_it_moves_the_student_towards_the_teacher_beside_samples_of_other_kinds() -> None:
    trainer = tiny_trainer({"kl_coef": 0.0})
    shake(trainer)
    told = reconstructed(make_sample(trainer, 1, reward=None, hint="be kind"))
    others = [make_sample(trainer, 2), make_sample(trainer, 3, reward=-1.0, hint="hm")]
    before = logprobs_of(trainer, told)
    outcome = trainer.step([*others, told])
    assert outcome.refused is None
    assert all(math.isfinite(value) for value in outcome.metrics.values())
    assert outcome.metrics["staleness_max"] == 0.0
    assert outcome.metrics["effective_samples"] == 3.0
    assert not torch.allclose(before, logprobs_of(trainer, told))
