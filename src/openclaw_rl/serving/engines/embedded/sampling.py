"""Drawing one token from logits, with the log-probability of the distribution that it was drawn from. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


class NonFiniteLogits(ArithmeticError):
    """The model gave NaN or infinity: its weights, or the adapter's, are broken."""


MAX_KEPT = 2048
"""Ids of a kept set that are recorded, 4 bytes each in the store. A flatter distribution's set is not told."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Drawn:
    """A token and its log-probability (nats, fp32); `kept`: the ids it was drawn from, None for all or too many."""

    token: int
    logprob: float
    kept: tuple[int, ...] | None = None


def log_probabilities(logits: Tensor, temperature: float) -> Tensor:
    """log softmax(logits / temperature) over the last axis, in fp32. Temperature 0 (greedy) counts as 1.

    Raises:
        NonFiniteLogits: some row has no distribution.
    """
    scaled = logits.float() if temperature in (0.0, 1.0) else logits.float() / temperature
    result = torch.log_softmax(scaled, dim=-1)
    if not bool(torch.isfinite(result.amax(dim=-1)).all()):
        raise NonFiniteLogits("the model's logits are not finite")
    return result


def draw(logits: Tensor, *, temperature: float, top_p: float, generator: torch.Generator, top_k: int = 0) -> Drawn:
    """Draw a token from `logits` [V]; one uniform number of `generator` per token, none when greedy.

    With top_p < 1 the smallest set of likeliest tokens whose probability reaches top_p is kept (Holtzman et al.,
    2020) and renormalised: the log-probability is that of the token in the kept set. With top_k > 0 no more than the
    top_k likeliest are kept, and top_p is a share of theirs.
    """
    logprobs = log_probabilities(logits, temperature)
    if temperature == 0.0:
        token = int(torch.argmax(logprobs))
        return Drawn(token=token, logprob=float(logprobs[token]))
    uniform = torch.rand((), generator=generator, dtype=torch.float64)
    if top_p >= 1.0 and not 0 < top_k < len(logprobs):
        token = _invert(logprobs, uniform)
        return Drawn(token=token, logprob=float(logprobs[token]))
    ordered, tokens = torch.sort(logprobs, descending=True, stable=True)
    if 0 < top_k < len(ordered):
        ordered, tokens = ordered[:top_k], tokens[:top_k]
    reached = torch.cumsum(torch.softmax(ordered.double(), dim=-1), dim=-1)
    kept = int(torch.searchsorted(reached, torch.tensor(top_p, dtype=torch.float64))) + 1
    kept = min(kept, len(ordered))
    renormalised = torch.log_softmax(ordered[:kept], dim=-1)
    place = _invert(renormalised, uniform)
    return Drawn(
        token=int(tokens[place]),
        logprob=float(renormalised[place]),
        kept=tuple(tokens[:kept].tolist()) if kept <= MAX_KEPT else None,
    )


def _invert(logprobs: Tensor, uniform: Tensor) -> int:
    """The place where the cumulative distribution [n] passes `uniform` (inverse transform sampling)."""
    cumulative = torch.cumsum(logprobs.double().exp(), dim=-1)
    place = int(torch.searchsorted(cumulative, uniform * cumulative[-1], right=True))
    return min(place, len(logprobs) - 1)
