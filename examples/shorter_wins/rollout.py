"""A rollout function: our own way through the tasks, and a reward that only the whole group can tell.

Among the rollouts of one task, the one with the fewest answers keeps its reward, the one with the most loses `COSTS`,
the others a part of it in between.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import replace

from openclaw_rl.rollout.extension_contracts import GenerateFunction, Rollout, RolloutGroup, Runner, Task
from openclaw_rl.rollout.run_tasks import run_tasks

COSTS = 0.4


async def rollout(tasks: Sequence[Task], generate: GenerateFunction, runner: Runner) -> AsyncIterator[RolloutGroup]:
    """The groups of `run_tasks`, each with its rewards changed."""
    async with aclosing(run_tasks(tasks, generate, runner)) as groups:
        async for group in groups:
            yield replace(group, rollouts=shaped(group.rollouts))


def shaped(rollouts: Sequence[Rollout]) -> tuple[Rollout, ...]:
    """The same rollouts; a reward is what it was, less what the answers beyond the shortest's cost."""
    lengths = [len(one.turn_ids) for one in rollouts if one.reward is not None]
    spread = max(lengths, default=0) - min(lengths, default=0)
    if not spread:
        return tuple(rollouts)
    return tuple(
        one
        if one.reward is None
        else replace(one, reward=max(-1.0, one.reward - COSTS * (len(one.turn_ids) - min(lengths)) / spread))
        for one in rollouts
    )
