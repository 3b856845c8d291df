"""The loss terms and their reduction: pure functions on tensors.

Notation as in `advantages`: N response tokens in one flat row, V vocabulary entries, log-probabilities in nats at
the sample's own temperature. Terms are per token [N]; only `token_weights` and a weighted sum make them one number,
so that splitting a batch in any way leaves the loss and its gradient what they were.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

MAX_LOG_RATIO = 20.0
"""Beyond e^±20 a ratio says only that something is wrong; the bound keeps `inf · 0` of masked tokens out of sums."""


def policy_ratio(logprobs: Tensor, old: Tensor) -> Tensor:
    """`ρ = π(a) / π_old(a)`, finite."""
    return (logprobs - old).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def clipped_policy_loss(
    logprobs: Tensor, old: Tensor, advantage: Tensor, *, clip_low: float, clip_high: float
) -> Tensor:
    """`-min(ρ·A, clip(ρ, 1 - low, 1 + high)·A)` with `ρ = exp(logprobs - old)`; all of one shape.

    PPO's clipped surrogate (arXiv 1707.06347, eq. 7) with a wider upper bound (0.2 / 0.28), so that tokens that
    were unlikely and good can still rise. Gradients flow through `logprobs` alone.
    """
    ratio = policy_ratio(logprobs, old)
    clipped = ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    return -torch.minimum(ratio * advantage, clipped * advantage)


def topk_policy_loss(
    logprobs: Tensor, old: Tensor, advantage: Tensor, *, clip_low: float, clip_high: float
) -> Tensor:
    """The clipped loss per vocabulary entry, weighted by the student's probability of it before the step: [N].

    `-Σ_v π_old(v) min(ρ_v·A_v, clip(ρ_v)·A_v)` over the k + 1 entries of `advantages.Support` [N, k + 1]: the
    expectation, over what the student might have drawn, of the sampled-token loss. (arXiv 2603.10165.)
    """
    entries = clipped_policy_loss(logprobs, old, advantage, clip_low=clip_low, clip_high=clip_high)
    return (old.exp() * entries).sum(-1)


def exact_kl(logprobs: Tensor, reference: Tensor) -> Tensor:
    """`KL(π ‖ π_ref) = Σ_v π(v) (log π(v) - log π_ref(v))` over the whole vocabulary; [N, V] twice -> [N].

    Exact, where GRPO (arXiv 2402.03300, eq. 4) estimates it from the sampled token: the reference is the same
    model with its adapter switched off, so its whole distribution is at hand.
    """
    return (logprobs.exp() * (logprobs - reference)).sum(-1)


def entropy(logprobs: Tensor) -> Tensor:
    """`-Σ_v π(v) log π(v)`, nats: [N, V] -> [N]."""
    return -(logprobs.exp() * logprobs).sum(-1)


def negative_log_likelihood(logprobs: Tensor) -> Tensor:
    """`-log π(a)` [N]: an accepted retry as a demonstration. No ratio: nobody drew these tokens for this prompt."""
    return -logprobs


def clipped_share(logprobs: Tensor, old: Tensor, advantage: Tensor, *, clip_low: float, clip_high: float) -> Tensor:
    """Where the clip takes the gradient away: [N] bool."""
    ratio = policy_ratio(logprobs, old)
    return ((advantage > 0) & (ratio > 1.0 + clip_high)) | ((advantage < 0) & (ratio < 1.0 - clip_low))


def token_weights(owner: Tensor, mask: Tensor, reduction: Literal["tokens", "samples"]) -> Tensor:
    """Weights [N] that turn terms per token into a mean over what is effective; they sum to 1, or are all 0.

    Args:
        owner: [N] which sample each token belongs to.
        mask: [N] bool; a token without any signal is not effective and sits in no denominator.
        reduction: `tokens`: every effective token counts alike (long answers weigh more); `samples`: every sample
            with an effective token counts alike, its tokens sharing its weight (GRPO's, arXiv 2402.03300, eq. 3).
    """
    effective = mask.double()
    if not bool(mask.any()):
        return torch.zeros_like(effective).float()
    if reduction == "tokens":
        return (effective / effective.sum()).float()
    per_sample = effective.new_zeros(int(owner.max()) + 1).index_add_(0, owner, effective)
    samples = int((per_sample > 0).sum())
    return (effective / per_sample[owner].clamp_min(1.0) / samples).float()
