"""Who takes the step: this project's trainer, and the limit. (TRL is in `training_trl`.)

Each side is built from the same samples and the same weights, and `step()` goes from them to the optimiser's step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor

from openclaw_rl.config import LossConfig, ModelConfig, TrainingConfig
from openclaw_rl.models import load_causal_lm, resolve_model
from openclaw_rl.training.batch import build_batch
from openclaw_rl.training.meter import Meter
from openclaw_rl.training.packing import plan_packs
from openclaw_rl.training.reference import reference_loss
from openclaw_rl.training.scorer import Mode
from openclaw_rl.training.trainer import Trainer
from openclaw_rl.types import Method, Sample

DENSE_ROW = 256
"""Tokens that the limit reads at once; on this machine neither more nor fewer are faster."""


class Side(Protocol):
    """One way to take the step."""

    def step(self) -> None:
        """From the samples' tensors to the optimiser's step."""

    def gradient(self) -> Tensor:
        """All parameters' gradients of the last step, after clipping, one vector in the order of the model's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """What a side is given. `full`: all weights learn, and there is no adapter."""

    samples: tuple[Sample, ...]
    model_path: str
    full: bool


def training_config(*, full: bool = False) -> TrainingConfig:
    """The defaults, KL, teacher and baseline off, and no clipping of the norm: it would hide a wrong scale."""
    loss = LossConfig(kl_coef=0.0, w_opd=0.0, baseline="none")
    return TrainingConfig(method=Method.BINARY_RL, loss=loss, max_grad_norm=1e9, use_lora=not full)


def load(task: Task) -> Any:
    """The model, always the same. With an adapter that is not the identity, so that all of it has gradients."""
    return load_causal_lm(resolve_model(ModelConfig(path=task.model_path)))


def shake(model: Any) -> Any:
    """Give the adapter small random weights, the same for every side."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            if "lora_" in name:
                parameter.copy_(0.02 * torch.randn(parameter.shape, generator=generator))
    return model


def peft_config() -> LoraConfig:
    """The adapter of `training_config`, for the sides that make it themselves."""
    lora = training_config().lora
    modules = list(lora.target_modules)
    return LoraConfig(r=lora.rank, lora_alpha=lora.alpha, target_modules=modules, task_type="CAUSAL_LM")


def gradient_of(model: Any) -> Tensor:
    """The gradients of a model, in the order of their names, as one vector."""
    named = sorted((name, p.grad) for name, p in model.named_parameters() if p.grad is not None)
    return torch.cat([grad.flatten() for _, grad in named])


class Optimiser:
    """Clip and step, as the trainer does."""

    def __init__(self, model: Any) -> None:
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        config = training_config()
        self._adam = torch.optim.AdamW(
            self._parameters, lr=config.lr, betas=(config.adam_beta1, config.adam_beta2), weight_decay=0.0
        )

    def clear(self) -> None:
        """Forget the last step's gradients."""
        self._adam.zero_grad(set_to_none=True)

    def step(self) -> None:
        """One update."""
        torch.nn.utils.clip_grad_norm_(self._parameters, training_config().max_grad_norm)
        self._adam.step()


class Ours:
    """`Trainer.update`; with full weights its frozen reference is in memory too, as it is in service."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self.trainer = Trainer(
            config=training_config(full=task.full),
            model=load(task),
            reference=load(task) if task.full else None,
            base_path=task.model_path,
            teacher_prompt=lambda _: (),
        )
        shake(self.trainer.model)

    def step(self) -> None:
        """From the samples to the optimiser's step."""
        batch = build_batch(self._task.samples, Method.BINARY_RL, training_config().loss)
        self.trainer.update(batch, Meter())

    def gradient(self) -> Tensor:
        """Of the last step."""
        return gradient_of(self.trainer.model)


