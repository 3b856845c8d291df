"""The trainer computes what `training.reference` says: losses, every term of them, and gradients, to 1e-5."""

from __future__ import annotations

import copy
import dataclasses
import math
from typing import Any

import pytest
import torch

from openclaw_rl.training.reference import reference_loss
from openclaw_rl.training.trainer import StepOutcome, Trainer
from openclaw_rl.types import Method, Origin, Sample, SamplingParams
from tests.training.support import mixed_samples, teacher_prompt, tiny_trainer, with_logprobs
from tests.training.test_truncated_support import sampled

TOLERANCE = 1e-5
AVERAGES = {"": 0.1, "anna": -0.3}


def batch_of_everything(trainer: Trainer) -> list[Sample]:
    """Every combination of signals, lengths and temperatures; two answers drawn under top-p and top-k.

    What the engine recorded differs from the trainer's policy by up to ±0.6 nats, so that every clip and mask acts
    somewhere. Two samples are a group of different rewards, two of equal ones; two are at one step of a task.
    """
    samples = [
        *mixed_samples(trainer),
        dataclasses.replace(
            sampled(trainer, SamplingParams(max_tokens=6, temperature=0.7, top_p=0.8), number=6), turn_id="t6"
        ),
        dataclasses.replace(
            sampled(trainer, SamplingParams(max_tokens=6, temperature=1.3, top_k=5), number=7),
            turn_id="t7",
            reward=-0.5,
            hint="shorter",
        ),
    ]
    groups = ["g1", "g1", None, None, "g2", None, "g2", None]
    steps = [("t", 0), ("t", 1), None, ("t", 0), None, None, None, ("t", 1)]
    rewards = [1.0, -1.0, None, 0.5, 1.0, None, 1.0, -0.5]
    made: list[Sample] = []
    generator = torch.Generator().manual_seed(11)
    for sample, group, step, reward in zip(samples, groups, steps, rewards, strict=True):
        noise = 1.2 * torch.rand(len(sample.logprobs), generator=generator) - 0.6
        drifted = with_logprobs(sample, [min(a + float(b), 0.0) for a, b in zip(sample.logprobs, noise, strict=True)])
        origin = Origin(
            key_id="anna" if len(made) % 2 else "bert",
            group_id=group,
            task_id=None if step is None else step[0],
            step=0 if step is None else step[1],
        )
        made.append(dataclasses.replace(drifted, origin=origin, reward=reward))
    return made


def trainer_of(loss: dict[str, Any], **values: Any) -> Trainer:
    far = {"max_kl_to_base": 1e9, "probes": 0}
    trainer = tiny_trainer(loss, shaken=True, max_grad_norm=1e9, gate=far, max_tokens_per_micro_batch=40, **values)
    trainer.averages = dict(AVERAGES)
    return trainer


