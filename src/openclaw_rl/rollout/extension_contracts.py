"""What code of the user's own is given, and what it gives back, where it makes rollouts: the typed contracts.

    generate(task, policy)            one rollout: talks to the policy, calls tools or an environment, says a reward
    rollout(tasks, generate, runner)  which rollouts there are: an async generator of groups, each trained as one

`rollout.custom_generate_function_path` names the first, `rollout.rollout_function_path` the second; ours is
`openclaw_rl.rollout.run_tasks.run_tasks`. Both run in a process of their own, the driver, over the public API: a turn
of a rollout is recorded, judged and trained as any other.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from openclaw_rl.types import Message


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """Something to be tried: a line of `rollout.tasks`.

    `messages` are how its conversation begins, `tools` those that the policy may call, as the chat API has them.
    `metadata` is the user's own: a right answer, a seed of an environment. `digest` tells one content from another.
    """

    task_id: str
    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    digest: str

    def __post_init__(self) -> None:
        if not self.messages:
            raise ValueError("a task has at least one message")


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What the policy answered: the message to put into the conversation, and the turn that it is in the record.

    `finish_reason` is `stop`, `length` or `tool_calls`; `version` is the policy version that answered.
    """

    turn_id: str
    message: Message
    finish_reason: str
    version: int
    prompt_tokens: int
    completion_tokens: int

    @property
    def text(self) -> str:
        """Its text; empty where it only calls tools."""
        return self.message.get("content") or ""

    @property
    def tool_calls(self) -> Sequence[Mapping[str, Any]]:
        """Its tool calls, each with `id` and `function` (`name`, `arguments` as JSON text)."""
        return self.message.get("tool_calls") or ()


class Policy(Protocol):
    """The policy as one rollout sees it. All its answers are turns of one session, recorded token by token."""

    @property
    def session_id(self) -> str:
        """The session's name."""
        ...

    async def chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        temperature: float = 1.0,
        max_tokens: int | None = None,
        seed: int | None = None,
    ) -> Answer:
        """Answer a conversation. A later call repeats the earlier messages and answers, as every chat client does.

        Waits while the gateway is busy or away, as long as the rollout has time. What is drawn at a temperature below
        0.01 is not learned from.

        Raises:
            PolicyRefused: the gateway will not answer this request, now or later.
        """
        ...


class PolicyRefused(Exception):
    """The gateway refused a request of a rollout, and would again; `code` is its error code."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, kw_only=True, slots=True)
class RolloutResult:
    """How a rollout ended: its reward, within `rollout.reward_range`, or None where nobody can say; and why."""

    reward: float | None
    ended: str = "done"

    def __post_init__(self) -> None:
        number = isinstance(self.reward, int | float) and not isinstance(self.reward, bool)
        if self.reward is not None and not (number and math.isfinite(self.reward)):
            raise ValueError(f"a reward is a finite number or None, got {self.reward!r}")
        if not self.ended:
            raise ValueError("say why the rollout ended, in a word")


class GenerateFunction(Protocol):
    """Makes one rollout of a task. Awaits whatever takes time: what it blocks, blocks its siblings."""

    async def __call__(self, task: Task, policy: Policy) -> RolloutResult:
        """Talk to the policy until the task is done."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Rollout:
    """One of a group's rollouts, ended. `turn_ids` are its answers, in order.

    `failure` says why it has no result (None: it has one): `deadline`, `raised_ValueError`, `refused_…`,
    `interrupted`, `no_result`, `reward_out_of_range`. What failed is never trained.
    """

    number: int
    session_id: str
    turn_ids: tuple[str, ...]
    reward: float | None
    ended: str
    failure: str | None
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class RolloutGroup:
    """The rollouts of one task, which are compared with one another."""

    group_id: str
    task: Task
    rollouts: tuple[Rollout, ...]

    @property
    def rewards(self) -> list[float]:
        """Those that there are."""
        return [rollout.reward for rollout in self.rollouts if rollout.failure is None and rollout.reward is not None]

    @property
    def tells_nothing(self) -> bool:
        """Whether there are rewards and they are all the same: nobody did better than another."""
        return len(set(self.rewards)) == 1 and len(self.rewards) > 1


class Runner(Protocol):
    """What a rollout function has to work with. It remembers across restarts what is done."""

    @property
    def compares(self) -> bool:
        """Whether the trainer compares the rollouts of a group (`training.loss.baseline` is `group` or `step`)."""
        ...

    def todo(self, tasks: Sequence[Task]) -> Sequence[tuple[Task, int]]:
        """Tasks whose group is not closed yet, each with the number of the pass over the file (`rollout.passes`)."""
        ...

    async def room(self) -> None:
        """Wait until one more group may begin: a place is free, and it would not be stale before it is trained."""
        ...

    def start(self, task: Task, pass_number: int, generate: GenerateFunction) -> asyncio.Task[RolloutGroup]:
        """Begin the `rollout.rollouts_per_task` rollouts of a task; what had ended before is not made again."""
        ...

    async def drop(self, group: RolloutGroup, reason: str) -> None:
        """Close a group without training it; `reason` is a word that is counted."""
        ...


class RolloutFunction(Protocol):
    """Decides which rollouts there are. Each group that it yields is closed: its rewards count, and it is trained.

    It may yield a changed one (`dataclasses.replace`): a reward of its own for each rollout. A group that it neither
    yields nor drops is dropped when it ends.
    """

    def __call__(
        self, tasks: Sequence[Task], generate: GenerateFunction, runner: Runner
    ) -> AsyncIterator[RolloutGroup]:
        """The groups, each as soon as it is complete."""
        ...
