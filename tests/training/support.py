"""A tiny random policy and samples drawn from it, for tests of the trainer."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from openclaw_rl.config import LoraConfig, LossConfig, TrainingConfig
from openclaw_rl.store import Store
from openclaw_rl.training.batch import TokenSequence
from openclaw_rl.training.scorer import Mode
from openclaw_rl.training.teacher import LiveTeacher, TeacherOf
from openclaw_rl.training.trainer import Trainer
from openclaw_rl.types import (
    FinishReason,
    RetryDemonstration,
    Sample,
    SamplingParams,
    TokenRecord,
    Turn,
)
from tests.builders import Conversation, make_judgement

VOCABULARY = 61
SAME = "same"
"""The hint that changes nothing: the teacher reads the sample's own prompt."""


def tiny_model() -> Any:
    """Two random layers, always the same, in evaluation mode."""
    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.3,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config).eval()


def teacher_prompt(sample: Sample) -> tuple[int, ...]:
    """The prompt with the hint's letters after it; `SAME` adds nothing."""
    assert sample.hint is not None
    letters = () if sample.hint == SAME else tuple(ord(letter) % VOCABULARY for letter in sample.hint)
    return sample.tokens.prompt_ids + letters


def tiny_config(loss: dict[str, Any] | None = None, **values: Any) -> TrainingConfig:
    """A configuration for the tiny policy, with these values changed."""
    defaults: dict[str, Any] = {
        "lora": LoraConfig(rank=4, alpha=8.0) if values.get("use_lora", True) else LoraConfig(),
        "lr": 1e-2,
        "loss": LossConfig(**(loss or {})),
        "niceness": 0,
        "gate": {"probes": 0},  # a random policy has no language: what is read of it is for tests of the gate
    }
    return TrainingConfig(**{**defaults, **values})


def tiny_trainer(
    loss: dict[str, Any] | None = None,
    *,
    shaken: bool = False,
    full_batch: int | None = None,
    offload_to: Path | None = None,
    teacher: TeacherOf = LiveTeacher,
    **values: Any,
) -> Trainer:
    """A trainer of the tiny policy; `shaken`: it is not the base any more."""
    config = tiny_config(loss, **values)
    trainer = Trainer(
        config=config,
        model=tiny_model(),
        reference=None if config.use_lora else tiny_model(),
        base_path="tiny",
        teacher_prompt=teacher_prompt,
        full_batch=full_batch,
        offload_to=offload_to,
        teacher=teacher,
    )
    if shaken:
        shake(trainer)
    return trainer


def shake(trainer: Trainer, scale: float = 0.2) -> None:
    """Move what learns away from the base, always the same way."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in trainer.model.parameters():
            if parameter.requires_grad:
                parameter.add_(scale * torch.randn(parameter.shape, generator=generator))


def logprobs_of(trainer: Trainer, sample: Sample, mode: Mode = Mode.STUDENT) -> torch.Tensor:
    """What the trainer says of a sample's own tokens, at its own temperature: [R]."""
    tokens = sample.tokens
    sequence = TokenSequence(prompt_ids=tokens.prompt_ids, response_ids=tokens.response_ids, start=0)
    return trainer.scorer.score(sequence, mode, temperature=sample.sampling.temperature).logprobs.detach()


def make_sample(
    trainer: Trainer,
    number: int,
    *,
    reward: float | None = 1.0,
    hint: str | None = None,
    retry: tuple[int, ...] | None = None,
    prompt: int = 5,
    response: int = 4,
    temperature: float = 1.0,
) -> Sample:
    """Sample `number`, with random tokens and the log-probabilities that the trainer's policy gives them now."""
    generator = torch.Generator().manual_seed(100 + number)
    ids = torch.randint(1, VOCABULARY, (prompt + response,), generator=generator).tolist()
    tokens = TokenRecord(
        prompt_ids=tuple(ids[:prompt]),
        response_ids=tuple(ids[prompt:]),
        logprobs=(-1.0,) * response,
        versions=(trainer.step_number,) * response,
    )
    sample = Sample(
        turn_id=f"t{number}",
        session_id="s",
        messages=({"role": "user", "content": "x"},),
        tools=(),
        tokens=tokens,
        sampling=SamplingParams(temperature=temperature, max_tokens=response),
        finish_reason=FinishReason.STOP,
        reward=reward,
        hint=hint,
        retry=None if retry is None else demonstration(number, retry),
        created_at=time.time(),
    )
    return with_logprobs(sample, logprobs_of(trainer, sample).tolist())


def demonstration(number: int, response: tuple[int, ...]) -> RetryDemonstration:
    """An accepted second try at a first prompt that is nobody else's."""
    return RetryDemonstration(
        turn_id=f"t{number}", response_ids=response, prompt_turn_id=f"first{number}", prompt_ids=(4, 5, number + 1)
    )


def with_logprobs(sample: Sample, logprobs: list[float]) -> Sample:
    """The sample with other log-probabilities of the engine."""
    tokens = dataclasses.replace(sample.tokens, logprobs=tuple(logprobs))
    return dataclasses.replace(sample, tokens=tokens)


def mixed_samples(trainer: Trainer) -> list[Sample]:
    """Six samples with every combination of signals, of different lengths and temperatures."""
    return [
        make_sample(trainer, 0, reward=1.0, prompt=9, response=6),
        make_sample(trainer, 1, reward=-1.0, hint="be brief", prompt=4, response=3),
        make_sample(trainer, 2, reward=None, hint="be kind", prompt=12, response=8, temperature=0.7),
        make_sample(trainer, 3, reward=0.5, hint="hm", prompt=5, response=1),
        make_sample(trainer, 4, reward=-1.0, prompt=7, response=5, retry=(3, 9, 27)),
        make_sample(trainer, 5, reward=None, retry=(8, 2), prompt=6, response=4),
    ]


def into_store(store: Store, sample: Sample) -> None:
    """Write a sample as the loops before training would: its request, its turn, its judgement, its row."""
    conversation = Conversation(store)
    turn: Turn = conversation.turn(sample.turn_id, tokens=sample.tokens)
    store.turns.move(turn.turn_id, turn.state.__class__.AWAITING_NEXT_STATE)
    store.turns.set_next_state(turn.turn_id, "next", [{"role": "user", "content": "no"}])
    store.turns.record_judgement(make_judgement(turn.turn_id, sample.reward or 0.0, sample.hint))
    store.samples.add(sample)
