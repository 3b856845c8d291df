"""Makes rollouts: each in a session of its own, within its time, once. Implements `extension_contracts.Runner`.

The record knows every attempt, so that whoever is killed and started again goes on with what is missing. A failure
has a name that is counted; it is the rollout's, never the driver's.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from openclaw_rl.config import ApiKey, Config
from openclaw_rl.rollout.extension_contracts import (
    GenerateFunction,
    PolicyRefused,
    Rollout,
    RolloutGroup,
    RolloutResult,
    Task,
)
from openclaw_rl.rollout.policy_client import Gateway, PolicySession
from openclaw_rl.serving.gateway.auth import LOCAL, key_id
from openclaw_rl.store import Store
from openclaw_rl.store.rollouts import INTERRUPTED, RolloutRow, RolloutState
from openclaw_rl.types import ENVIRONMENT

logger = logging.getLogger(__name__)

LOOK_S = 0.25
"""How often it is looked whether the trainer has caught up."""
NOT_YIELDED = "not_yielded"
"""Why a group is dropped that its rollout function forgot."""
FAILURE_CHARACTERS = 48

T = TypeVar("T")


def group_id_of(task: Task, pass_number: int) -> str:
    """The name of a task's group: another content, or another pass, is another group."""
    return hashlib.sha256(f"{task.task_id}\0{task.digest}\0{pass_number}".encode()).hexdigest()[:32]


def session_name_of(group_id: str, number: int, attempt: int) -> str:
    """What the session of a rollout is called."""
    return f"{ENVIRONMENT}-{group_id}-{number}-{attempt}"


