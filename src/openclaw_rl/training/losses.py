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

# --- ratios ------------------------------------------------------------------------------------------------


def policy_ratio(logprobs: Tensor, old: Tensor) -> Tensor:
    """`ρ = π(a) / π_old(a)`, finite."""
    return (logprobs - old).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def mean_per_sequence(values: Tensor, owner: Tensor) -> Tensor:
    """The mean of `values` [n] over the tokens of each sequence, at every one of its tokens: [n].

    `owner` [n] says whose each token is; all tokens of a sequence have to be among them.
    """
    sums = values.new_zeros(int(owner.max()) + 1).index_add_(0, owner, values)
    counts = values.new_zeros(sums.shape).index_add_(0, owner, torch.ones_like(values))
    return sums[owner] / counts[owner]


def sequence_ratio(logprobs: Tensor, mean_log_ratio: Tensor) -> Tensor:
    """GSPO's ratio of a whole answer, as a ratio of each of its tokens: [n].

    `s_t = sg[s] · π(a_t) / sg[π(a_t)]` with `s = exp(1/|y| Σ_t log ρ_t)`: the value of every token is that of the
    sequence, the gradient its own, so that any piece of the sequence can be computed apart (arXiv 2507.18071,
    "GSPO-token"). `mean_log_ratio` [n] is `log s` at each token, from `mean_per_sequence`, without gradient.
    """
    value = mean_log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    return value * (logprobs - logprobs.detach()).exp()


def mismatch_weight(
    trainer: Tensor, engine: Tensor, *, cap: float | None, low: float | None, high: float | None
) -> Tensor:
    """What a token drawn by the engine counts for in a loss whose ratio starts from the trainer: [n], no gradient.

    `m = π_trainer(a) / π_engine(a)`, both before the step. Truncated importance sampling: `min(m, cap)` (Yao et al.
    2025, "Your efficient RL framework secretly brings you off-policy RL training"). IcePop: 0 outside `low` to
    `high`, where the two disagree too much to learn from (arXiv 2510.18855). With both, the cut weight inside the
    band.
    """
    weight = policy_ratio(trainer, engine).detach()
    outside = torch.zeros_like(weight, dtype=torch.bool)
    if low is not None and high is not None:
        outside = (weight < low) | (weight > high)
    if cap is not None:
        weight = weight.clamp_max(cap)
    return torch.where(outside, torch.zeros_like(weight), weight)


# --- the policy's term -------------------------------------------------------------------------------------


def clipped_policy_loss(
    ratio: Tensor, advantage: Tensor, *, clip_low: float, clip_high: float, dual_clip: float | None = None
) -> Tensor:
    """`-min(ρ·A, clip(ρ, 1 - low, 1 + high)·A)`; all of one shape, gradients through `ratio`.

    PPO's clipped surrogate (arXiv 1707.06347, eq. 7) with a wider upper bound (0.2 / 0.28: DAPO, arXiv 2503.14476),
    so that tokens that were unlikely and good can still rise. `dual_clip` = c > 1 bounds it for A < 0 by `-c·A`
    (arXiv 1912.09729): a token that was bad and has become likely is not pushed without limit.
    """
    clipped = ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    objective = torch.minimum(ratio * advantage, clipped * advantage)
    if dual_clip is not None:
        objective = torch.where(advantage < 0, torch.maximum(objective, dual_clip * advantage), objective)
    return -objective


def cispo_loss(logprobs: Tensor, ratio: Tensor, advantage: Tensor, *, clip_low: float, clip_high: float) -> Tensor:
    """`-sg[clip(ρ, 1 - low, 1 + high)] · A · log π(a)`; all [n] (MiniMax-M1, arXiv 2506.13585, eq. 4 and 5).

    The clip bounds the weight and never the gradient: no token falls silent. The paper leaves the lower bound open
    (`clip_low` = 1).
    """
    weight = ratio.detach().clamp(1.0 - clip_low, 1.0 + clip_high)
    return -weight * advantage * logprobs


def importance_sampling_loss(ratio: Tensor, advantage: Tensor) -> Tensor:
    """`-ρ·A`, nothing clipped: unbiased for one step, and as noisy as its ratios."""
    return -ratio * advantage


def topk_policy_loss(
    logprobs: Tensor, old: Tensor, advantage: Tensor, *, clip_low: float, clip_high: float
) -> Tensor:
    """The clipped loss per vocabulary entry, weighted by the student's probability of it before the step: [N].

    `-Σ_v π_old(v) min(ρ_v·A_v, clip(ρ_v)·A_v)` over the k + 1 entries of `advantages.Support` [N, k + 1]: the
    expectation, over what the student might have drawn, of the sampled-token loss. (arXiv 2603.10165.)
    """
    ratio = policy_ratio(logprobs, old)
    entries = clipped_policy_loss(ratio, advantage, clip_low=clip_low, clip_high=clip_high)
    return (old.exp() * entries).sum(-1)


def clipped_share(ratio: Tensor, advantage: Tensor, *, clip_low: float, clip_high: float) -> Tensor:
    """Where the clip acts: [N] bool."""
    return ((advantage > 0) & (ratio > 1.0 + clip_high)) | ((advantage < 0) & (ratio < 1.0 - clip_low))


# --- what holds the policy ---------------------------------------------------------------------------------


def exact_kl(logprobs: Tensor, reference: Tensor) -> Tensor:
    """`KL(π ‖ π_ref) = Σ_v π(v) (log π(v) - log π_ref(v))` over the whole vocabulary; [N, V] twice -> [N].

    Exact, where GRPO (arXiv 2402.03300, eq. 4) estimates it from the sampled token: the reference is the same
    model with its adapter switched off, so its whole distribution is at hand. The forward KL of a teacher, which
    carries an accepted retry, is this with the student in the second place.
    """
    return (logprobs.exp() * (logprobs - reference)).sum(-1)


def estimated_kl(kind: Literal["k1", "k2", "k3"], logprobs: Tensor, reference: Tensor, ratio: Tensor) -> Tensor:
    """`KL(π ‖ π_ref)` from the sampled token alone; all [N] (Schulman 2020, "Approximating KL divergence").

    With `d = log π(a) - log π_ref(a)`: k1 = `ρ·d`, k2 = `d²/2`, k3 = `exp(-d) - 1 + d` (GRPO's, arXiv 2402.03300,
    eq. 4). k1 needs its ratio: the gradient of `d` alone is 0 on average, that of `ρ·d` the gradient of the KL. k2
    has that gradient on-policy and a biased value; k3 is never negative and its gradient is that of the forward KL.
    """
    difference = (logprobs - reference).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    if kind == "k1":
        return ratio * difference
    if kind == "k2":
        return difference.square() / 2
    return (-difference).exp() - 1.0 + difference


def entropy(logprobs: Tensor) -> Tensor:
    """`-Σ_v π(v) log π(v)`, nats: [N, V] -> [N]."""
    return -(logprobs.exp() * logprobs).sum(-1)


def negative_log_likelihood(logprobs: Tensor) -> Tensor:
    """`-log π(a)` [N]: an accepted retry as a demonstration. No ratio: nobody drew these tokens for this prompt."""
    return -logprobs


# --- the reduction -----------------------------------------------------------------------------------------


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
