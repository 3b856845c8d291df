"""Who reads the hint: the live policy, one frozen version, a moving average of adapters, or another model.

All are read by the one scorer, at the student's response ids and temperature. The first three are the policy's own
model wearing some adapter, so that student and teacher share one set of numerics and no second copy exists. Those
that are models of their own are in `teacher_models`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
from peft import get_peft_model_state_dict, set_peft_model_state_dict
from torch import Tensor

from openclaw_rl.training.batch import TokenSequence
from openclaw_rl.training.scorer import Mode, Scorer
from openclaw_rl.types import BASE_VERSION

Weights = Mapping[str, Tensor]
"""What a policy learned, by name, as checkpoints hold it: an adapter or a whole model."""


class Teacher(Protocol):
    """Reads sequences, and knows what of it has to survive a restart."""

    @property
    def context_length(self) -> int | None:
        """The longest sequence that it can read, where that is not the policy's."""
        ...

    def name(self, version: int) -> str:
        """Who scores while the policy is `version`: a version's name, or what stands for one."""
        ...

    def read(
        self, sequences: Sequence[TokenSequence], *, length: int, max_tokens: int, progress: Callable[[], None]
    ) -> Tensor:
        """Hidden states, without gradients, as a flat row [length, H]; 0 where no sequence lies."""
        ...

    def log_distribution(self, hidden: Tensor, temperature: Tensor) -> Tensor:
        """Its hidden states [n, H] as log-probabilities [n, V] at `temperature` [n]."""
        ...

    def follow(self, adapter: Weights) -> None:
        """The policy took a step and has these weights now."""
        ...

    def state(self) -> dict[str, Tensor] | None:
        """What has to survive a restart, or None."""
        ...

    def restore(self, state: Weights | None, adapter: Weights) -> None:
        """Be what `state` was; without one, begin at the policy's weights `adapter`."""
        ...


TeacherOf = Callable[[Scorer], Teacher]
"""Makes the teacher of a trainer, given the trainer's scorer."""


def version_name(version: int) -> str:
    """The name of a policy version, as `types.PolicyVersion` has it."""
    return "base" if version == BASE_VERSION else f"policy-v{version}"


class LiveTeacher:
    """The policy as it is before the step."""

    mode = Mode.TEACHER
    context_length: int | None = None

    def __init__(self, scorer: Scorer) -> None:
        self._scorer = scorer

    def name(self, version: int) -> str:
        """The policy's own version."""
        return version_name(version)

    def read(
        self, sequences: Sequence[TokenSequence], *, length: int, max_tokens: int, progress: Callable[[], None]
    ) -> Tensor:
        """Hidden states of the policy."""
        return self._scorer.hidden_row(sequences, self.mode, length=length, max_tokens=max_tokens, progress=progress)

    def log_distribution(self, hidden: Tensor, temperature: Tensor) -> Tensor:
        """Through the policy's own head, as it was when the step began."""
        return self._scorer.held_distribution(hidden, temperature)

    def follow(self, adapter: Weights) -> None:
        """It is the policy, and has followed already."""

    def state(self) -> dict[str, Tensor] | None:
        """Nothing beyond the policy's."""
        return None

    def restore(self, state: Weights | None, adapter: Weights) -> None:
        """Nothing beyond the policy's."""


class BaseTeacher(LiveTeacher):
    """The base: the scorer's reference."""

    mode = Mode.REFERENCE

    def name(self, version: int) -> str:
        """Always the base."""
        return version_name(BASE_VERSION)

    def log_distribution(self, hidden: Tensor, temperature: Tensor) -> Tensor:
        """Through the base's head."""
        return self._scorer.reference_distribution(hidden, temperature)


class FrozenTeacher(LiveTeacher):
    """One version of the policy, whatever is trained meanwhile."""

    def __init__(self, scorer: Scorer, *, weights: Weights, version: int) -> None:
        super().__init__(scorer)
        self._weights = dict(weights)
        self._version = version

    def name(self, version: int) -> str:
        """Always that version."""
        return version_name(self._version)

    def read(
        self, sequences: Sequence[TokenSequence], *, length: int, max_tokens: int, progress: Callable[[], None]
    ) -> Tensor:
        """Hidden states of that version; the policy's own adapter is put back whatever happens."""
        with wearing(self._scorer.model, self._weights):
            return super().read(sequences, length=length, max_tokens=max_tokens, progress=progress)


class AverageTeacher(LiveTeacher):
    """An exponential moving average of the policy's adapters: `next = decay · average + (1 - decay) · adapter`.

    The mean teacher (arXiv 1703.01780) on adapters. What is averaged are the factors A and B and not their product,
    which for nearby adapters differs in second order. It begins at the adapter that it first sees.
    """

    def __init__(self, scorer: Scorer, *, decay: float) -> None:
        super().__init__(scorer)
        self._decay = decay
        self._average = _copy(_adapter(scorer.model))

    def name(self, version: int) -> str:
        """The version that it last followed."""
        return f"average-v{version}"

    def read(
        self, sequences: Sequence[TokenSequence], *, length: int, max_tokens: int, progress: Callable[[], None]
    ) -> Tensor:
        """Hidden states of the average."""
        with wearing(self._scorer.model, self._average):
            return super().read(sequences, length=length, max_tokens=max_tokens, progress=progress)

    def follow(self, adapter: Weights) -> None:
        """Move towards the policy's new adapter."""
        for name, tensor in self._average.items():
            tensor.lerp_(adapter[name].to(tensor), 1.0 - self._decay)

    def state(self) -> dict[str, Tensor] | None:
        """The average, on the CPU."""
        return {name: tensor.cpu().clone() for name, tensor in self._average.items()}

    def restore(self, state: Weights | None, adapter: Weights) -> None:
        """Go on from an average, or begin at the policy's adapter where the checkpoint has none."""
        chosen = adapter if state is None else state
        for name, tensor in self._average.items():
            tensor.copy_(chosen[name])


@contextlib.contextmanager
def wearing(model: Any, weights: Weights) -> Iterator[None]:
    """The PEFT model with the adapter `weights` on; afterwards with its own again, bit for bit.

    Weights are written in place: not while gradients are to be taken through an earlier forward pass.
    """
    own = _copy(_adapter(model))
    set_peft_model_state_dict(model, dict(weights))
    try:
        yield
    finally:
        set_peft_model_state_dict(model, own)


def _adapter(model: Any) -> dict[str, Tensor]:
    adapter: dict[str, Tensor] = get_peft_model_state_dict(model, save_embedding_layers=False)
    return adapter


def _copy(weights: Weights) -> dict[str, Tensor]:
    with torch.no_grad():
        return {name: tensor.detach().clone() for name, tensor in weights.items()}


def vocabulary_difference(own: Mapping[str, int], other: Mapping[str, int]) -> str | None:
    """What makes two vocabularies (token to id) two, in words that name a token; None where they are one."""
    if own == other:
        return None
    if len(own) != len(other):
        sizes = f"{len(other)} tokens, not {len(own)}"
        missing = min((token for token in own if token not in other), key=lambda token: own[token], default=None)
        return f"{sizes}; it has no {missing!r}" if missing is not None else sizes
    token = min((token for token in own if other.get(token) != own[token]), key=lambda token: own[token])
    found = other.get(token)
    return f"it has no {token!r}" if found is None else f"{token!r} is {found} there and {own[token]} here"