class RolloutRunner:
    """The runner over a store and a gateway; one for the life of the driver, on one event loop."""

    def __init__(self, config: Config, store: Store, gateway: Gateway) -> None:
        self._config = config
        self._settings = config.rollout
        self._store = store
        self._gateway = gateway
        self._places = asyncio.Semaphore(self._settings.max_parallel_rollouts)
        self._open: dict[str, RolloutGroup | None] = {}  # begun and not closed; None while rollouts are missing
        self._missing = 0
        self._closed = store.rollouts.closed()
        self.waiting_for: str | None = None

    @property
    def compares(self) -> bool:
        """See `Runner`."""
        return self._config.training.loss.grouped

    @property
    def missing(self) -> int:
        """Rollouts that are going on or wait for a place."""
        return self._missing

    def todo(self, tasks: Sequence[Task]) -> Sequence[tuple[Task, int]]:
        """See `Runner`."""
        passes = range(1, self._settings.passes + 1)
        every = [(task, number) for number in passes for task in tasks]
        return [(task, number) for task, number in every if group_id_of(task, number) not in self._closed]

    async def room(self) -> None:
        """See `Runner`."""
        try:
            while (why := await self._no_room()) is not None:
                self.waiting_for = why
                await asyncio.sleep(LOOK_S)
        finally:
            self.waiting_for = None

    async def _no_room(self) -> str | None:
        """What has to happen before a group may begin; None where it may."""
        if self._missing >= self._settings.max_parallel_rollouts:
            return f"a place: {self._missing} rollouts are going on"
        if not self._config.training.enabled:
            return None
        counts = await asyncio.to_thread(self._store.rollouts.counts)
        untrained = await asyncio.to_thread(self._store.rollouts.untrained, owner_of_rollouts(self._config))
        return no_room(
            untrained=untrained,
            begun=len(self._open) * self._settings.rollouts_per_task,
            next_group=self._settings.rollouts_per_task,
            mean_turns=counts.mean_turns or 1.0,
            most=self._config.training.max_staleness * self._settings.batch_size,
        )

    def start(self, task: Task, pass_number: int, generate: GenerateFunction) -> asyncio.Task[RolloutGroup]:
        """See `Runner`."""
        group_id = group_id_of(task, pass_number)
        if group_id in self._open or group_id in self._closed:
            raise ValueError(f"the group of task {task.task_id!r}, pass {pass_number}, has begun already")
        self._open[group_id] = None
        self._missing += self._settings.rollouts_per_task
        return asyncio.create_task(self._group(task, group_id, generate))

    async def _group(self, task: Task, group_id: str, generate: GenerateFunction) -> RolloutGroup:
        known = await asyncio.to_thread(self._store.rollouts.latest, group_id)
        numbers = range(self._settings.rollouts_per_task)
        rollouts = await _all([self._one(task, group_id, number, known.get(number), generate) for number in numbers])
        group = RolloutGroup(group_id=group_id, task=task, rollouts=tuple(rollouts))
        self._open[group_id] = group
        return group

    async def _one(
        self, task: Task, group_id: str, number: int, known: RolloutRow | None, generate: GenerateFunction
    ) -> Rollout:
        """A rollout that has ended: before, or now."""
        try:
            if known is not None and not self._again(known):
                return _ended(known)
            async with self._places:
                attempt = 0 if known is None else known.attempt + 1
                return await self._make(task, group_id, number, attempt, generate)
        finally:
            self._missing -= 1

    def _again(self, known: RolloutRow) -> bool:
        return known.failure == INTERRUPTED and known.attempt + 1 < self._settings.rollout_attempts

    async def _make(
        self, task: Task, group_id: str, number: int, attempt: int, generate: GenerateFunction
    ) -> Rollout:
        name = session_name_of(group_id, number, attempt)
        await self._write(
            self._store.rollouts.begin,
            name,
            key_id=key_id_of_rollouts(self._config),
            owner=owner_of_rollouts(self._config),
            group_id=group_id,
            task_id=task.task_id,
            number=number,
            attempt=attempt,
            judged=self._settings.judge_steps,
        )
        policy, started = self._gateway.session(name), time.monotonic()
        result, failure = await self._generated(task, policy, generate)
        await self._gateway.end_session(name)
        reward, ended = (None, "") if result is None else (result.reward, result.ended)
        await self._write(
            self._store.rollouts.end,
            name,
            turn_ids=policy.turn_ids,
            reward=reward,
            ended=ended or None,
            failure=failure,
        )
        return Rollout(
            number=number,
            session_id=name,
            turn_ids=tuple(policy.turn_ids),
            reward=reward,
            ended=ended,
            failure=failure,
            seconds=time.monotonic() - started,
        )

    async def _generated(
        self, task: Task, policy: PolicySession, generate: GenerateFunction
    ) -> tuple[RolloutResult | None, str | None]:
        """What the user's function gave, or the name of what went wrong."""
        deadline = asyncio.timeout(self._settings.rollout_timeout_s)
        try:
            async with deadline:
                result = await generate(task, policy)
        except PolicyRefused as error:
            logger.warning("a rollout of task %s: %s", task.task_id, error)
            return None, f"refused_{error.code}"[:FAILURE_CHARACTERS]
        except Exception as error:  # noqa: BLE001 - the user's own code may raise anything; it is counted and told
            if isinstance(error, TimeoutError) and deadline.expired():
                return None, "deadline"
            logger.warning("a rollout of task %s: generate raised %s", task.task_id, origin_of_error(error))
            return None, f"raised_{type(error).__name__}"[:FAILURE_CHARACTERS]
        return self._checked(task, result)

    def _checked(self, task: Task, result: Any) -> tuple[RolloutResult | None, str | None]:
        if not isinstance(result, RolloutResult):
            logger.warning("a rollout of task %s returned %s, no RolloutResult", task.task_id, type(result).__name__)
            return None, "no_result"
        low, high = self._settings.reward_range
        if result.reward is not None and not low <= result.reward <= high:
            logger.warning("a reward of %g is outside rollout.reward_range %g,%g", result.reward, low, high)
            return None, "reward_out_of_range"
        return result, None

    async def close(self, group: RolloutGroup) -> None:
        """Tell every answer its reward, and let the group be trained. Doing it again changes nothing.

        Raises:
            ValueError: it is none of the groups that were begun here, or a reward was changed to what is none.
        """
        if group.group_id not in self._open:
            raise ValueError("a rollout function yields the groups that runner.start gave, each once")
        low, high = self._settings.reward_range
        for rollout in group.rollouts:
            if rollout.failure is not None or rollout.reward is None:
                continue
            if not low <= rollout.reward <= high:
                raise ValueError(f"the reward {rollout.reward} is outside rollout.reward_range {low:g},{high:g}")
            rewarded = rollout.turn_ids[-1:] if self._settings.judge_steps else rollout.turn_ids
            for turn_id in rewarded:
                if not await self._gateway.reward(rollout.session_id, turn_id, rollout.reward, (low, high)):
                    await self._write(self._store.status.count, "rollout_rewards_without_turn")
        await self._write(self._store.rollouts.close, group.group_id)
        self._forget(group.group_id)

    async def drop(self, group: RolloutGroup, reason: str) -> None:
        """See `Runner`."""
        await self._write(self._store.rollouts.close, group.group_id, dropped=reason[:FAILURE_CHARACTERS])
        self._forget(group.group_id)

    async def drop_the_rest(self) -> int:
        """Drop what was begun and neither yielded nor dropped; how many groups."""
        left = [group for group in self._open.values() if group is not None]
        for group in left:
            await self.drop(group, NOT_YIELDED)
        return len(left)

    def _forget(self, group_id: str) -> None:
        self._open.pop(group_id, None)
        self._closed.add(group_id)

    async def _write(self, method: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """One transaction, off the event loop; it is finished even where the rollout is cancelled meanwhile."""
        return await asyncio.shield(asyncio.to_thread(method, *arguments, **named))

    def details(self) -> Mapping[str, Any]:
        """For the heartbeat."""
        return {"groups_open": len(self._open), "groups_closed": len(self._closed), "rollouts_open": self._missing}


def key_of_rollouts(config: Config) -> ApiKey | None:
    """The key that rollouts are made with: the first that is trained on; None where the gateway asks for none."""
    return next((key for key in config.serving.api_keys if key.train), None)


def key_id_of_rollouts(config: Config) -> str:
    """What the record calls that key."""
    key = key_of_rollouts(config)
    return LOCAL.key_id if key is None else key_id(key.name)


def owner_of_rollouts(config: Config) -> str:
    """Whose policy makes rollouts and learns from them: that key's (`policies.per`), or the shared one."""
    key = key_of_rollouts(config)
    return key.name if config.policies.owned and key is not None else ""


def no_room(*, untrained: int, begun: int, next_group: int, mean_turns: float, most: int) -> str | None:
    """Why one more group would be stale before it is trained, or None. Pure.

    A sample that is made now is trained after `untrained` others, those of the `begun` rollouts and of its own group:
    so many batches, so many versions. `most` is `max_staleness` batches; a group that waits for nothing may be more.
    """
    ahead = untrained + round(begun * mean_turns)
    if not ahead or ahead + next_group * mean_turns <= most:
        return None
    return f"the trainer: {ahead} answers wait to be trained, and beyond {most} they would be stale by then"


def origin_of_error(error: BaseException) -> str:
    """`ValueError (mine.py:12)`: the kind of an error and where it arose, without its message, which may quote."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}{where}"


def _ended(row: RolloutRow) -> Rollout:
    failure = row.failure if row.state is RolloutState.FAILED else None
    return Rollout(
        number=row.number,
        session_id=row.session_name,
        turn_ids=row.turn_ids,
        reward=row.reward,
        ended=row.ended or "",
        failure=failure,
        seconds=(row.ended_at or row.started_at) - row.started_at,
    )


async def _all(rollouts: Sequence[Any]) -> list[Rollout]:
    """All of them; where one cannot be (the record is down), the others are cancelled."""
    tasks = [asyncio.ensure_future(one) for one in rollouts]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
