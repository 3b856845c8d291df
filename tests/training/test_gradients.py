"""Ways to cut a batch change what it costs and nothing else: against a plain loop, one sample at a time."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from openclaw_rl.config import LossConfig
from openclaw_rl.training import gradients
from openclaw_rl.training.batch import build_batch
from openclaw_rl.training.meter import Meter
from openclaw_rl.training.trainer import Trainer
from openclaw_rl.types import Method, Sample
from tests.training.support import (
    logprobs_of,
    make_sample,
    mixed_samples,
    teacher_prompt,
    tiny_trainer,
    with_logprobs,
)

LOSS = {"opd_top_k": 0, "baseline": "none", "kl_coef": 0.3}


def learned(trainer: Trainer, samples: list[Sample]) -> tuple[float, Tensor]:
    """The loss of a batch and its gradient, all parameters in one vector."""
    meter = Meter()
    trainer.update(build_batch(samples, trainer.config.method, trainer.config.loss), meter)
    found = [p.grad.flatten().clone() for p in trainer.model.parameters() if p.grad is not None]
    return meter.means()["loss"], torch.cat(found)


def plainly(trainer: Trainer, samples: list[Sample]) -> tuple[float, Tensor]:
    """The same by the formula: whole logits of one sample after the other, one backward pass over their sum.

    `Σ_t w_t (-min(ρA, clip(ρ)A) + β KL(π ‖ base))`, `A = r + (log π_teacher - log π_before)`, each where it exists.
    """
    loss, model = trainer.config.loss, trainer.model
    acting = [sample for sample in samples if sample.reward is not None or sample.hint is not None]
    total = torch.zeros(())
    for sample in acting:
        own = _logprobs(model, sample, sample.tokens.prompt_ids)
        with torch.no_grad():
            with model.disable_adapter():
                base = _logprobs(model, sample, sample.tokens.prompt_ids)
            teacher = own if sample.hint is None else _logprobs(model, sample, teacher_prompt(sample))
        targets = torch.tensor(sample.tokens.response_ids).unsqueeze(-1)
        chosen, old = own.gather(-1, targets).squeeze(-1), torch.tensor(sample.logprobs)
        advantage = torch.full_like(old, sample.reward or 0.0)
        if sample.hint is not None:
            drift = teacher.detach().gather(-1, targets).squeeze(-1) - chosen.detach()
            advantage = advantage + drift.clamp(-loss.opd_clip, loss.opd_clip)
        ratio = (chosen - old).exp()
        clipped = ratio.clamp(1 - loss.clip_low, 1 + loss.clip_high)
        terms = -torch.minimum(ratio * advantage, clipped * advantage)
        terms = terms + loss.kl_coef * (own.exp() * (own - base)).sum(-1)
        total = total + terms.sum() / len(old) / len(acting)
    model.zero_grad()
    total.backward()  # type: ignore[no-untyped-call]
    found = [p.grad.flatten().clone() for p in model.parameters() if p.grad is not None]
    return float(total.detach()), torch.cat(found)


def _logprobs(model: Any, sample: Sample, prompt: tuple[int, ...]) -> Tensor:
    ids = torch.tensor([prompt + sample.tokens.response_ids])
    logits = model(input_ids=ids, attention_mask=None).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits / sample.sampling.temperature, -1)


def assert_alike(one: tuple[float, Tensor], other: tuple[float, Tensor]) -> None:
    """The same loss, and gradients whose difference is 1e-5 of them."""
    assert one[0] == pytest.approx(other[0], rel=1e-5, abs=2e-6)
    assert float(other[1].norm()) > 0
    assert float((one[1] - other[1]).norm() / other[1].norm()) < 1e-5


def trainer_with(**values: Any) -> Trainer:
    return tiny_trainer({**LOSS, "reduction": "samples"}, shaken=True, max_grad_norm=1e9, **values)


def session(
    trainer: Trainer, turns: list[tuple[int, int]], rewards: list[float | None] | None = None
) -> list[Sample]:
    """Turns that add (prompt, response) tokens each, every prompt beginning with all that came before."""
    before: tuple[int, ...] = ()
    samples = []
    for number, (prompt, response) in enumerate(turns):
        sample = make_sample(trainer, number, prompt=prompt, response=response, temperature=1.0 - 0.1 * (number % 3))
        tokens = dataclasses.replace(sample.tokens, prompt_ids=before + sample.tokens.prompt_ids)
        reward = (-1.0) ** number if rewards is None else rewards[number]
        hint = "hm" if number % 2 or reward is None else None
        sample = dataclasses.replace(sample, tokens=tokens, reward=reward, hint=hint)
        drift = 0.3 * torch.sin(torch.arange(response) + 1.0)
        samples.append(with_logprobs(sample, (logprobs_of(trainer, sample) + drift).tolist()))
        before = tokens.prompt_ids + tokens.response_ids
    return samples


@pytest.mark.parametrize("budget", [8, 30, 4096])
def test_packs_are_the_plain_loop(budget: int) -> None:
    trainer, plain = trainer_with(max_tokens_per_micro_batch=budget), trainer_with()
    samples = mixed_samples(trainer)
    assert_alike(learned(trainer, samples), plainly(plain, samples))


@settings(max_examples=15)
@given(
    st.lists(st.tuples(st.integers(1, 12), st.integers(1, 8)), min_size=2, max_size=6),
    st.integers(8, 200),
    st.randoms(use_true_random=False),
)
def test_a_session_as_one_row_is_its_turns_apart(
    turns: list[tuple[int, int]], budget: int, order: random.Random
) -> None:
    trainer, plain = trainer_with(max_tokens_per_micro_batch=budget), trainer_with()
    samples = session(trainer, turns)
    shuffled = order.sample(samples, len(samples))
    assert len(trainer.scorer.plan(build_batch(samples, Method.COMBINE, LossConfig()).sequences, 1)) == 1
    assert_alike(learned(trainer, shuffled), plainly(plain, samples))


def test_turns_without_a_signal_are_context_only() -> None:
    """The second turn is not trained; the third goes on from it all the same."""
    trainer, plain = trainer_with(method=Method.BINARY_RL), trainer_with()
    samples = session(trainer, [(5, 4), (3, 6), (2, 5)], [1.0, None, -1.0])
    trained = [dataclasses.replace(sample, hint=None) for sample in (samples[0], samples[2])]
    assert_alike(learned(trainer, samples), plainly(plain, trained))


@pytest.mark.parametrize("top_k", [0, 4])
def test_the_head_in_chunks_is_the_head(top_k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for chunk in (3, 64):
        monkeypatch.setattr(gradients, "HEAD_CHUNK", chunk)
        trainer = tiny_trainer({**LOSS, "opd_top_k": top_k, "w_retry": 0.4}, shaken=True, max_grad_norm=1e9)
        found.append(learned(trainer, mixed_samples(trainer)))
    assert_alike(*found)


def test_the_order_of_samples_changes_nothing() -> None:
    found = []
    for order in (1, -1):
        trainer = trainer_with(max_tokens_per_micro_batch=40)
        samples = mixed_samples(trainer) + session(trainer, [(4, 3), (5, 2)])
        found.append(learned(trainer, samples[::order]))
    assert_alike(*found)


def test_gradient_checkpointing_changes_nothing_but_keeps_less() -> None:
    found, kept = [], []
    for checkpointing in (False, True):
        trainer = trainer_with(gradient_checkpointing=checkpointing)
        samples = session(trainer, [(40, 20), (30, 10)])
        sizes: list[int] = []

        def keep(tensor: Tensor, sizes: list[int] = sizes) -> Tensor:
            sizes.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            found.append(learned(trainer, samples))
        kept.append(sum(sizes))
    assert_alike(*found)
    assert kept[1] < kept[0]


def test_all_parameters_can_learn() -> None:
    """The cut between model and head loses nothing where the head (tied to the embedding) learns too."""
    trainer, plain = trainer_with(max_tokens_per_micro_batch=30), trainer_with()
    for other in (trainer, plain):
        other.model.requires_grad_(True)
    samples = [dataclasses.replace(sample, hint=None) for sample in mixed_samples(trainer)[:2]]
    one, two = learned(trainer, samples), plainly(plain, samples)
    assert len(one[1]) == sum(p.numel() for p in trainer.model.parameters())
    assert_alike(one, two)


def test_without_kl_nobody_reads_the_reference() -> None:
    one, other, plain = (tiny_trainer({**LOSS, "kl_coef": 0.0}, shaken=True, max_grad_norm=1e9) for _ in range(3))
    samples = [make_sample(one, 0), make_sample(one, 1, reward=-1.0)]
    assert_alike(learned(one, samples), plainly(plain, samples))
    said: list[str] = []
    meter = Meter()
    other.update(build_batch(samples, Method.COMBINE, other.config.loss), meter, said.append)
    assert "reading the reference" not in said
    assert "kl" not in meter.means()
