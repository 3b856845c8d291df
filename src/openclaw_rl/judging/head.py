"""A small logistic head over named features: its file, its fit and its verdict.

The file holds the hash of everything the weights were fitted against; a judge that runs with anything else refuses to
start, since wrong weights give confident nonsense.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch

CLASSES = (-1, 0, 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Head:
    """Weights [F, 3] for the classes -1, 0, 1 over F features, and what they were fitted against.

    `against` names each input and its hash; `vocabulary` lists the n-grams among the features, in their order.
    """

    name: str
    against: Mapping[str, str]
    vocabulary: tuple[str, ...]
    weights: tuple[tuple[float, ...], ...]
    fitted: Mapping[str, float]

    @property
    def version(self) -> str:
        """The name with a hash of the content, as stored in each judgement."""
        return f"{self.name}@{digest(self.to_json())}"

    def to_json(self) -> str:
        """The file's text; equal heads give equal text."""
        return json.dumps(asdict(self), ensure_ascii=False, sort_keys=True)

    def probabilities(self, features: torch.Tensor) -> torch.Tensor:
        """Probabilities [N, 3] of -1, 0, 1 from features [N, F]."""
        return torch.softmax(features.double() @ torch.tensor(self.weights, dtype=torch.float64), dim=-1)


def head_from_json(text: str) -> Head:
    """Read a head's file."""
    raw: dict[str, Any] = json.loads(text)
    raw["vocabulary"] = tuple(raw["vocabulary"])
    raw["weights"] = tuple(tuple(row) for row in raw["weights"])
    return Head(**raw)


def digest(text: str | bytes) -> str:
    """Twelve hexadecimal digits of a SHA-256."""
    return hashlib.sha256(text.encode() if isinstance(text, str) else text).hexdigest()[:12]


def fit_weights(features: torch.Tensor, classes: torch.Tensor, *, l2: float) -> torch.Tensor:
    """Fit weights [F, 3] to features [N, F] and class indices [N] by L-BFGS; deterministic.

    Classes are weighted by the inverse root of their frequency, so that a rare one is neither lost nor rules.
    """
    inputs = features.double()
    counts = torch.bincount(classes, minlength=len(CLASSES)).double().clamp(min=1.0)
    balance = (counts.sum() / counts).sqrt()
    weights = torch.zeros(inputs.shape[1], len(CLASSES), dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([weights], max_iter=300, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimiser.zero_grad()
        entropy = torch.nn.functional.cross_entropy(inputs @ weights, classes, weight=balance)
        total = entropy + l2 * weights.square().sum()
        torch.autograd.backward(total)
        return total

    step: Callable[[Callable[[], torch.Tensor]], object] = optimiser.step
    step(loss)
    return weights.detach()
