"""Two implementations of one policy, the engine's and the trainer's, say the same right after a publish."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

from openclaw_rl.config import Config, ModelConfig
from openclaw_rl.models import resolve_model
from openclaw_rl.policy_files import weights_of
from openclaw_rl.serving.engines.embedded.service import EmbeddedService
from openclaw_rl.training.batch import TokenSequence
from openclaw_rl.training.checkpoint import save_checkpoint
from openclaw_rl.training.loop import load_trainer
from openclaw_rl.training.scorer import Mode
from openclaw_rl.training.trainer import Trainer
from openclaw_rl.types import FinishReason, PolicyVersion, Sample, SamplingParams, TokenRecord, VersionState
from tests.engines.support import Answer, ask, request, with_service

QUESTIONS = ("What is a tide?", "Name a river.", "What is salt?")


def test_engine_and_trainer_agree_after_a_step(tiny_path: Path, tmp_path: Path) -> None:
    own, base = differences(tiny_path, tmp_path, lr=1e-2)
    assert own < 1e-3
    assert base > 1e-2


@pytest.mark.real_model
def test_engine_and_trainer_agree_after_a_step_of_smollm2(tmp_path: Path) -> None:
    own, base = differences(resolve_model(ModelConfig()), tmp_path, lr=1e-3)
    assert own < 1e-3
    assert base > 1e-2


def test_they_agree_on_a_version_with_full_weights(tiny_path: Path, tmp_path: Path) -> None:
    own, base = differences(tiny_path, tmp_path, lr=1e-3, use_lora=False)
    assert own < 1e-4
    assert base > 1e-2


@pytest.mark.real_model
def test_they_agree_on_full_weights_of_smollm2(tmp_path: Path) -> None:
    own, base = differences(resolve_model(ModelConfig()), tmp_path, lr=2e-5, use_lora=False)
    assert own < 1e-3
    assert base > 1e-2


def differences(model: Path, tmp_path: Path, *, lr: float, use_lora: bool = True) -> tuple[float, float]:
    """The mean distance of the engine's log-probabilities, under a version trained on its own answers, from the
    trainer's of that version and from the base's."""
    torch.set_num_threads(1)
    config = Config.model_validate({
        "run_dir": tmp_path,
        "model": {"path": str(model)},
        "engine": {"threads": 1, "context_length": 512},
        "rollout": {"batch_size": len(QUESTIONS)},
        "training": {
            "lr": lr, "epochs_per_batch": 3, "use_lora": use_lora, "offload_optimizer_state": not use_lora,
        },
    })  # fmt: skip
    trainer = load_trainer(config)

    async def body(service: EmbeddedService) -> list[Answer]:
        first = [await ask(service, request(text, temperature=1.0, seed=3)) for text in QUESTIONS]
        outcome = trainer.step([sample_of(number, answer) for number, answer in enumerate(first)])
        assert outcome.refused is None
        await service.load_version(publishable(trainer, tmp_path))
        return [await ask(service, request(text, version=1, temperature=0.7, seed=4)) for text in QUESTIONS]

    answers = with_service(config, body)
    engine = torch.tensor([logprob for answer in answers for logprob in answer.logprobs])
    own, base = (
        torch.cat([score(trainer, answer, mode) for answer in answers]) for mode in (Mode.STUDENT, Mode.REFERENCE)
    )
    return float((engine - own).abs().mean()), float((engine - base).abs().mean())


def score(trainer: Trainer, answer: Answer, mode: Mode) -> torch.Tensor:
    sequence = TokenSequence(prompt_ids=answer.prompt, response_ids=answer.ids, start=0)
    return trainer.scorer.score(sequence, mode, temperature=0.7).logprobs.detach()


def publishable(trainer: Trainer, root: Path) -> PolicyVersion:
    path = weights_of(save_checkpoint(trainer, root)).directory
    return PolicyVersion(version=1, state=VersionState.CANDIDATE, path=str(path), step=1, created_at=time.time())


def sample_of(number: int, answer: Answer) -> Sample:
    """An answer of the engine as rollout would hand it on, with a reward and every second time a hint."""
    return Sample(
        turn_id=f"t{number}",
        session_id="s",
        messages=({"role": "user", "content": QUESTIONS[number]},),
        tools=(),
        tokens=TokenRecord(
            prompt_ids=answer.prompt, response_ids=answer.ids, logprobs=answer.logprobs, versions=answer.versions
        ),
        sampling=SamplingParams(temperature=1.0, max_tokens=12),
        finish_reason=FinishReason.STOP,
        reward=-1.0 if number % 2 else 1.0,
        hint="Be brief." if number % 2 else None,
        created_at=time.time(),
    )