def gradients_of(model: Any) -> dict[str, torch.Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """Relative, in the L2 norm, over all parameters together."""
    assert one.keys() == other.keys()
    gap = sum(float((one[name] - other[name]).double().square().sum()) for name in one)
    return math.sqrt(gap / sum(float(value.double().square().sum()) for value in other.values()))


def specified(
    trainer: Trainer, samples: list[Sample], before: Any = None
) -> tuple[dict[str, float], dict[str, torch.Tensor]]:
    """The terms and the gradient by the specification, at the trainer's present weights."""
    trainer.model.zero_grad(set_to_none=True)
    terms = reference_loss(samples, trainer.model.eval(), trainer.config, teacher_prompt, AVERAGES, before)
    terms["loss"].backward()  # type: ignore[no-untyped-call]
    found = gradients_of(trainer.model)
    trainer.model.zero_grad(set_to_none=True)
    return {name: float(value.detach()) for name, value in terms.items()}, found


def measured(outcome: StepOutcome) -> dict[str, float]:
    metrics = outcome.metrics
    terms = {name: metrics.get(f"loss_{name}", 0.0) for name in ("policy", "opd", "kl", "entropy", "retry")}
    assert metrics["loss"] == pytest.approx(sum(terms.values()) - terms["retry"], abs=1e-5)
    return terms | {"loss": sum(terms.values())}


SAMPLED = {"opd_top_k": 0}
GRPO = {"baseline": "group", "normalise": "group"}
CASES: dict[str, tuple[Method, dict[str, Any]]] = {
    "combine, top-k": (Method.COMBINE, {}),
    "combine, top-k, tokens": (Method.COMBINE, {"reduction": "tokens", "w_rl": 0.7, "w_opd": 1.3}),
    "combine, sampled token": (Method.COMBINE, SAMPLED),
    "combine, sampled token, tokens": (Method.COMBINE, {**SAMPLED, "reduction": "tokens"}),
    "binary_rl": (Method.BINARY_RL, {"baseline": "none"}),
    "binary_rl, tokens, no KL": (Method.BINARY_RL, {"reduction": "tokens", "kl_coef": 0.0}),
    "opd, top-k": (Method.OPD, {"opd_clip": 0.4}),
    "opd, sampled token, tokens": (Method.OPD, {**SAMPLED, "reduction": "tokens"}),
    "dual clip": (Method.BINARY_RL, {"dual_clip": 1.1, "baseline": "none"}),
    "cispo": (Method.COMBINE, {**SAMPLED, "kind": "cispo"}),
    "cispo, top-k": (Method.COMBINE, {"kind": "cispo", "reduction": "tokens"}),
    "gspo": (Method.COMBINE, {**SAMPLED, "kind": "gspo", "clip_low": 0.02, "clip_high": 0.03}),
    "gspo, rewards": (Method.BINARY_RL, {"kind": "gspo", "clip_low": 0.1, "clip_high": 0.1}),
    "importance sampling": (Method.COMBINE, {**SAMPLED, "kind": "importance_sampling"}),
    "tis": (Method.COMBINE, {**SAMPLED, "tis_cap": 1.1}),
    "icepop, top-k": (Method.COMBINE, {"icepop_low": 0.7, "icepop_high": 1.3}),
    "tis and icepop, gspo": (
        Method.COMBINE,
        {**SAMPLED, "kind": "gspo", "tis_cap": 1.1, "icepop_low": 0.7, "icepop_high": 1.3},
    ),
    "k1": (Method.COMBINE, {"kl": "k1", "kl_coef": 0.5}),
    "k2": (Method.COMBINE, {"kl": "k2", "kl_coef": 0.5}),
    "k3": (Method.COMBINE, {"kl": "k3", "kl_coef": 0.5}),
    "entropy": (Method.COMBINE, {"entropy_coef": 0.3, "reduction": "tokens"}),
    "grpo": (Method.BINARY_RL, GRPO),
    "grpo and hints": (Method.COMBINE, {**GRPO, **SAMPLED}),
    "dr grpo": (Method.BINARY_RL, {"baseline": "group", "reduction": "tokens"}),
    "reinforce++": (Method.BINARY_RL, {"baseline": "group", "normalise": "batch"}),
    "step-wise": (Method.COMBINE, {"baseline": "step", "normalise": "group"}),
    "per key": (Method.BINARY_RL, {"baseline": "per_key"}),
    "retry": (Method.COMBINE, {"w_retry": 0.8}),
    "retry, forward KL": (Method.BINARY_RL, {"w_retry": 0.8, "retry": "forward_kl"}),
}


@pytest.mark.parametrize(("method", "loss"), CASES.values(), ids=CASES.keys())
def test_the_trainer_follows_the_specification(method: Method, loss: dict[str, Any]) -> None:
    trainer = trainer_of(loss, method=method)
    samples = batch_of_everything(trainer)
    terms, gradient = specified(trainer, samples)
    outcome = trainer.step(samples)
    assert outcome.refused is None
    assert measured(outcome) == pytest.approx(terms, abs=TOLERANCE, rel=TOLERANCE)
    assert difference(gradients_of(trainer.model), gradient) < TOLERANCE


SECOND_PASSES = ["combine, top-k", "combine, sampled token", "cispo", "gspo", "tis and icepop, gspo", "k1"]


@pytest.mark.parametrize("case", SECOND_PASSES)
def test_so_does_a_second_pass_over_the_batch(case: str) -> None:
    """Where ratios start from, and what the teacher said, are those of the weights before the first pass."""
    method, loss = CASES[case]
    once, twice = (trainer_of(loss, method=method, epochs_per_batch=n) for n in (1, 2))
    before = copy.deepcopy(once.model)
    samples = batch_of_everything(once)
    once.step(samples)
    _, gradient = specified(once, samples, before)
    assert twice.step(samples).refused is None
    assert difference(gradients_of(twice.model), gradient) < TOLERANCE


def test_every_option_of_the_loss_is_compared() -> None:
    """No kind of loss, KL, baseline or retry is left out of the table above."""
    fields = trainer_of({}).config.loss.__class__.model_fields
    for name in ("kind", "kl", "baseline", "normalise", "retry", "reduction"):
        used = {str(loss.get(name, fields[name].default)) for _, loss in CASES.values()}
        assert used == set(fields[name].annotation.__args__)  # type: ignore[union-attr]


@pytest.mark.parametrize("case", ["combine, sampled token", "dual clip", "cispo", "gspo", "tis and icepop, gspo"])
def test_what_is_compared_does_act_on_these_samples(case: str) -> None:
    method, loss = CASES[case]
    trainer = trainer_of(loss, method=method)
    metrics = trainer.step(batch_of_everything(trainer)).metrics
    if "tis_cap" in loss:
        assert 0.1 < metrics["mismatch_weight"] < 0.9
    else:
        assert 0.05 < metrics["clip_fraction"] < 0.95


def test_the_comparison_would_notice() -> None:
    """The same gradient under another KL weight differs by far more than the tolerance."""
    trainer = trainer_of({})
    samples = batch_of_everything(trainer)
    _, gradient = specified(trainer, samples)
    other = trainer_of({"kl_coef": 0.101})
    other.step(samples)
    assert difference(gradients_of(other.model), gradient) > 10 * TOLERANCE


def test_student_teacher_and_engine_share_a_temperature() -> None:
    """A hint that changes nothing teaches nothing, and a fresh record has ratio 1, at any temperature."""
    for temperature in (0.5, 1.0, 1.7):
        trainer = trainer_of({**SAMPLED, "kl_coef": 0.0}, method=Method.OPD)
        samples = [
            dataclasses.replace(sample, hint="same", reward=None, retry=None)
            for sample in (
                sampled(trainer, SamplingParams(max_tokens=6, temperature=temperature), number=1),
                sampled(trainer, SamplingParams(max_tokens=6, temperature=temperature, top_p=0.7), number=2),
            )
        ]
        metrics = trainer.step(samples).metrics
        assert metrics["loss"] == pytest.approx(0.0, abs=1e-5)
        assert metrics["grad_norm"] == pytest.approx(0.0, abs=1e-4)
        assert metrics["logprob_gap"] == pytest.approx(0.0, abs=1e-5)
