"""Tokens drawn under top-p or top-k: trainer and engine agree on their log-probabilities, under any weights."""

from __future__ import annotations

import math
import time
from dataclasses import replace

import pytest
import torch

from openclaw_rl.serving.engines.embedded.sampling import draw
from openclaw_rl.training.batch import build_batch
from openclaw_rl.training.objective import chosen_logprobs
from openclaw_rl.training.trainer import Trainer
from openclaw_rl.types import Method, Sample, SamplingParams, TokenRecord
from tests.training.support import VOCABULARY, make_sample, shake, tiny_trainer


def sampled(trainer: Trainer, sampling: SamplingParams, *, number: int = 0) -> Sample:
    """A sample drawn token by token by the engine's own function from the trainer's policy."""
    prompt, generator = [3, 1, 4, 1, 5 + number], torch.Generator().manual_seed(number)
    ids: list[int] = []
    drawn = []
    for _ in range(6):
        with torch.no_grad():
            logits = trainer.model(input_ids=torch.tensor([prompt + ids])).logits[0, -1]
        drawn.append(
            draw(
                logits,
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                top_k=sampling.top_k,
                generator=generator,
            )
        )
        ids.append(drawn[-1].token)
    tokens = TokenRecord(
        prompt_ids=tuple(prompt),
        response_ids=tuple(ids),
        logprobs=tuple(one.logprob for one in drawn),
        versions=(trainer.step_number,) * len(ids),
        kept=tuple(one.kept for one in drawn) if sampling.truncated else None,
    )
    plain = make_sample(trainer, number, response=len(ids))
    return replace(plain, tokens=tokens, sampling=sampling, created_at=time.time())


SAMPLINGS = pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(max_tokens=6, temperature=0.7, top_p=0.8),
        SamplingParams(max_tokens=6, temperature=1.3, top_k=5),
        SamplingParams(max_tokens=6, temperature=1.0, top_k=9, top_p=0.5),
        SamplingParams(max_tokens=6, temperature=0.4),
    ],
)


@SAMPLINGS
def test_engine_and_trainer_agree(sampling: SamplingParams) -> None:
    trainer = tiny_trainer(shaken=True, method=Method.BINARY_RL)
    outcome = trainer.step([sampled(trainer, sampling), sampled(trainer, SamplingParams(max_tokens=6), number=1)])
    assert outcome.refused is None
    assert outcome.metrics["logprob_gap"] == pytest.approx(0.0, abs=2e-5)
    assert outcome.metrics["ratio_mean"] == pytest.approx(1.0, abs=1e-4)


@SAMPLINGS
def test_new_weights_are_renormalised_over_the_same_set(sampling: SamplingParams) -> None:
    trainer = tiny_trainer(shaken=True)
    sample = sampled(trainer, sampling)
    shake(trainer, 0.5)  # other weights: another likeliest set, but not another support
    batch = build_batch([sample], Method.BINARY_RL, trainer.config.loss)
    ids = torch.tensor([sample.tokens.prompt_ids + sample.tokens.response_ids])
    with torch.no_grad():
        logits = trainer.model(input_ids=ids).logits[0, len(sample.tokens.prompt_ids) - 1 : -1].float()
    whole = torch.log_softmax(logits / sampling.temperature, dim=-1)
    ours = chosen_logprobs(whole, batch.targets, batch.kept)
    for row, token in enumerate(sample.tokens.response_ids):
        kept = sample.tokens.kept[row] if sample.tokens.kept is not None else None
        allowed = list(range(VOCABULARY)) if kept is None else list(kept)
        weights = {one: math.exp(float(logits[row, one]) / sampling.temperature) for one in allowed}
        assert float(ours[row]) == pytest.approx(math.log(weights[token] / sum(weights.values())), abs=1e-4)


def test_gradient_does_not_reach_what_was_cut() -> None:
    logits = torch.tensor([[1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0, 4.0]], requires_grad=True)
    kept = torch.tensor([[0, 2, -1], [-1, -1, -1]])
    chosen = chosen_logprobs(torch.log_softmax(logits, -1), torch.tensor([2, 3]), kept)
    chosen[0].backward(retain_graph=True)  # type: ignore[no-untyped-call]
    assert logits.grad is not None
    share = 1 / (1 + math.exp(-2.0))
    assert logits.grad[0].tolist() == pytest.approx([share - 1, 0.0, 1 - share, 0.0], abs=1e-6)
    assert logits.grad[1].tolist() == [0.0] * 4
    alone = float(torch.log_softmax(logits.detach()[1], -1)[3])
    assert chosen.tolist() == pytest.approx([math.log(share), alone], abs=1e-6)


def test_batch_without_truncation_carries_no_sets() -> None:
    trainer = tiny_trainer()
    batch = build_batch([make_sample(trainer, 0), make_sample(trainer, 1)], Method.BINARY_RL, trainer.config.loss)
    assert batch.kept.shape == (8, 0)


def test_sample_needs_its_kept_sets() -> None:
    sample = make_sample(tiny_trainer(), 0)
    with pytest.raises(ValueError, match="need that part"):
        replace(sample, sampling=replace(sample.sampling, top_p=0.9))
