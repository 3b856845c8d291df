"""Samples to tensors: one flat row of response tokens.

Everything that is known or computed per response token lies in one flat row of N tokens, sample after sample, each
token once. Forward passes (`packing`) read and write places of it; how they are cut changes nothing but speed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from openclaw_rl.config import LossConfig
from openclaw_rl.training.advantages import telling_rewards
from openclaw_rl.training.losses import token_weights
from openclaw_rl.types import Method, Sample

if TYPE_CHECKING:
    from openclaw_rl.training.packing import Pack

Carrier = TypeVar("Carrier", "Pack", "TrainBatch")


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenSequence:
    """A prompt and a response to score. `start`: where the response's first token lies in the flat row."""

    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    start: int

    def __post_init__(self) -> None:
        if not self.prompt_ids or not self.response_ids:
            raise ValueError("a sequence has a prompt and a response")

    def __len__(self) -> int:
        return len(self.prompt_ids) + len(self.response_ids)


def moved(carrier: Carrier, device: torch.device | str) -> Carrier:
    """The same with all its tensors on `device`. They are made of Python numbers, so made on the CPU first."""
    values = {field.name: getattr(carrier, field.name) for field in fields(carrier)}
    tensors: dict[str, Any] = {name: value.to(device) for name, value in values.items() if isinstance(value, Tensor)}
    return replace(carrier, **tensors)


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainBatch:
    """One step's samples as tensors.

    The flat row, all [N]: `targets` the sampled tokens, `old` the engine's log-probabilities (NaN where
    missing: reconstructed samples), `temperature`,
    `kept` [N, K] the ids that each token was drawn from, filled up with -1 (all -1: from the whole vocabulary),
    `owner` the sample's index, `rewards` (0 where there is none), `reward_mask`, `hint_mask` where each signal
    exists *and the method uses it*, `versions` that drew the token, `weights` of the
    reduction (0 where no signal is).

    Demonstrations (accepted retries) have a flat row of their own, [M]: `demo_targets`, `demo_temperature`,
    `demo_weights`; `demo_owners` are the samples they ride on.

    `sequences` are the samples in order; `demos` the demonstrations; `starts` [S + 1] bounds the samples.
    """

    samples: tuple[Sample, ...]
    sequences: tuple[TokenSequence, ...]
    starts: tuple[int, ...]
    targets: Tensor
    old: Tensor
    temperature: Tensor
    kept: Tensor
    owner: Tensor
    rewards: Tensor
    reward_mask: Tensor
    hint_mask: Tensor
    versions: Tensor
    weights: Tensor
    demos: tuple[TokenSequence, ...]
    demo_targets: Tensor
    demo_temperature: Tensor
    demo_weights: Tensor
    demo_owners: tuple[int, ...]

    @property
    def acting(self) -> tuple[TokenSequence, ...]:
        """The sequences with any weight in the policy's loss."""
        return tuple(
            s for s, start in zip(self.sequences, self.starts, strict=False) if bool(self.weights[start] > 0)
        )

    @property
    def hinted(self) -> tuple[int, ...]:
        """Indices of the samples that the teacher is asked about."""
        return tuple(i for i, start in enumerate(self.starts[:-1]) if bool(self.hint_mask[start]))

    @property
    def signals(self) -> int:
        """How many samples have any signal, demonstrations included."""
        acting = {int(owner) for owner in self.owner[self.weights > 0]}
        return len(acting | set(self.demo_owners))

    @property
    def present_rewards(self) -> Tensor:
        """The rewards that exist, one per sample."""
        firsts = torch.tensor(self.starts[:-1], dtype=torch.long, device=self.rewards.device)
        return self.rewards[firsts][self.reward_mask[firsts]]

    @property
    def corrected(self) -> tuple[TokenSequence, ...]:
        """The demonstrations again, each after the prompt that holds the correction: where they were drawn."""
        return tuple(
            replace(demo, prompt_ids=self.samples[owner].tokens.prompt_ids)
            for owner, demo in zip(self.demo_owners, self.demos, strict=True)
        )

    def spread_over_rewards(self, values: Sequence[float]) -> Tensor:
        """One value for each sample with a reward, in order (or none at all), at each of its tokens; else 0: [N]."""
        remaining = iter(values)
        per_sample = [0.0 if s.reward is None else next(remaining, 0.0) for s in self.samples]
        return torch.tensor(per_sample, dtype=torch.float32, device=self.owner.device)[self.owner]


