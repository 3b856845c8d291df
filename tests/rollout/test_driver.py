"""The driver over a real gateway: groups reach the trainer whole, failures are counted, kills are survived."""

from __future__ import annotations

import asyncio
import statistics
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.config import LossConfig
from openclaw_rl.rollout.driver import Driver
from openclaw_rl.rollout.extension_contracts import (
    GenerateFunction,
    Policy,
    RolloutFunction,
    RolloutGroup,
    RolloutResult,
    Runner,
    Task,
)
from openclaw_rl.rollout.loop import run_pass
from openclaw_rl.rollout.run_tasks import run_tasks
from openclaw_rl.rollout.tasks import parse_task
from openclaw_rl.store import Store
from openclaw_rl.training.advantages import Rewarded, reward_advantages, rewarded, telling_rewards
from openclaw_rl.types import LoopName, Sample
from tests.gateway.conftest import Gateway, running, wait_until

TASKS = [parse_task(f'{{"id": "{name}", "prompt": "Say {name}."}}') for name in ("tide", "fuse")]
GRPO = LossConfig(baseline="group", normalise="group")
REWARDS = (1.0, 0.5, 0.0, -0.5)


@contextmanager
def gateway(run_dir: Path, **rollout: Any) -> Iterator[Gateway]:
    with running(run_dir, rollout={"tasks": "unused", "custom_generate_function_path": "un:used", **rollout}) as one:
        yield one


@contextmanager
def driving(
    gateway: Gateway, generate: GenerateFunction, function: RolloutFunction = run_tasks, tasks: Sequence[Task] = TASKS
) -> Iterator[None]:
    """The driver at work on a thread, told to stop at the end of the block; what it raises fails the test."""
    stop, failures = threading.Event(), []

    def work() -> None:
        try:
            Driver(gateway.config, gateway.store, stop, tasks=tasks, function=function, generate=generate).run()
        except BaseException as error:  # noqa: BLE001 - the test fails with it, on its own thread
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(20)
    assert not thread.is_alive()
    assert not failures, failures


def groups(store: Store, **wanted: int) -> Callable[[], bool]:
    return lambda: store.rollouts.counts().groups == wanted


def drive(gateway: Gateway, generate: GenerateFunction, function: RolloutFunction = run_tasks, **wanted: int) -> None:
    with driving(gateway, generate, function):
        wait_until(groups(gateway.store, **wanted), 30)


def counters(store: Store) -> dict[str, int]:
    return dict(store.status.counts().counters)


def numbered(then: Callable[[Task, int, Policy], Any]) -> GenerateFunction:
    """A generate function that knows how many were made of its task before."""
    made: Counter[str] = Counter()

    async def generate(task: Task, policy: Policy) -> RolloutResult:
        number = made[task.task_id]
        made[task.task_id] += 1
        result = await then(task, number, policy)
        assert isinstance(result, RolloutResult)
        return result

    return generate


async def two_answers_if_odd(task: Task, number: int, policy: Policy) -> RolloutResult:
    first = await policy.chat(task.messages)
    if number % 2:
        more = [*task.messages, first.message, {"role": "user", "content": "And once more."}]
        second = await policy.chat(more, temperature=0.7, max_tokens=30)
        assert second.turn_id != first.turn_id
    return RolloutResult(reward=REWARDS[number], ended="said")


def claimed(gateway: Gateway, size: int) -> list[Sample]:
    run_pass(gateway.store, gateway.config, time.time())
    return gateway.store.samples.claim(size, 60.0)


def test_a_group_of_four_has_group_normalised_advantages_in_the_trainer(tmp_path: Path) -> None:
    with gateway(tmp_path) as living:
        drive(living, numbered(two_answers_if_odd), rewarded=2)
        samples = claimed(living, 99)
        assert len(samples) == 2 * (1 + 2 + 1 + 2)
        assert all(telling_rewards(samples, GRPO))
        compared = reward_advantages(rewarded(samples, GRPO), {}, GRPO)
        mean, deviation = statistics.fmean(REWARDS), statistics.stdev(REWARDS)
        for sample, advantage in zip(samples, compared.advantages, strict=True):
            assert sample.reward is not None
            assert advantage == pytest.approx((sample.reward - mean) / (deviation + 1e-6))
        assert sorted(Counter(sample.reward for sample in samples).items()) == [
            (-0.5, 4),
            (0.0, 2),
            (0.5, 4),
            (1.0, 2),
        ]
        assert len({sample.origin.group_id for sample in samples if sample.origin}) == 2
        assert len({sample.origin.rollout for sample in samples if sample.origin}) == 8
        last = next(one for one in samples if len(one.messages) == 3)
        assert (last.sampling.temperature, last.sampling.max_tokens) == (0.7, 30)


