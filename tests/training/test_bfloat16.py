"""A policy in bfloat16, which `model.dtype = auto` means on a GPU: every way to a step, and engine beside trainer."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

from openclaw_rl.config import Config
from openclaw_rl.policy_files import ADAPTER_DIR
from openclaw_rl.serving.engines.embedded.adapters import AdapterPool
from openclaw_rl.serving.engines.embedded.cache import SlotPool
from openclaw_rl.serving.engines.embedded.jobs import JobEvent, ScoreJob
from openclaw_rl.serving.engines.embedded.runner import ModelRunner, Piece
from openclaw_rl.serving.engines.protocol import ScoreRequest, ScoreResult
from openclaw_rl.testing.tiny_model import build_tiny_model
from openclaw_rl.training.checkpoint import load_checkpoint, save_checkpoint
from openclaw_rl.training.gatekeeper import KnownAnswer
from openclaw_rl.training.loop import load_trainer
from openclaw_rl.training.scorer import Scorer
from openclaw_rl.training.teacher import LiveTeacher, TeacherOf
from openclaw_rl.training.teacher_models import ModelTeacher
from openclaw_rl.training.trainer import Trainer
from openclaw_rl.types import Method, Sample, SamplingParams
from tests.training.support import (
    SAME,
    logprobs_of,
    make_sample,
    mixed_samples,
    shake,
    teacher_prompt,
    tiny_config,
    tiny_model,
)
from tests.training.test_custom_loss import EXAMPLE
from tests.training.test_reconstructed import reconstructed
from tests.training.test_truncated_support import SAMPLINGS, sampled

BF16, FP32 = torch.bfloat16, torch.float32
SAMPLED = {"opd_top_k": 0}
WIDE = {
    "probes": 1,
    "probe_tokens": 8,
    "max_kl_to_base": 1e9,
    "max_kl_to_last": 1e9,
    "max_repetition": 1.0,
    "max_nats_below_told_base": 1e9,
    "max_nats_below_base": 1e9,
    "max_probe_drop": 1e9,
}
"""The gate reads everything and refuses nothing; little, for bfloat16 is slow on a CPU that has no units for it."""
GAP = 0.05
"""Nats, a mean over tokens: bfloat16 has eight bits of a number, and the tiny policy's logits go to ±10."""


def trainer_in(
    dtype: torch.dtype, loss: dict[str, Any] | None = None, teacher: TeacherOf = LiveTeacher, **values: Any
) -> Trainer:
    """The shaken tiny policy, its base in `dtype`."""
    overlap = values.pop("overlap_top_k", 0)
    trainer = Trainer(
        config=tiny_config(loss, **{"gate": WIDE, "max_grad_norm": 1e9, "lr": 1e-4, **values}),
        model=tiny_model().to(dtype),
        base_path="tiny",
        teacher_prompt=teacher_prompt,
        teacher=teacher,
        overlap_top_k=overlap,
    )
    shake(trainer)
    return trainer


def samples_of(trainer: Trainer) -> list[Sample]:
    """Every signal, a reconstructed sample, and one with two hints; drawn, as they say, in the trainer's own type."""
    told = reconstructed(make_sample(trainer, 8, reward=None, hint="be kind"))
    two = dataclasses.replace(make_sample(trainer, 9, hint="be brief and kind"), alternatives=("hm",))
    return [*mixed_samples(trainer), told, two]


def gradient_of(trainer: Trainer) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in trainer.model.parameters() if p.grad is not None])


def other_model(scorer: Scorer) -> ModelTeacher:
    return ModelTeacher(tiny_model().to(scorer.model.dtype), name="other")


