"""Which process is killed in which way, drawn from a seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Target(StrEnum):
    """What is killed: the loops' processes by their names, and the supervisor."""

    GATEWAY = "gateway"
    ENGINE = "engine"
    ROLLOUT = "rollout"
    JUDGING = "judging"
    TRAINING = "training"
    SUPERVISOR = "supervisor"


LOOPS = tuple(target for target in Target if target is not Target.SUPERVISOR)


class Moment(StrEnum):
    """When: at any time after its process is there, after it is up, after it has worked again, or at some work."""

    ANY = "any time"
    UP = "once it is up"
    WORKED = "once it has worked again"
    WORK = "at work"
    STEP = "in a step"
    WRITING = "writing a checkpoint"
    WRITTEN = "checkpoint written, step not committed"
    COMMITTED = "step committed, version not published"


CYCLE: dict[Target, Sequence[Moment]] = {
    **dict.fromkeys(LOOPS, (Moment.WORK, Moment.WORKED, Moment.WORK, Moment.ANY)),
    Target.TRAINING: (
        Moment.STEP, Moment.WRITTEN, Moment.COMMITTED, Moment.WORKED, Moment.WRITING, Moment.WRITTEN, Moment.ANY,
    ),
    Target.SUPERVISOR: (Moment.UP, Moment.WORK, Moment.WORKED, Moment.ANY),
}  # fmt: skip
"""The moments of the first, second, … kill of a target, over and over."""

AT_WORK = frozenset({Moment.WORK, Moment.STEP, Moment.WRITING, Moment.WRITTEN, Moment.COMMITTED})


@dataclass(frozen=True, kw_only=True, slots=True)
class Planned:
    """One kill: whom, at what moment, and how many seconds after that moment came."""

    target: Target
    moment: Moment
    delay_s: float


def draw(kills: int, seed: int, *, spread_s: float = 1.5) -> dict[Target, list[Planned]]:
    """The kills of each target, in order; together `kills`, as even as that goes."""
    source = random.Random(f"plan/{seed}")
    planned: dict[Target, list[Planned]] = {target: [] for target in Target}
    for number in range(kills):
        target = list(Target)[number % len(Target)]
        cycle = CYCLE[target]
        moment = cycle[len(planned[target]) % len(cycle)]
        longest = {Moment.ANY: 4.0, Moment.UP: spread_s, Moment.WORKED: spread_s, Moment.STEP: 0.3}.get(moment, 0.0)
        planned[target].append(Planned(target=target, moment=moment, delay_s=source.uniform(0.0, longest)))
    return planned


def choose(source: random.Random, left: dict[Target, int], possible: Sequence[Target]) -> Target | None:
    """One of the targets that can be killed now, the likelier the more of its kills are left."""
    weights = [left[target] for target in possible]
    return source.choices(list(possible), weights)[0] if sum(weights) else None