def test_a_batch_holds_whole_groups(tmp_path: Path) -> None:
    with gateway(tmp_path, rollouts_per_task=3) as living:
        drive(living, numbered(two_answers_if_odd), rewarded=2)
        run_pass(living.store, living.config, time.time())
        first = living.store.samples.claim(7, 60.0)
        assert len(first) == 4  # 1 + 2 + 1 answers of one task; three of the other would be a part of it
        assert len({sample.origin.group_id for sample in first if sample.origin}) == 1
        assert len(living.store.samples.claim(3, 60.0)) == 3  # a group that is more than a batch


def test_nothing_is_trained_before_its_group_is_complete(tmp_path: Path) -> None:
    complete = threading.Event()

    async def the_last_waits(task: Task, number: int, policy: Policy) -> RolloutResult:
        await policy.chat(task.messages)
        if number == 3:
            await asyncio.to_thread(complete.wait, 20)
        return RolloutResult(reward=REWARDS[number])

    with gateway(tmp_path) as living, driving(living, numbered(the_last_waits), tasks=TASKS[:1]):
        wait_until(lambda: living.store.rollouts.counts().rollouts == {"finished": 3, "running": 1}, 20)
        assert claimed(living, 99) == []
        complete.set()
        wait_until(groups(living.store, rewarded=1), 20)
        assert len(claimed(living, 99)) == 4


def test_a_kill_repeats_what_was_cut_off_and_nothing_else(tmp_path: Path) -> None:
    made: Counter[str] = Counter()

    async def two_hang(task: Task, number: int, policy: Policy) -> RolloutResult:
        await policy.chat(task.messages)
        made["begun"] += 1
        if number in {2, 3}:
            await asyncio.Event().wait()
        return RolloutResult(reward=REWARDS[number % 4])

    with gateway(tmp_path) as living:
        generate = numbered(two_hang)
        with driving(living, generate, tasks=TASKS[:1]):
            wait_until(
                lambda: made["begun"] == 4 and living.store.rollouts.counts().rollouts.get("finished") == 2, 20
            )
        with driving(living, generate, tasks=TASKS[:1]):
            wait_until(groups(living.store, rewarded=1), 20)
        assert made["begun"] == 6
        assert counters(living.store)["rollouts_failed_interrupted"] == 2
        assert len(claimed(living, 99)) == 4
        assert counters(living.store)["turns_excluded_rollout_failed"] == 2
        with driving(living, generate, tasks=TASKS[:1]):  # done is done
            wait_until(lambda: "nothing more" in driver_says(living), 20)
        assert made["begun"] == 6


def driver_says(gateway: Gateway) -> str:
    said = [one for one in gateway.store.status.loops() if one.loop is LoopName.DRIVER]
    return (said[0].waiting_for or said[0].activity) if said else ""


def test_failures_have_names_and_are_never_trained(tmp_path: Path) -> None:
    async def fail(task: Task, number: int, policy: Policy) -> Any:
        await policy.chat(task.messages)
        if number == 0:
            raise KeyError("mine")
        if number == 1:
            await asyncio.sleep(30)
        if number == 2:
            await policy.chat([{"role": "nobody", "content": "x"}])
        return RolloutResult(reward=5.0)

    with gateway(tmp_path, rollout_timeout_s=1.0) as living:
        with driving(living, numbered(fail), tasks=TASKS[:1]):
            wait_until(groups(living.store, rewarded=1), 20)
        found = {
            name: number for name, number in counters(living.store).items() if name.startswith("rollouts_failed")
        }
        refused = next(name for name in found if "refused" in name)
        assert found == {
            "rollouts_failed_raised_KeyError": 1,
            "rollouts_failed_deadline": 1,
            refused: 1,
            "rollouts_failed_reward_out_of_range": 1,
        }
        assert claimed(living, 99) == []
        assert counters(living.store)["turns_excluded_rollout_failed"] == 4


