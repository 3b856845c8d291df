"""Which of all committed steps are one policy's own, where several owners' policies are trained in turn.

Steps are numbered over all owners, because a step's number is its version's, which is never given twice. What depends
on how far a policy has come (the learning rate's schedule) counts its own steps; how old samples are, see `line`.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

OWNER_PREFIX = "owner-"


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnSteps:
    """The numbers of a policy's own steps, in order; None: every step is its own."""

    numbers: tuple[int, ...] | None = None

    @classmethod
    def of(cls, numbers: Sequence[int], last: int) -> OwnSteps:
        """From its own steps and the last step of all."""
        return cls() if len(numbers) == last else cls(numbers=tuple(numbers))

    def taken(self, step: int) -> int:
        """How many steps this policy had taken when `step` was the last of all."""
        return step if self.numbers is None else bisect_right(self.numbers, step)

    def and_then(self, step: int) -> OwnSteps:
        """With one more step of its own, which is the last of all."""
        return self if self.numbers is None else OwnSteps(numbers=(*self.numbers, step))


def root_of(checkpoints: Path, owner: str) -> Path:
    """Where an owner's checkpoints lie: those of the shared policy in `checkpoints` itself.

    A name never becomes a path; its hash does.
    """
    if not owner:
        return checkpoints
    return checkpoints / (OWNER_PREFIX + hashlib.blake2b(owner.encode(), digest_size=16).hexdigest())


def roots(checkpoints: Path) -> list[Path]:
    """Where checkpoints lie, the shared policy's first."""
    return [checkpoints, *sorted(path for path in checkpoints.glob(f"{OWNER_PREFIX}*") if path.is_dir())]
