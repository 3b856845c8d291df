"""The loss of the example method: a REINFORCE step that believes a no half as much as a yes.

A no says that one answer was wrong and not which would have been right; pushing it down as hard as a yes pulls up
spreads probability over everything else. So the advantage of a disliked answer counts half (asymmetric REINFORCE).
"""

from __future__ import annotations

import torch
from torch import Tensor

from openclaw_rl.config import LossConfig

NO_COUNTS = 0.5


def compute_loss(
    policy_logprobs: Tensor,
    reference_logprobs: Tensor,
    rewards: Tensor,
    advantages: Tensor,
    config: LossConfig,
    old_logprobs: Tensor,
) -> Tensor:
    """`-sg[min(ρ, 1 + clip_high)] · A' · log π + kl_coef · (exp(-d) - 1 + d)` for each token; all tensors [N]."""
    ratio = torch.exp(policy_logprobs - old_logprobs).clamp(max=1 + config.clip_high).detach()
    believed = torch.where(advantages < 0, NO_COUNTS * advantages, advantages)
    difference = policy_logprobs - reference_logprobs
    return -ratio * believed * policy_logprobs + config.kl_coef * (torch.exp(-difference) - 1 + difference)