def test_a_group_that_tells_nothing_takes_no_place_where_rewards_are_compared(tmp_path: Path) -> None:
    async def always_right(task: Task, number: int, policy: Policy) -> RolloutResult:
        await policy.chat(task.messages)
        return RolloutResult(reward=1.0 if task.task_id == "tide" else REWARDS[number])

    with gateway(tmp_path) as living:
        compares = living.config.training.model_copy(update={"loss": GRPO})
        living.config = living.config.model_copy(update={"training": compares})
        drive(living, numbered(always_right), dropped=1, rewarded=1)
        assert len(claimed(living, 99)) == 4
        assert counters(living.store)["rollout_groups_dropped_constant"] == 1
        assert counters(living.store)["turns_excluded_rollout_dropped"] == 4


def test_with_a_policy_for_each_key_rollouts_are_their_keys(tmp_path: Path) -> None:
    keys = [{"name": "phone", "key": "p", "train": False}, {"name": "tasks", "key": "t"}]
    settings = {"tasks": "unused", "custom_generate_function_path": "un:used"}
    with running(tmp_path, rollout=settings, policies={"per": "key"}, api_keys=keys) as living:
        drive(living, numbered(two_answers_if_odd), rewarded=2)
        assert claimed(living, 99) == []
        assert [(one.owner, one.count) for one in living.store.samples.ready_owners(4)] == [("tasks", 12)]
        assert living.store.rollouts.untrained("tasks") == 12
        assert len(living.store.samples.claim(99, 60.0, "tasks")) == 12


def test_a_session_of_another_key_that_has_a_rollouts_name_is_none(tmp_path: Path) -> None:
    """Whoever guesses the name of a rollout's session gets neither its group nor its place in the training."""
    settings = {"tasks": "unused", "custom_generate_function_path": "un:used"}
    keys = [{"name": "tasks", "key": "t"}, {"name": "phone", "key": "p"}]
    intruders: list[str] = []
    with running(tmp_path, rollout=settings, api_keys=keys) as living:

        async def joined_by_another(task: Task, number: int, policy: Policy) -> RolloutResult:
            answer = await policy.chat(task.messages)
            headers = {"Authorization": "Bearer p", "X-Session-Id": policy.session_id}
            body = {"model": "policy", "messages": list(task.messages)}
            other = await asyncio.to_thread(living.post, body, headers=headers)
            intruders.append(other.headers["x-turn-id"])
            assert answer.turn_id != intruders[-1]
            return RolloutResult(reward=REWARDS[number])

        with driving(living, numbered(joined_by_another), tasks=TASKS[:1]):
            wait_until(groups(living.store, rewarded=1), 30)
        sessions = {turn.request.session_id for turn in map(living.store.turns.get, intruders) if turn is not None}
        assert len(sessions) == 4
        assert living.store.rollouts.group_of_sessions(sessions) == {}
        samples = claimed(living, 99)
        assert len(samples) == 4
        assert not {sample.turn_id for sample in samples} & set(intruders)


async def halved(tasks: Sequence[Task], generate: GenerateFunction, runner: Runner) -> AsyncIterator[RolloutGroup]:
    """Of two tasks, one is forgotten, and the other's rewards are halved."""
    groups = [runner.start(task, number, generate) for task, number in runner.todo(tasks)]
    first, *_ = [await group for group in groups]
    yield replace(first, rollouts=tuple(replace(one, reward=(one.reward or 0.0) / 2) for one in first.rollouts))


def test_a_rollout_function_may_change_rewards_and_what_it_forgets_is_dropped(tmp_path: Path) -> None:
    with gateway(tmp_path) as living:
        drive(living, numbered(two_answers_if_odd), halved, dropped=1, rewarded=1)
        samples = claimed(living, 99)
        assert {sample.reward for sample in samples} == {one / 2 for one in REWARDS}
        assert counters(living.store)["rollout_groups_dropped_not_yielded"] == 1


def test_the_answers_of_a_long_rollout_weigh_as_much_as_a_short_one() -> None:
    long = [Rewarded(reward=1.0, key="", group="g", rollout="a") for _ in range(3)]
    short = [Rewarded(reward=-1.0, key="", group="g", rollout="b")]
    compared = reward_advantages([*long, *short], {}, LossConfig(baseline="group"))
    assert compared.advantages == (1.0, 1.0, 1.0, -1.0)
    alone = reward_advantages(long, {"": 0.25}, LossConfig(baseline="group"))
    assert alone.expected == (0.25, 0.25, 0.25)
