"""The one loss of all methods, over a piece of the flat row: which terms exist for which tokens, and their sum.

Advantages and losses are pure functions elsewhere; this is where they meet the student's, the teacher's and the
reference's distributions at the same tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from openclaw_rl.config import LossConfig
from openclaw_rl.training import advantages, losses
from openclaw_rl.training.batch import TrainBatch

Distribution = Callable[[Tensor, Tensor], Tensor]
"""Hidden states [n, H] and temperatures [n] to log-probabilities [n, V]: `Scorer.log_distribution`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepContext:
    """What a step knows before its first gradient. Flat rows [N, H] of hidden states, without gradients.

    `reference` is None where the loss has no KL term: then nobody reads it. `teacher` is meaningful only where
    `batch.hint_mask` is; `old` is the student's before the step, filled in during the first pass (and read in later
    ones: in the first the student still is its old self). `baseline` is subtracted from rewards.
    """

    batch: TrainBatch
    baseline: float
    reference: Tensor | None
    teacher: Tensor
    old: Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class Terms:
    """Terms per token, weighted by the loss's coefficients but not yet reduced; all [n]. Statistics are detached."""

    policy: Tensor
    distillation: Tensor
    kl: Tensor
    statistics: dict[str, Tensor]

    @property
    def total(self) -> Tensor:
        """The sum of the terms: [n]."""
        return self.policy + self.distillation + self.kl


def loss_terms(
    student: Tensor,
    flat: Tensor,
    context: StepContext,
    distribution: Distribution,
    config: LossConfig,
    *,
    first: bool,
) -> Terms:
    """The loss of n tokens, term by term.

    Rewards enter through the sampled token, against the engine's own log-probability of it, both among the tokens
    that were kept at sampling where it was truncated. (KL and top-k distillation look at the whole vocabulary.)
    Distillation enters at
    the sampled token too (`opd_top_k = 0`: one advantage, the sum of both), or per entry of the student's top-k
    support. There the old policy is the student before this step: engines record the sampled token's alone,
    so the drift since sampling is corrected in the reward's ratio and not in the distillation's.

    Args:
        student: [n, V] log-probabilities with gradient.
        flat: [n] which tokens of the flat row these are.
        first: whether this is the first pass over the batch.
    """
    batch = context.batch
    temperature, targets, old = batch.temperature[flat], batch.targets[flat], batch.old[flat]
    reward_mask, hint_mask = batch.reward_mask[flat], batch.hint_mask[flat]
    kept = batch.kept[flat]
    sampled = chosen_logprobs(student, targets, kept)
    distillation = torch.zeros_like(sampled)
    opd = torch.zeros_like(sampled)
    hinted = hint_mask.nonzero().squeeze(-1)
    if hinted.numel():
        teacher = distribution(context.teacher[flat[hinted]], temperature[hinted])
        if config.opd_top_k:
            own = student[hinted]
            before = own.detach() if first else distribution(context.old[flat[hinted]], temperature[hinted])
            terms = _topk_distillation(own, before, teacher, config)
            distillation = distillation.index_put((hinted,), config.w_opd * terms)
        else:
            chosen = chosen_logprobs(teacher, targets[hinted], kept[hinted])
            opd[hinted] = advantages.opd_token_advantage(chosen, old[hinted], config.opd_clip)
    advantage = advantages.combine(
        batch.rewards[flat] - context.baseline,
        reward_mask,
        opd,
        hint_mask if not config.opd_top_k else torch.zeros_like(hint_mask),
        w_rl=config.w_rl,
        w_opd=config.w_opd,
    )
    policy = losses.clipped_policy_loss(sampled, old, advantage, clip_low=config.clip_low, clip_high=config.clip_high)
    acting = reward_mask if config.opd_top_k else reward_mask | hint_mask
    policy = torch.where(acting, policy, torch.zeros_like(policy))
    kl = None
    if context.reference is not None:
        kl = losses.exact_kl(student, distribution(context.reference[flat], temperature))
    clip = losses.clipped_share(sampled, old, advantage, clip_low=config.clip_low, clip_high=config.clip_high)
    statistics = {
        "entropy": losses.entropy(student.detach()),
        "ratio": losses.policy_ratio(sampled.detach(), old),
        "clip_fraction": clip.float(),
        "gap": (sampled.detach() - old).abs(),
    }
    if kl is not None:
        statistics["kl"] = kl.detach()
    weighted = torch.zeros_like(policy) if kl is None else config.kl_coef * kl
    return Terms(policy=policy, distillation=distillation, kl=weighted, statistics=statistics)


def chosen_logprobs(logprobs: Tensor, targets: Tensor, kept: Tensor) -> Tensor:
    """Log-probabilities [n] of `targets` [n] in the distribution that they were drawn from.

    `logprobs` [n, V] are those of the whole vocabulary; `kept` [n, K] the ids to renormalise over where sampling was
    truncated (top-p, top-k), filled up with -1, all -1 where it was not. The set is the one that the engine kept, so
    that old and new weights are compared on the same support.
    """
    chosen = logprobs.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    cut = (kept >= 0).any(-1).nonzero().squeeze(-1) if kept.shape[-1] else targets.new_empty(0)
    if not cut.numel():
        return chosen
    ids = kept[cut]
    inside = logprobs[cut].gather(-1, ids.clamp_min(0)).masked_fill(ids < 0, float("-inf"))
    return chosen.index_add(0, cut, -inside.logsumexp(-1))


def _topk_distillation(student: Tensor, before: Tensor, teacher: Tensor, config: LossConfig) -> Tensor:
    support = advantages.opd_topk_advantage(before, teacher, config.opd_top_k, config.opd_clip)
    return losses.topk_policy_loss(
        advantages.on_support(student, support.ids),
        support.old,
        support.advantage,
        clip_low=config.clip_low,
        clip_high=config.clip_high,
    )
