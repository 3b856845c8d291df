"""Our own rollout function: every task of the file, as many groups at once as there is room for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from openclaw_rl.rollout.extension_contracts import (
    GenerateFunction,
    Policy,
    RolloutGroup,
    RolloutResult,
    Runner,
    Task,
)

CONSTANT = "constant"
"""Why a group is dropped whose rewards are all the same, where they are only compared with one another."""


async def run_tasks(tasks: Sequence[Task], generate: GenerateFunction, runner: Runner) -> AsyncIterator[RolloutGroup]:
    """Each task that is not done, in the order of the file; a group as soon as its last rollout has ended.

    Where rewards are compared within groups (GRPO), one in which all are the same has nothing to teach: it is dropped
    and takes no place in a batch.
    """
    running: set[asyncio.Task[RolloutGroup]] = set()
    try:
        for task, pass_number in runner.todo(tasks):
            room = asyncio.create_task(runner.room())
            try:
                while not room.done():
                    await asyncio.wait({room, *running}, return_when=asyncio.FIRST_COMPLETED)
                    for group in _ended(running):
                        if not await _dropped(group, runner):
                            yield group
            finally:
                room.cancel()
            await room
            running.add(runner.start(task, pass_number, generate))
        while running:
            await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for group in _ended(running):
                if not await _dropped(group, runner):
                    yield group
    finally:
        for left in running:
            left.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def _dropped(group: RolloutGroup, runner: Runner) -> bool:
    if runner.compares and group.tells_nothing:
        await runner.drop(group, CONSTANT)
        return True
    return False


def _ended(running: set[asyncio.Task[RolloutGroup]]) -> list[RolloutGroup]:
    """Take out those that have ended."""
    ended = [one for one in running if one.done()]
    running.difference_update(ended)
    return [one.result() for one in ended]


async def one_answer(task: Task, policy: Policy) -> RolloutResult:
    """The generate function of whoever gives none: one answer, and no reward; a rollout function may give one."""
    await policy.chat(task.messages, tools=task.tools)
    return RolloutResult(reward=None, ended="answered")
