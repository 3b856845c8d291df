"""With full weights, too, the trainer computes what `training.reference` says: the head learns, and stays the old one
for what was read before the step."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from openclaw_rl.training.reference import reference_loss
from openclaw_rl.training.trainer import Trainer
from openclaw_rl.types import Sample
from tests.training.support import shake, teacher_prompt, tiny_model, tiny_trainer
from tests.training.test_reference import (
    AVERAGES,
    CASES,
    SECOND_PASSES,
    TOLERANCE,
    batch_of_everything,
    difference,
    gradients_of,
    measured,
)


def full_trainer(case: str, **values: Any) -> Trainer:
    method, loss = CASES[case]
    trainer = tiny_trainer(
        loss,
        method=method,
        use_lora=False,
        max_grad_norm=1e9,
        gate={"max_kl_to_base": 1e9, "max_kl_to_last": 1e9, "probes": 0},
        max_tokens_per_micro_batch=40,
        **values,
    )
    shake(trainer, scale=0.05)
    trainer.averages = dict(AVERAGES)
    return trainer


def specified(
    trainer: Trainer, samples: list[Sample], before: Any = None
) -> tuple[dict[str, float], dict[str, torch.Tensor]]:
    trainer.model.zero_grad(set_to_none=True)
    terms = reference_loss(
        samples, trainer.model.eval(), trainer.config, teacher_prompt, AVERAGES, before, base=tiny_model()
    )
    terms["loss"].backward()  # type: ignore[no-untyped-call]
    found = gradients_of(trainer.model)
    trainer.model.zero_grad(set_to_none=True)
    return {name: float(value.detach()) for name, value in terms.items()}, found


@pytest.mark.parametrize(
    "case", ["combine, top-k", "combine, sampled token, tokens", "k3", "entropy", "grpo", "gspo"]
)
def test_the_trainer_follows_the_specification(case: str) -> None:
    trainer = full_trainer(case)
    samples = batch_of_everything(trainer)
    terms, gradient = specified(trainer, samples)
    outcome = trainer.step(samples)
    assert outcome.refused is None
    assert measured(outcome) == pytest.approx(terms, abs=TOLERANCE, rel=TOLERANCE)
    found = gradients_of(trainer.model)
    assert "model.embed_tokens.weight" in found
    assert "lm_head.weight" not in found, "it is tied"
    assert difference(found, gradient) < TOLERANCE


@pytest.mark.parametrize("case", SECOND_PASSES)
def test_so_does_a_second_pass_though_the_head_has_moved(case: str) -> None:
    once, twice = (full_trainer(case, epochs_per_batch=n) for n in (1, 2))
    before = copy.deepcopy(once.model)
    samples = batch_of_everything(once)
    once.step(samples)
    assert not torch.equal(once.model.lm_head.weight, before.lm_head.weight)
    _, gradient = specified(once, samples, before)
    assert twice.step(samples).refused is None
    assert difference(gradients_of(twice.model), gradient) < TOLERANCE