@dataclass(frozen=True, kw_only=True, slots=True)
class Uses:
    """Which signals of a sample count."""

    reward: bool
    hint: bool
    retry: bool

    @classmethod
    def of(cls, method: Method, loss: LossConfig) -> Uses:
        """By the method and the weights; decided here, and only here."""
        return cls(
            reward=method is not Method.OPD and loss.w_rl > 0,
            hint=method is not Method.BINARY_RL and loss.w_opd > 0,
            retry=loss.w_retry > 0,
        )


def build_batch(
    samples: Sequence[Sample], method: Method, loss: LossConfig, device: torch.device | str = "cpu"
) -> TrainBatch:
    """The tensors of one step, on `device`; `method` and the weights say which signals count (`Uses`)."""
    uses = Uses.of(method, loss)
    lengths = [len(sample.tokens.response_ids) for sample in samples]
    starts = [sum(lengths[:i]) for i in range(len(lengths) + 1)]

    def spread(values: Sequence[float | bool], dtype: torch.dtype) -> Tensor:
        return torch.tensor(list(values), dtype=dtype).repeat_interleave(torch.tensor(lengths))

    owner = spread(range(len(samples)), torch.long)
    reward_mask = spread(telling_rewards(samples, loss) if uses.reward else [False] * len(samples), torch.bool)
    hint_mask = spread([uses.hint and sample.hint is not None for sample in samples], torch.bool)
    retries = [(s, s.retry) for s in samples if uses.retry and s.retry is not None]
    demo_lengths = [len(retry.response_ids) for _, retry in retries]
    effective = int(torch.unique(owner[reward_mask | hint_mask]).numel())
    share = 1.0 / max(effective, len(retries), 1)
    batch = TrainBatch(
        samples=tuple(samples),
        sequences=tuple(
            TokenSequence(prompt_ids=s.tokens.prompt_ids, response_ids=s.tokens.response_ids, start=start)
            for s, start in zip(samples, starts, strict=False)
        ),
        starts=tuple(starts),
        targets=torch.tensor([token for s in samples for token in s.tokens.response_ids]),
        old=torch.tensor([logprob for s in samples for logprob in s.logprobs], dtype=torch.float32),
        temperature=spread([s.sampling.temperature for s in samples], torch.float32),
        kept=_kept(samples),
        owner=owner,
        rewards=spread([0.0 if s.reward is None else s.reward for s in samples], torch.float32),
        reward_mask=reward_mask,
        hint_mask=hint_mask,
        versions=torch.tensor([version for s in samples for version in s.tokens.versions]),
        weights=token_weights(owner, reward_mask | hint_mask, loss.reduction),
        demos=tuple(
            TokenSequence(prompt_ids=retry.prompt_ids, response_ids=retry.response_ids, start=sum(demo_lengths[:i]))
            for i, (_, retry) in enumerate(retries)
        ),
        demo_targets=torch.tensor([t for _, retry in retries for t in retry.response_ids], dtype=torch.long),
        demo_temperature=torch.tensor(
            [s.sampling.temperature for s, retry in retries for _ in retry.response_ids], dtype=torch.float32
        ),
        demo_weights=torch.tensor([share / n for n in demo_lengths for _ in range(n)], dtype=torch.float32),
        demo_owners=tuple(i for i, s in enumerate(samples) if uses.retry and s.retry is not None),
    )
    return moved(batch, device)


def _kept(samples: Sequence[Sample]) -> Tensor:
    """The kept sets of all response tokens, [N, K]; K is 0 where no sample's sampling was truncated."""
    sets: list[tuple[int, ...]] = []
    for sample in samples:
        kept = sample.tokens.kept if sample.sampling.truncated and not sample.reconstructed else None
        sets += [ids or () for ids in kept] if kept is not None else [()] * len(sample.tokens.response_ids)
    widest = max(map(len, sets), default=0)
    return torch.tensor([[*ids, *[-1] * (widest - len(ids))] for ids in sets], dtype=torch.long).reshape(
        len(sets), widest
    )
