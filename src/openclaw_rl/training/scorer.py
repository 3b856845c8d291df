"""The one scorer: student, teacher and reference are one model, read three ways, with one set of numerics.

The student is the adapter with gradients, the teacher the same adapter reading the hint, the reference the adapter
switched off. No second copy of the model exists. The scorer stops at the *hidden states* that predict response
tokens ([R, H]: small enough to keep for a whole step) and turns them into distributions over the vocabulary ([R, V]:
large) only a piece at a time, when and where somebody needs one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor, nn

from openclaw_rl.config_sources import ConfigError
from openclaw_rl.training.batch import MicroBatch, TokenSequence, plan_micro_batches


class Mode(StrEnum):
    """Who reads. STUDENT keeps gradients; TEACHER is the live adapter, under whatever prompt it is given."""

    STUDENT = "student"
    TEACHER = "teacher"
    REFERENCE = "reference"


@dataclass(frozen=True, kw_only=True, slots=True)
class Scores:
    """What one response looks like to a mode; R response tokens, nats.

    `logprobs` [R] of its own tokens; `top_ids`, `top_logprobs` [R, k] where a top-k was asked for; `distribution`
    [R, V] where it was asked for.
    """

    logprobs: Tensor
    top_ids: Tensor | None = None
    top_logprobs: Tensor | None = None
    distribution: Tensor | None = None


def _nothing() -> None:
    """The progress callback of whoever does not want one."""


class Scorer:
    """Scores with a PEFT model whose output head no adapter touches.

    Raises:
        ConfigError: where the model does something between its last hidden state and its logits that the scorer would
            miss (soft-capping, scaling, an adapter on the head). Checked once, on a tiny input.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        causal = model.get_base_model()
        self._trunk: nn.Module = causal.get_decoder()
        self._head: nn.Module = causal.get_output_embeddings()
        self._width = int(causal.config.hidden_size)
        self.device: torch.device = causal.device
        self._check_head()

    def hidden(self, micro: MicroBatch, mode: Mode) -> Tensor:
        """The hidden states that predict a micro-batch's response tokens: [R, H], in the order of `micro.flat`."""
        adapter = self.model.disable_adapter() if mode is Mode.REFERENCE else contextlib.nullcontext()
        self.model.train(mode is Mode.STUDENT)
        with adapter, torch.set_grad_enabled(mode is Mode.STUDENT):
            states: Tensor = self._trunk(input_ids=micro.input_ids, use_cache=False).last_hidden_state
            return states[micro.rows, micro.columns]

    def log_distribution(self, hidden: Tensor, temperature: Tensor) -> Tensor:
        """Log-probabilities over the vocabulary, [R, V] float32, at `temperature` [R]; gradients follow `hidden`.

        The head is linear, so dividing what goes in is dividing what comes out, a hundred times cheaper.
        """
        warm = hidden / temperature.unsqueeze(-1).to(hidden.dtype)
        return torch.log_softmax(self._head(warm).float(), dim=-1)

    def hidden_row(
        self,
        sequences: Sequence[TokenSequence],
        mode: Mode,
        *,
        length: int,
        max_tokens: int,
        progress: Callable[[], None] = _nothing,
    ) -> Tensor:
        """Hidden states of all sequences, without gradients, as a flat row [length, H]; 0 where no sequence lies."""
        row = torch.zeros(length, self._width, device=self.device)
        for micro in plan_micro_batches(sequences, max_tokens, self.device):
            with torch.no_grad():
                row[micro.flat] = self.hidden(micro, mode).float()
            progress()
        return row

    def score(
        self,
        sequence: TokenSequence,
        mode: Mode,
        *,
        temperature: float = 1.0,
        top_k: int = 0,
        full: bool = False,
    ) -> Scores:
        """Score one sequence; the result is on the CPU.

        For a step over many, use `hidden` and `log_distribution` piece by piece.
        """
        (micro,) = plan_micro_batches([sequence], len(sequence), self.device)
        with torch.set_grad_enabled(mode is Mode.STUDENT):
            hidden = self.hidden(micro, mode)
            warmth = torch.full((hidden.shape[0],), temperature, device=self.device)
            distribution = self.log_distribution(hidden, warmth).cpu()
            targets = torch.tensor(sequence.response_ids)
            top = distribution.topk(top_k, dim=-1) if top_k else None
            return Scores(
                logprobs=distribution.gather(-1, targets.unsqueeze(-1)).squeeze(-1),
                top_ids=None if top is None else top.indices,
                top_logprobs=None if top is None else top.values,
                distribution=distribution if full else None,
            )

    def _check_head(self) -> None:
        self.model.eval()
        with torch.no_grad():
            ids = torch.tensor([[1, 2, 3]], device=self.device)
            whole = self.model(input_ids=ids, use_cache=False).logits
            ours = self._head(self._trunk(input_ids=ids, use_cache=False).last_hidden_state)
        if not torch.allclose(whole, ours, atol=1e-4):
            raise ConfigError(
                "this model changes its logits after the output head, which the trainer does not follow"
            )
        if getattr(self._head, "bias", None) is not None:
            raise ConfigError("an output head with a bias is not supported: temperature would not scale it")
        if any("lora" in name for name, _ in self._head.named_parameters()):
            raise ConfigError("an adapter on the output head is not supported: leave it out of lora.target_modules")