class Plain:
    """The gradient by the specification, `training.reference`, one sample at a time: whole logits are large."""

    def __init__(self, task: Task) -> None:
        self._samples = task.samples
        self._model = shake(get_peft_model(load(task), peft_config()))
        self._optimiser = Optimiser(self._model)

    def step(self) -> None:
        """The mean of the samples' losses, and the optimiser's step."""
        self._optimiser.clear()
        for sample in self._samples:
            terms = reference_loss([sample], self._model, training_config(), lambda _: (), {})
            loss = terms["loss"] / len(self._samples)
            loss.backward()  # type: ignore[no-untyped-call]
        self._optimiser.step()

    def gradient(self) -> Tensor:
        """Of the last step."""
        return gradient_of(self._model)


class Limit:
    """Transformers' forward and backward over the tokens that must be read, densely, and nothing else.

    The tokens lie end to end in rows of at most 256; a sample that is longer, or a session, is a row of its own, for
    its attention is not to be saved. Attention is plainly causal over a row, whoever its tokens belong to: this is a
    measure of cost, and its gradient means nothing unless a row holds one sample. The head reads response positions
    alone.
    """

    def __init__(self, task: Task) -> None:
        model = load(task)
        if not task.full:
            model = shake(get_peft_model(model, peft_config()))
        self.model = model.train()
        causal = model if task.full else model.get_base_model()
        self._trunk, self._head = causal.get_decoder(), causal.get_output_embeddings()
        self._optimiser = Optimiser(model)
        self._rows = dense_rows(task)
        self._tokens = sum(len(row.positions) for row in self._rows)

    def step(self) -> None:
        """Forward and backward row by row, and the optimiser's step."""
        self._optimiser.clear()
        for row in self._rows:
            states = self._trunk(input_ids=row.ids, use_cache=False).last_hidden_state[0]
            logprobs = torch.log_softmax(self._head(states[row.positions]), dim=-1)
            chosen = logprobs.gather(-1, row.targets.unsqueeze(-1)).squeeze(-1)
            ratio = (chosen - row.old).exp()
            terms = torch.minimum(ratio * row.advantage, ratio.clamp(0.8, 1.28) * row.advantage)
            loss = -terms.sum() / self._tokens
            loss.backward()  # type: ignore[no-untyped-call]
        self._optimiser.step()

    def gradient(self) -> Tensor:
        """Of the last step; of no meaning where rows hold several samples."""
        return gradient_of(self.model)


@dataclass(frozen=True, kw_only=True, slots=True)
class DenseRow:
    """`ids` [1, T]; of its n response tokens, `positions` (where predicted), `targets`, `old`, `advantage` [n]."""

    ids: Tensor
    positions: Tensor
    targets: Tensor
    old: Tensor
    advantage: Tensor


def dense_rows(task: Task) -> list[DenseRow]:
    """All tokens that must be read, once each, as `Limit` reads them."""
    batch = build_batch(task.samples, Method.BINARY_RL, LossConfig(baseline="none"))
    dense = []
    for pack in plan_packs(batch.sequences, DENSE_ROW):
        dense.append(
            DenseRow(
                ids=pack.input_ids,
                positions=pack.positions,
                targets=batch.targets[pack.flat],
                old=batch.old[pack.flat],
                advantage=batch.rewards[pack.flat],
            )
        )
    return dense


def old_logprobs(task: Task) -> list[list[float]]:
    """What the shaken policy says of its samples' tokens: per sample [R]."""
    ours = Ours(task)
    scorer = ours.trainer.scorer
    batch = build_batch(task.samples, Method.BINARY_RL, training_config().loss)
    found = torch.zeros(len(batch.targets))
    for pack in scorer.plan(batch.sequences, DENSE_ROW):
        with torch.no_grad():
            hidden = scorer.hidden(pack, Mode.TEACHER)
            for piece in torch.split(torch.arange(len(pack.flat)), 64):
                flat = pack.flat[piece]
                logprobs = scorer.log_distribution(hidden[piece], batch.temperature[flat])
                found[flat] = logprobs.gather(-1, batch.targets[flat].unsqueeze(-1)).squeeze(-1)
    return [found[begin:end].tolist() for begin, end in zip(batch.starts, batch.starts[1:], strict=False)]
