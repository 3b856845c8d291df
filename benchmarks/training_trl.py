"""TRL's GRPO loss on the same samples: a real `GRPOTrainer`, whose own `compute_loss` is asked, batch by batch.

Its generation is not used: what it would make of its rollouts (padded prompts on the left, completions on the right,
masks, advantages, old log-probabilities) is made here of the samples.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from benchmarks.training_sides import Optimiser, Task, gradient_of, load, peft_config, shake, training_config
from openclaw_rl.config import ModelConfig
from openclaw_rl.models import load_tokenizer, resolve_model
from openclaw_rl.types import Sample


class Trl:
    """Micro-batches of `rows` samples, sorted by length; `rows` 0: a session as one row with a tool mask."""

    def __init__(self, task: Task, rows: int) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._trainer = _grpo_trainer(task, self._folder.name)
        self._trainer.model.train()
        self._optimiser = Optimiser(self._trainer.model)
        ordered = sorted(task.samples, key=lambda sample: len(_ids(sample)), reverse=True)
        if rows:
            groups = [ordered[i : i + rows] for i in range(0, len(ordered), rows)]
            self._batches = [_padded(group) for group in groups]
        else:
            self._batches = [_one_row(task.samples)]
        self._trainer.current_gradient_accumulation_steps = len(self._batches)

    def step(self) -> None:
        """TRL's loss and gradients, micro-batch by micro-batch, and the optimiser's step."""
        self._optimiser.clear()
        for inputs in self._batches:
            loss = self._trainer.compute_loss(self._trainer.model, inputs)
            self._trainer.accelerator.backward(loss)
        self._optimiser.step()

    def gradient(self) -> Tensor:
        """Of the last step."""
        return gradient_of(self._trainer.model)


def version() -> str:
    """Of the installed TRL.

    Raises:
        ModuleNotFoundError: there is none.
    """
    import trl

    return str(trl.__version__)


def _grpo_trainer(task: Task, folder: str) -> Any:
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    loss = training_config().loss
    arguments = GRPOConfig(
        output_dir=folder,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        per_device_train_batch_size=2,
        num_generations=2,
        beta=0.0,
        loss_type="grpo",
        epsilon=loss.clip_low,
        epsilon_high=loss.clip_high,
        temperature=1.0,
        report_to=[],
    )
    trainer = GRPOTrainer(
        model=load(task),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=arguments,
        train_dataset=Dataset.from_list([{"prompt": "a"}] * 4),
        processing_class=load_tokenizer(resolve_model(ModelConfig(path=task.model_path))),
        peft_config=None if task.full else peft_config(),
    )
    shake(trainer.model)
    return trainer


def _ids(sample: Sample) -> tuple[int, ...]:
    return sample.tokens.prompt_ids + sample.tokens.response_ids


def _padded(samples: Sequence[Sample]) -> dict[str, Tensor]:
    """Prompts padded on the left, completions on the right."""
    prompts = [sample.tokens.prompt_ids for sample in samples]
    answers = [sample.tokens.response_ids for sample in samples]
    left, right = max(map(len, prompts)), max(map(len, answers))
    return {
        "prompt_ids": torch.tensor([[0] * (left - len(ids)) + list(ids) for ids in prompts]),
        "prompt_mask": torch.tensor([[0] * (left - len(ids)) + [1] * len(ids) for ids in prompts]),
        "completion_ids": torch.tensor([[*ids, *[0] * (right - len(ids))] for ids in answers]),
        "completion_mask": torch.tensor([[1] * len(ids) + [0] * (right - len(ids)) for ids in answers]),
        "advantages": torch.tensor([sample.reward for sample in samples]),
        "old_per_token_logps": torch.tensor(
            [[*sample.logprobs, *[0.0] * (right - len(sample.logprobs))] for sample in samples]
        ),
    }


def _one_row(samples: Sequence[Sample]) -> dict[str, Tensor]:
    """A session as TRL's agents are trained: the first prompt, then all else, what tools said masked out."""
    first, whole = samples[0].tokens.prompt_ids, _ids(samples[-1])
    completion = whole[len(first) :]
    spoken, old, advantages = (torch.zeros(1, len(completion)) for _ in range(3))
    for sample in samples:
        place = len(sample.tokens.prompt_ids) - len(first)
        response = slice(place, place + len(sample.tokens.response_ids))
        spoken[0, response] = 1
        old[0, response] = torch.tensor(sample.logprobs)
        advantages[0, response] = float(sample.reward or 0.0)
    return {
        "prompt_ids": torch.tensor([first]),
        "prompt_mask": torch.ones(1, len(first), dtype=torch.long),
        "completion_ids": torch.tensor([completion]),
        "completion_mask": torch.ones(1, len(completion), dtype=torch.long),
        "tool_mask": spoken.long(),
        "advantages": advantages,
        "old_per_token_logps": old,
    }
