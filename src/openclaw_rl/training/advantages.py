"""How much better than expected a token was: pure functions on tensors.

Notation: N response tokens in one flat row, V vocabulary entries, k support entries plus one tail entry. All
log-probabilities are in nats, at the temperature at which the sample was drawn.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

TAIL_FLOOR = 1e-6
"""Least probability of a tail: below it float32 cannot tell `1 - sum` from rounding, and its weight is nothing."""


def running_baseline(previous: float | None, rewards: Tensor, decay: float) -> tuple[float, float | None]:
    """The baseline that this batch's rewards are measured against, and the one for the next batch.

    An exponential moving average of batch means, `next = decay * used + (1 - decay) * mean`; the first batch is
    measured against its own mean. It is the one-rollout stand-in for the group mean of GRPO (arXiv 2402.03300,
    eq. 3), which needs several answers to one request; a user gives one.

    Args:
        previous: what the last batch left, None before the first reward.
        rewards: [R] the rewards that exist in this batch; R may be 0.
        decay: weight of the past, 0 to 1.
    """
    if rewards.numel() == 0:
        return (0.0 if previous is None else previous), previous
    mean = float(rewards.double().mean())
    used = mean if previous is None else previous
    return used, decay * used + (1.0 - decay) * mean


def opd_token_advantage(teacher: Tensor, old: Tensor, clip: float) -> Tensor:
    """Distillation at the sampled token: `log π_teacher(a | s, hint) - log π_old(a | s)`, clipped to ±clip.

    OpenClaw-RL (arXiv 2603.10165), the token-level form. `teacher`, `old` and the result: [N].
    """
    return (teacher - old).clamp(-clip, clip)


def combine(
    reward: Tensor, reward_mask: Tensor, opd: Tensor, opd_mask: Tensor, *, w_rl: float, w_opd: float
) -> Tensor:
    """`A = w_rl · r + w_opd · (log π_teacher - log π_old)`, each term only where its signal exists. All [N].

    A masked entry adds exactly 0 whatever number stands there, NaN included. (arXiv 2603.10165, "combine".)
    """
    zero = torch.zeros((), dtype=reward.dtype, device=reward.device)
    return w_rl * torch.where(reward_mask, reward, zero) + w_opd * torch.where(opd_mask, opd, zero)


@dataclass(frozen=True, kw_only=True, slots=True)
class Support:
    """The student's k likeliest tokens and the rest, as k + 1 entries.

    `ids` [N, k] the tokens; `old` [N, k + 1] the student's log-probabilities before the step (its tail last);
    `advantage` [N, k + 1] clipped log-difference of the teacher to it.
    """

    ids: Tensor
    old: Tensor
    advantage: Tensor


def on_support(logprobs: Tensor, ids: Tensor) -> Tensor:
    """Log-probabilities [N, V] at `ids` [N, k], and of everything else together: [N, k + 1]."""
    chosen = logprobs.gather(-1, ids)
    rest = (1.0 - chosen.exp().sum(-1, keepdim=True)).clamp_min(TAIL_FLOOR).log()
    return torch.cat([chosen, rest], dim=-1)


def opd_topk_advantage(old: Tensor, teacher: Tensor, k: int, clip: float) -> Support:
    """Distillation on the student's own top-k support plus tail, differences clipped to ±clip.

    Taking the support from the student keeps the signal where the student's mass is; the tail entry keeps the
    k + 1 probabilities a distribution, so that moving mass off the support is seen too. (arXiv 2603.10165, second
    version: k = 4 is enough, C = 1.)

    Args:
        old: [N, V] the student's log-probabilities before the step.
        teacher: [N, V] the teacher's, at the same positions of the same responses.
        k: entries of the support, 1 to V - 1.
        clip: C, nats.
    """
    ids = old.topk(k, dim=-1).indices
    old_entries = on_support(old, ids)
    difference = on_support(teacher, ids) - old_entries
    return Support(ids=ids, old=old_entries, advantage=difference.clamp(-clip, clip))
