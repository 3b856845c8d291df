"""Which samples of a claimed batch a trainer can learn from, and why not from the others.

Whoever makes samples sees to it that they can be trained (page 02). But a restart may bring another method, weight or
model; the answers of a group may all turn out alike; and what cannot be trained must not be claimed for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from openclaw_rl.config import LossConfig
from openclaw_rl.training.advantages import group_of, telling_rewards
from openclaw_rl.training.batch import Uses
from openclaw_rl.types import Sample

NO_SIGNAL = "no_signal"
"""Nothing of it counts: not by the method and its weights, or not beside the equal answers of its group."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Usable:
    """What one trainer can learn from.

    `context_length` and `vocabulary` are its model's; `hint_obstacle` says why the teacher can read none of a
    sample's hints, or None.
    """

    uses: Uses
    loss: LossConfig
    context_length: int
    vocabulary: int
    hint_obstacle: Callable[[Sample], str | None]

    def obstacle(self, sample: Sample) -> str | None:
        """Why this sample alone cannot be trained, as a counter's name, or None."""
        tokens = sample.tokens
        sequences = [(*tokens.prompt_ids, *tokens.response_ids)]
        if sample.retry is not None:
            sequences.append((*sample.retry.prompt_ids, *sample.retry.response_ids))
        if max(map(len, sequences)) > self.context_length:
            return "too_long"
        if max(map(max, sequences)) >= self.vocabulary:
            return "unknown_token"
        if sample.sampling.greedy:
            return "greedy"
        if self.uses.reward and sample.reward is not None:
            return None
        return self._without_reward(sample)

    def obstacles(self, samples: Sequence[Sample]) -> dict[str, str]:
        """Why samples of this batch cannot be trained, by turn id; the others can.

        A group of equal rewards is left out as a whole, or not at all: what is left of it would be measured
        against something else.
        """
        found = {one.turn_id: why for one in samples if (why := self.obstacle(one)) is not None}
        left = [one for one in samples if one.turn_id not in found]
        telling = telling_rewards(left, self.loss)
        constant = [one for one, says in zip(left, telling, strict=True) if one.reward is not None and not says]
        silent = {one.turn_id: why for one in constant if (why := self._without_reward(one)) is not None}
        kept = {group_of(one, self.loss) for one in constant if one.turn_id not in silent}
        gone = [one for one in constant if group_of(one, self.loss) not in kept]
        return found | {one.turn_id: silent[one.turn_id] for one in gone}

    def _without_reward(self, sample: Sample) -> str | None:
        """Why it cannot be trained if its reward says nothing."""
        if self.uses.retry and sample.retry is not None:
            return None
        if self.uses.hint and sample.hint is not None:
            return self.hint_obstacle(sample)
        return NO_SIGNAL
