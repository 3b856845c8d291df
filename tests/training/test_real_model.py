"""One step of the real default model, assembled as the training process assembles it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch

from openclaw_rl.config import Config, LossConfig, TrainingConfig
from openclaw_rl.models import load_tokenizer, resolve_model
from openclaw_rl.serving.engines.rendering import Renderer
from openclaw_rl.training.loop import load_trainer
from openclaw_rl.training.trainer import Trainer
from openclaw_rl.types import FinishReason, Sample, SamplingParams, TokenRecord
from tests.training.support import logprobs_of, with_logprobs

ANSWERS = [
    ("What is a tide?", "A tide is the rise and fall of the sea, caused by the pull of the moon.", 1.0, None),
    ("What is a comet?", "Comets: 1. ice 2. dust 3. rock, and many other things to say at length.", -1.0, None),
    (
        "What is salt?",
        "Salt is a mineral that people use to season their food.",
        None,
        "Answer in French.",
    ),
    (
        "What is rust?",
        "Rust is a poem about the sea and the sky and the sea.",
        -1.0,
        "Stay on the topic.",
    ),
]


@pytest.mark.real_model
def test_one_step_moves_smollm2_the_right_way(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak counts from here on
    held = resident_mib("VmRSS")
    config = Config(run_dir=tmp_path, training=TrainingConfig(loss=LossConfig(baseline="none")))
    trainer = load_trainer(config)
    path = resolve_model(config.model)
    tokenizer, renderer = load_tokenizer(path), Renderer(load_tokenizer(path))
    samples = [recorded(trainer, renderer, tokenizer, number) for number in range(len(ANSWERS))]
    before = [logprobs_of(trainer, sample).sum() for sample in samples]
    outcome = trainer.step(samples)
    assert outcome.refused is None
    assert outcome.metrics["logprob_gap"] < 1e-3
    assert outcome.metrics["kl"] == pytest.approx(0.0, abs=1e-5)
    change = [float(logprobs_of(trainer, s).sum() - b) for s, b in zip(samples, before, strict=True)]
    assert change[0] > 0.1
    assert change[1] < -0.1
    assert change[3] < -0.1
    assert resident_mib("VmHWM") - held < 2560  # what it took at most, beside what the tests before it left


def resident_mib(what: str) -> float:
    """`VmRSS`: what this process has in memory; `VmHWM`: the most that it had."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return next(float(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith(what))


def recorded(trainer: Trainer, renderer: Renderer, tokenizer: Any, number: int) -> Sample:
    """A sample as the engine would have recorded it: its log-probabilities are the present policy's."""
    question, answer, reward, hint = ANSWERS[number]
    messages = ({"role": "user", "content": question},)
    ids = (*tokenizer.encode(answer, add_special_tokens=False), tokenizer.eos_token_id)
    sample = Sample(
        turn_id=f"t{number}",
        session_id="s",
        messages=messages,
        tools=(),
        tokens=TokenRecord(
            prompt_ids=renderer.render(messages),
            response_ids=ids,
            logprobs=(-1.0,) * len(ids),
            versions=(0,) * len(ids),
        ),
        sampling=SamplingParams(temperature=0.8, max_tokens=64),
        finish_reason=FinishReason.STOP,
        reward=reward,
        hint=hint,
        created_at=time.time(),
    )
    return with_logprobs(sample, logprobs_of(trainer, sample).tolist())
