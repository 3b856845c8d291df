"""Drawing a token from each row of logits, with the log-probability of the distribution it was drawn from. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from openclaw_rl.types import GREEDY_BELOW


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Wish:
    """How one row's token is to be drawn (`SamplingParams`); `generator` is the sequence's own."""

    temperature: float
    top_p: float
    generator: torch.Generator
    top_k: int = 0

    def cuts(self, vocabulary: int) -> bool:
        """Whether some tokens are taken out before drawing."""
        return self.top_p < 1.0 or 0 < self.top_k < vocabulary


def log_probabilities(logits: Tensor, temperature: float) -> Tensor:
    """log softmax(logits / temperature) over the last axis, in fp32. Temperature 0 (greedy) counts as 1, any other as
    at least `GREEDY_BELOW`: fp32 would not hold the quotient.

    Raises:
        NonFiniteLogits: some row has no distribution.
    """
    divisor = _divisor(temperature)
    scaled = logits.float() if divisor == 1.0 else logits.float() / divisor
    result = torch.log_softmax(scaled, dim=-1)
    if not bool(torch.isfinite(result.amax(dim=-1)).all()):
        raise NonFiniteLogits("the model's logits are not finite")
    return result


def _divisor(temperature: float) -> float:
    return max(temperature, GREEDY_BELOW) if temperature else 1.0


def draw(logits: Tensor, *, temperature: float, top_p: float, generator: torch.Generator, top_k: int = 0) -> Drawn:
    """Draw a token from `logits` [V], as `draw_all` does.

    Raises:
        NonFiniteLogits: there is no distribution.
    """
    wish = Wish(temperature=temperature, top_p=top_p, top_k=top_k, generator=generator)
    (drawn,) = draw_all(logits[None], [wish])
    if drawn is None:
        raise NonFiniteLogits("the model's logits are not finite")
    return drawn


def draw_all(logits: Tensor, wishes: Sequence[Wish]) -> list[Drawn | None]:
    """Draw a token from each row of `logits` [n, V]; None where the row has no distribution (NaN or infinity).

    One uniform number of its generator per token, none when greedy; a row's outcome does not depend on the others.
    With top_p < 1 the smallest set of likeliest tokens whose probability reaches top_p is kept (Holtzman et al.,
    2020) and renormalised: the log-probability is that of the token in the kept set. With top_k > 0 no more than the
    top_k likeliest are kept, and top_p is a share of theirs.
    """
    temperatures = torch.tensor([_divisor(wish.temperature) for wish in wishes])
    scaled = logits.float() if bool((temperatures == 1.0).all()) else logits.float() / temperatures[:, None]
    logprobs = torch.log_softmax(scaled, dim=-1)
    finite = torch.isfinite(logprobs.amax(dim=-1)).tolist()
    drawn: list[Drawn | None] = [None] * len(wishes)
    plain: list[int] = []
    for row, wish in enumerate(wishes):
        if not finite[row]:
            continue
        if wish.temperature == 0.0:
            token = int(torch.argmax(logprobs[row]))
            drawn[row] = Drawn(token=token, logprob=float(logprobs[row, token]))
        elif wish.cuts(logits.shape[1]):
            drawn[row] = _draw_cut(logprobs[row], wish)
        else:
            plain.append(row)
    if plain:
        rows = logprobs if len(plain) == len(wishes) else logprobs[plain]
        places = _invert(rows, torch.stack([_uniform(wishes[row]) for row in plain]))
        values = rows.gather(1, places[:, None])[:, 0].tolist()
        for row, token, value in zip(plain, places.tolist(), values, strict=True):
            drawn[row] = Drawn(token=token, logprob=value)
    return drawn


def _draw_cut(logprobs: Tensor, wish: Wish) -> Drawn:
    """Draw from the kept set of one row [V]."""
    ordered, tokens = torch.sort(logprobs, descending=True, stable=True)
    if 0 < wish.top_k < len(ordered):
        ordered, tokens = ordered[: wish.top_k], tokens[: wish.top_k]
    reached = torch.cumsum(torch.softmax(ordered.double(), dim=-1), dim=-1)
    kept = int(torch.searchsorted(reached, torch.tensor(wish.top_p, dtype=torch.float64))) + 1
    kept = min(kept, len(ordered))
    renormalised = torch.log_softmax(ordered[:kept], dim=-1)
    place = int(_invert(renormalised[None], _uniform(wish)[None])[0])
    return Drawn(
        token=int(tokens[place]),
        logprob=float(renormalised[place]),
        kept=tuple(tokens[:kept].tolist()) if kept <= MAX_KEPT else None,
    )


def _uniform(wish: Wish) -> Tensor:
    return torch.rand((), generator=wish.generator, dtype=torch.float64)


def _invert(logprobs: Tensor, uniforms: Tensor) -> Tensor:
    """The place in each row [n, m] where the cumulative distribution passes its uniform number [n] (inverse transform
    sampling)."""
    cumulative = torch.cumsum(logprobs.exp(), dim=-1, dtype=torch.float64)
    places = torch.searchsorted(cumulative, (uniforms * cumulative[:, -1])[:, None], right=True)[:, 0]
    return places.clamp_(max=logprobs.shape[1] - 1)
