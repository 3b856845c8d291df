"""Teachers that are models of their own, beside the policy: another model, or (without LoRA) other weights of it.

Each is a further copy in memory, read by a scorer of its own.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from openclaw_rl.training.batch import TokenSequence
from openclaw_rl.training.scorer import Mode, Scorer
from openclaw_rl.training.teacher import Weights, version_name


class ModelTeacher:
    """Another model with the policy's vocabulary, read by a scorer of its own."""

    def __init__(self, model: Any, *, name: str) -> None:
        """`model`: a causal LM; `name`: what records call it."""
        self._scorer = Scorer(model.requires_grad_(False))
        self._name = name
        self.head_size = self._scorer.head_size
        self.context_length: int | None = int(model.config.max_position_embeddings)

    def name(self, version: int) -> str:
        """The model's name, whatever the policy is."""
        return f"model:{self._name}"

    def read(
        self, sequences: Sequence[TokenSequence], *, length: int, max_tokens: int, progress: Callable[[], None]
    ) -> Tensor:
        """Hidden states of that model, of its own width."""
        return self._scorer.hidden_row(
            sequences, Mode.TEACHER, length=length, max_tokens=max_tokens, progress=progress
        )

    def log_distribution(self, hidden: Tensor, temperature: Tensor) -> Tensor:
        """Through that model's own head."""
        return self._scorer.log_distribution(hidden, temperature)

    def follow(self, adapter: Weights) -> None:
        """It follows nobody."""

    def state(self) -> dict[str, Tensor] | None:
        """Its weights lie elsewhere."""
        return None

    def restore(self, state: Weights | None, adapter: Weights) -> None:
        """Nothing changed."""


class FrozenModelTeacher(ModelTeacher):
    """One version of a policy all of whose weights learn."""

    def __init__(self, model: Any, *, version: int) -> None:
        """`model`: that version's."""
        super().__init__(model, name=version_name(version))

    def name(self, version: int) -> str:
        """Always that version."""
        return self._name


class AverageModelTeacher(ModelTeacher):
    """An exponential moving average of all weights: `next = decay · average + (1 - decay) · weights`.

    The mean teacher (arXiv 1703.01780). It begins at the weights that it first sees.
    """

    def __init__(self, policy: Any, *, decay: float) -> None:
        """`policy`: the model that learns, which is copied."""
        average = copy.deepcopy(policy)
        super().__init__(average, name="average")
        self._decay = decay
        self._average = dict(average.named_parameters())

    def name(self, version: int) -> str:
        """The version that it last followed."""
        return f"average-v{version}"

    def follow(self, adapter: Weights) -> None:
        """Move towards the policy's new weights."""
        with torch.no_grad():
            for name, tensor in self._average.items():
                tensor.lerp_(adapter[name].to(tensor), 1.0 - self._decay)

    def state(self) -> dict[str, Tensor] | None:
        """The average, on the CPU."""
        return {name: tensor.detach().to("cpu", copy=True) for name, tensor in self._average.items()}

    def restore(self, state: Weights | None, adapter: Weights) -> None:
        """Go on from an average, or begin at the policy's weights where the checkpoint has none."""
        chosen = adapter if state is None else state
        with torch.no_grad():
            for name, tensor in self._average.items():
                tensor.copy_(chosen[name])
