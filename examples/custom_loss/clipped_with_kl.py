"""A loss of one's own: the clipped ratio with a KL penalty, written down where it can be changed.

    openclaw-rl up recipes/binary_rl.toml --custom-loss-function-path
    examples/custom_loss/clipped_with_kl.py:compute_loss

The function sees the whole batch at once: one flat row of N response tokens that have a signal. It returns N terms,
which `training.loss.reduction` averages, or a scalar of its own making. The first five parameters are always those;
one that it names besides is given too: here `old_logprobs`, what the engine recorded when it drew the tokens. All
that there is to name stands in `openclaw_rl.training.custom_loss.LossInputs`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from openclaw_rl.config import LossConfig


def compute_loss(
    policy_logprobs: Tensor,
    reference_logprobs: Tensor,
    rewards: Tensor,
    advantages: Tensor,
    config: LossConfig,
    old_logprobs: Tensor,
) -> Tensor:
    """`-min(ρ·A, clip(ρ)·A) + kl_coef · (exp(-d) - 1 + d)` for each token; all tensors [N]."""
    ratio = torch.exp(policy_logprobs - old_logprobs)
    clipped = ratio.clamp(1 - config.clip_low, 1 + config.clip_high)
    policy = -torch.minimum(ratio * advantages, clipped * advantages)
    difference = policy_logprobs - reference_logprobs
    return policy + config.kl_coef * (torch.exp(-difference) - 1 + difference)
