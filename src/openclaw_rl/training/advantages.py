"""How much better than expected an answer, or a token of it, was: pure functions.

Notation: N response tokens in one flat row, V vocabulary entries, k support entries plus one tail entry. All
log-probabilities are in nats, at the temperature at which the sample was drawn.
"""

from __future__ import annotations

import statistics
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from openclaw_rl.config import LossConfig
from openclaw_rl.types import Sample

TAIL_FLOOR = 1e-6
"""Least probability of a tail: below it float32 cannot tell `1 - sum` from rounding, and its weight is nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rewarded:
    """An answer with a reward, and whom it is compared with.

    `key` owns its moving average; `group` is shared by the answers that it is compared with (None: by nobody).
    The answers of one `rollout` count once in a group: long rollouts must not weigh more (None: each by itself).
    """

    reward: float
    key: str
    group: Hashable | None
    rollout: str | None = None


EVERYBODY = ""
"""The key of the one moving average that is nobody's in particular."""

STD_FLOOR = 1e-6
"""Added to a standard deviation before dividing by it."""


def rewarded(samples: Sequence[Sample], config: LossConfig) -> list[Rewarded]:
    """The samples that have a reward, in order, with the key and the group that they are compared by."""
    found = []
    for sample in samples:
        if sample.reward is not None:
            key = sample.origin.key_id if config.baseline == "per_key" and sample.origin is not None else EVERYBODY
            rollout = None if sample.origin is None else sample.origin.rollout
            found.append(Rewarded(reward=sample.reward, key=key, group=group_of(sample, config), rollout=rollout))
    return found


def group_of(sample: Sample, config: LossConfig) -> Hashable | None:
    """What a sample shares with those that it is compared with, or None where it is compared with none.

    `group` (GRPO, arXiv 2402.03300): the answers to the same messages of one key, or all of the rollouts of one
    task. `step` (OpenClaw-RL's step-wise estimator, arXiv 2603.10165): the answers at the same step of that key's
    conversations that began with the same messages; each step's reward goes to its own answer.
    """
    origin = sample.origin
    if origin is None or not config.grouped:
        return None
    if config.baseline == "group":
        return origin.group_id
    return None if origin.task_id is None else (origin.task_id, origin.step)


def telling_rewards(samples: Sequence[Sample], config: LossConfig) -> list[bool]:
    """Whether each sample's reward says anything: it has one, and not the same as everyone in a group of several.

    The advantage in a constant group is 0 for all: no signal, so (as a score of 0) no place in any denominator.
    """
    groups = _by_group(rewarded(samples, config))
    constant = {group for group, rewards in groups.items() if len(rewards) > 1 and len(set(rewards)) == 1}
    return [sample.reward is not None and group_of(sample, config) not in constant for sample in samples]


@dataclass(frozen=True, kw_only=True, slots=True)
class Compared:
    """How much better than expected each rewarded answer was (`advantages`), what was `expected` of it before any
    scaling, and the moving `averages` for the next batch, by key.
    """

    advantages: tuple[float, ...]
    expected: tuple[float, ...]
    averages: dict[str, float]


def reward_advantages(answers: Sequence[Rewarded], averages: Mapping[str, float], config: LossConfig) -> Compared:
    """Compare rewards with what was to be expected.

    `config.baseline` says with what: nothing, the moving average (of all, or of the key), or the mean of the group.
    An answer that is alone in its group has the moving average instead, so that it is neither lost nor on another
    scale (rewards lie within ±1). `config.normalise` divides: by the group's standard deviation (n - 1; with it a
    group baseline is GRPO's advantage, without it that of Dr. GRPO, arXiv 2503.20783), or, after taking off the mean,
    by that of the batch's answers, each once (REINFORCE++ baseline, arXiv 2501.03262).

    Args:
        answers: those of this batch that have a reward; may be empty.
        averages: what the last batch left, by key.
    """
    expected, following = _moving(answers, averages, config)
    scales = [1.0] * len(answers)
    groups = _by_group(answers)
    for i, answer in enumerate(answers):
        peers = [] if answer.group is None else groups[answer.group]
        if len(peers) > 1:
            expected[i] = statistics.fmean(peers)
            if config.normalise == "group":
                scales[i] = statistics.stdev(peers) + STD_FLOOR
    advantages = [
        (answer.reward - mean) / scale for answer, mean, scale in zip(answers, expected, scales, strict=True)
    ]
    if config.normalise == "batch" and len(advantages) > 1:
        mean, scale = statistics.fmean(advantages), statistics.stdev(advantages) + STD_FLOOR
        advantages = [(advantage - mean) / scale for advantage in advantages]
    return Compared(advantages=tuple(advantages), expected=tuple(expected), averages=following)


def running_baseline(previous: float | None, rewards: Sequence[float], decay: float) -> tuple[float, float]:
    """The baseline that these rewards are measured against, and the one for the next batch.

    An exponential moving average of batch means, `next = decay * used + (1 - decay) * mean`; the first batch is
    measured against its own mean. It is the one-rollout stand-in for the group mean of GRPO (arXiv 2402.03300,
    eq. 3), which needs several answers to one request; a user gives one.

    Args:
        previous: what the last batch left, None before the first reward.
        rewards: those of this batch, at least one.
        decay: weight of the past, 0 to 1.
    """
    mean = statistics.fmean(rewards)
    used = mean if previous is None else previous
    return used, decay * used + (1.0 - decay) * mean


def _moving(
    answers: Sequence[Rewarded], averages: Mapping[str, float], config: LossConfig
) -> tuple[list[float], dict[str, float]]:
    """The moving average that each answer is measured against, and the averages for the next batch."""
    if config.baseline == "none":
        return [0.0] * len(answers), dict(averages)
    rewards: dict[str, list[float]] = {}
    for answer in answers:
        rewards.setdefault(answer.key, []).append(answer.reward)
    used, following = {}, dict(averages)
    for key, values in rewards.items():
        used[key], following[key] = running_baseline(averages.get(key), values, config.baseline_decay)
    return [used[answer.key] for answer in answers], following


def _by_group(answers: Sequence[Rewarded]) -> dict[Hashable, list[float]]:
    """The rewards of each group: one for each answer, or for each rollout the mean of its answers' rewards."""
    groups: dict[Hashable, dict[Hashable, list[float]]] = {}
    for place, answer in enumerate(answers):
        if answer.group is not None:
            one = place if answer.rollout is None else answer.rollout
            groups.setdefault(answer.group, {}).setdefault(one, []).append(answer.reward)
    return {group: [statistics.fmean(rewards) for rewards in ones.values()] for group, ones in groups.items()}


def opd_token_advantage(teacher: Tensor, before: Tensor, clip: float) -> Tensor:
    """Distillation at the sampled token: `log π_teacher(a | s, hint) - log π_before(a | s)`, clipped to ±clip.

    OpenClaw-RL (arXiv 2603.10165), the token-level form; `before` is the student before the step, read as the teacher
    is. `teacher`, `before` and the result: [N].
    """
    return (teacher - before).clamp(-clip, clip)


def combine(
    reward: Tensor, reward_mask: Tensor, opd: Tensor, opd_mask: Tensor, *, w_rl: float, w_opd: float
) -> Tensor:
    """`A = w_rl · r + w_opd · (log π_teacher - log π_before)`, each term only where its signal exists. All [N].

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