CASES: dict[str, dict[str, Any]] = {
    "combine, top-k": {},
    "combine, sampled token, tis": {"loss": {**SAMPLED, "tis_cap": 2.0}},
    "icepop, top-k, two passes": {"loss": {"icepop_low": 0.5, "icepop_high": 2.0}, "epochs_per_batch": 2},
    "gspo": {"loss": {**SAMPLED, "kind": "gspo"}, "method": Method.BINARY_RL, "epochs_per_batch": 2},
    "accepted retries, forward KL": {"loss": {"w_retry": 0.5, "retry": "forward_kl"}},
    "a loss of one's own": {
        "loss": SAMPLED,
        "epochs_per_batch": 2,
        "custom_loss_function_path": f"{EXAMPLE}:compute_loss",
    },
    "a choice among hints": {"overlap_top_k": 3},
    "another model as teacher": {"teacher": other_model},
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_a_step_goes_where_it_goes_in_float32(case: dict[str, Any]) -> None:
    """The same gradient but for rounding (of the last pass, if there are several), and every reading of the gate."""
    narrow, wide = (trainer_in(dtype, **case) for dtype in (BF16, FP32))
    known = [KnownAnswer(prompt_ids=(3, 4, 5), response_ids=(6, 7))]
    for trainer in (narrow, wide):
        outcome = trainer.step(samples_of(trainer), hints=("hm",), known=known)
        assert outcome.refused is None
        assert all(math.isfinite(value) for value in outcome.metrics.values())
        assert {"kl_after", "entropy_after", "probe_drop", "nats_below_told_base"} <= outcome.metrics.keys()
    likeness = torch.nn.functional.cosine_similarity(gradient_of(narrow), gradient_of(wide), dim=0)
    assert float(likeness) > 0.98


def test_only_the_frozen_base_is_in_bfloat16(tmp_path: Path) -> None:
    """What learns, its moments and its checkpoints are float32: a step's change is far below bfloat16's rounding."""
    trainer = trainer_in(BF16)
    samples = mixed_samples(trainer)
    assert trainer.step(samples).refused is None
    learning = {p.dtype for p in trainer.model.parameters() if p.requires_grad}
    frozen = {p.dtype for p in trainer.model.parameters() if not p.requires_grad}
    assert (learning, frozen) == ({FP32}, {BF16})
    held = load_checkpoint(save_checkpoint(trainer, tmp_path))
    kept = [leaf for leaf in tree_leaves([held.weights, held.optimizer]) if isinstance(leaf, torch.Tensor)]
    assert {tensor.dtype for tensor in kept} == {FP32}
    resumed = trainer_in(BF16)
    resumed.restore(held)
    went_on, again = (one.step(samples).metrics for one in (trainer, resumed))
    assert went_on == again


def test_the_process_s_own_trainer_takes_a_step(tmp_path: Path) -> None:
    """From the configuration on, as the training process makes it."""
    path = build_tiny_model(tmp_path / "model")
    trainer = load_trainer(
        Config.model_validate(
            {
                "run_dir": tmp_path,
                "model": {"path": str(path), "dtype": "bfloat16", "device": "cpu"},
                "training": {"gate": WIDE},
            }
        )
    )
    assert trainer.model.dtype is BF16
    samples = [make_sample(trainer, number, hint="Be brief.", reward=1.0) for number in range(2)]
    assert trainer.step(samples, hints=("Be brief.",)).refused is None


def test_a_teacher_without_a_hint_is_the_student() -> None:
    """In every bit: both are read in one type, whether their rows were kept or not."""
    for loss in ({**SAMPLED, "kl_coef": 0.0}, {"kl_coef": 0.0}):
        trainer = trainer_in(BF16, loss, method=Method.OPD)
        samples = [make_sample(trainer, i, reward=None, hint=SAME, temperature=0.7) for i in range(3)]
        metrics = trainer.step(samples).metrics
        assert metrics["loss"] == pytest.approx(0.0, abs=1e-3)
        assert metrics["grad_norm"] == pytest.approx(0.0, abs=1e-2)


@SAMPLINGS
def test_what_the_engine_s_own_draw_records_is_what_the_trainer_finds(sampling: SamplingParams) -> None:
    trainer = trainer_in(BF16, method=Method.BINARY_RL)
    outcome = trainer.step([sampled(trainer, sampling, number=number) for number in range(4)])
    assert outcome.metrics["logprob_gap"] < GAP
    assert outcome.metrics["ratio_mean"] == pytest.approx(1.0, abs=GAP)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_a_temperature_is_not_rounded(temperature: float) -> None:
    """0.7 is 0.69922 in bfloat16, which would sharpen every distribution by a thousandth."""
    trainer = trainer_in(BF16)
    hidden = torch.randn(200, 32, generator=torch.Generator().manual_seed(1)).to(BF16)
    warmth = torch.full((200,), temperature)
    head = trainer.model.get_base_model().get_output_embeddings().weight
    exact = torch.log_softmax(hidden.float() @ head.float().T / temperature, dim=-1)
    found = trainer.scorer.held_distribution(hidden.float(), warmth)
    sharper = float((exact * (found - exact)).mean() / exact.square().mean())
    assert abs(sharper) < 2e-4
    assert torch.equal(found, trainer.scorer.held_distribution(hidden, warmth))


def engine_logprobs(model: Any, adapter: Path, sample: Sample) -> list[float]:
    """What the embedded engine says of a sample's tokens, from its own forward passes under that adapter."""
    pool, said = AdapterPool(model, 2), list[JobEvent]()
    pool.load(1, adapter)
    runner = ModelRunner(model, pool)
    tokens = sample.tokens
    ids, start = tokens.prompt_ids + tokens.response_ids, len(tokens.prompt_ids)
    job = ScoreJob(
        ScoreRequest(ids=ids, start=start, version=1, temperature=sample.sampling.temperature), sink=said.append
    )
    job.slot = SlotPool(runner.shape, 1).take(job.tokens, job.version, job.reusable)
    (logits,) = runner.forward(
        [Piece(slot=job.slot, version=1, tokens=job.tokens, wanted=job.wanted(len(job.tokens)))]
    )
    job.take(logits)
    (result,) = said
    assert isinstance(result, ScoreResult)
    return list(result.logprobs)


@pytest.mark.parametrize(("dtype", "gap"), [(FP32, 2e-5), (BF16, GAP)])
def test_the_embedded_engine_serves_the_policy_that_was_trained(
    tmp_path: Path, dtype: torch.dtype, gap: float
) -> None:
    trainer = trainer_in(dtype)
    adapter = save_checkpoint(trainer, tmp_path) / ADAPTER_DIR
    gaps: list[float] = []
    for number, temperature in enumerate([0.7, 1.0, 1.3]):
        sample = make_sample(trainer, number, response=12, temperature=temperature)
        theirs = engine_logprobs(tiny_model().to(dtype), adapter, sample)
        gaps += (logprobs_of(trainer, sample) - torch.tensor(theirs)).abs().tolist()
    assert sum(gaps) / len(gaps) < gap
