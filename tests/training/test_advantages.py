from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from openclaw_rl.config import LossConfig
from openclaw_rl.training.advantages import (
    EVERYBODY,
    TAIL_FLOOR,
    Rewarded,
    combine,
    group_of,
    on_support,
    opd_token_advantage,
    opd_topk_advantage,
    reward_advantages,
    rewarded,
    running_baseline,
    telling_rewards,
)
from openclaw_rl.types import Origin, Sample
from tests.training.support import make_sample, tiny_trainer

STUDENT = torch.tensor([[0.6, 0.2, 0.15, 0.05]]).log()
TEACHER = torch.tensor([[0.1, 0.3, 0.5, 0.1]]).log()


def answers(*rewards: float, groups: str = "", keys: str = "") -> list[Rewarded]:
    """One answer a reward; letters name its group ('-': none) and its key."""
    return [
        Rewarded(
            reward=reward,
            key=keys[i] if keys else EVERYBODY,
            group=groups[i] if groups and groups[i] != "-" else None,
        )
        for i, reward in enumerate(rewards)
    ]


def test_first_batch_is_measured_against_its_own_mean() -> None:
    used, following = running_baseline(None, [1.0, -1.0, -1.0, -1.0], 0.9)
    assert used == pytest.approx(-0.5)
    assert following == pytest.approx(-0.5)


def test_later_batches_are_measured_against_the_past() -> None:
    used, following = running_baseline(-0.5, [1.0, 0.0], 0.9)
    assert used == -0.5
    assert following == pytest.approx(0.9 * -0.5 + 0.1 * 0.5)


def test_no_baseline_is_the_reward_itself() -> None:
    found = reward_advantages(answers(1.0, -0.5), {"": 0.7}, LossConfig(baseline="none"))
    assert found.advantages == (1.0, -0.5)
    assert found.expected == (0.0, 0.0)
    assert found.averages == {"": 0.7}


def test_running_baseline_goes_on_from_batch_to_batch() -> None:
    config = LossConfig(baseline_decay=0.5)
    first = reward_advantages(answers(1.0, 0.0), {}, config)
    assert first.advantages == pytest.approx((0.5, -0.5))
    second = reward_advantages(answers(1.0), first.averages, config)
    assert second.advantages == pytest.approx((0.5,))
    assert second.averages == {"": pytest.approx(0.75)}


def test_a_batch_without_rewards_leaves_the_averages_alone() -> None:
    for baseline in ("running", "group"):
        found = reward_advantages([], {"": 0.25}, LossConfig(baseline=baseline))
        assert found.averages == {"": 0.25}
        assert found.advantages == ()


def test_each_key_has_its_own_average() -> None:
    """Key a is used to 0.5, b is new: its first batch is measured against its own mean of -0.5."""
    config = LossConfig(baseline="per_key", baseline_decay=0.8)
    found = reward_advantages(answers(1.0, -1.0, 0.0, keys="abb"), {"a": 0.5}, config)
    assert found.advantages == pytest.approx((0.5, -0.5, 0.5))
    assert found.averages == pytest.approx({"a": 0.8 * 0.5 + 0.2, "b": -0.5})


def test_grpo_by_hand() -> None:
    """Group x: 1, 0, -1, mean 0, standard deviation 1. Group y: 1, 0.5. z is alone: the moving average, 0.2."""
    rewards = answers(1.0, 1.0, 0.0, 0.5, -1.0, 0.8, groups="xyxyxz")
    plain = reward_advantages(rewards, {"": 0.2}, LossConfig(baseline="group"))
    assert plain.advantages == pytest.approx((1.0, 0.25, 0.0, -0.25, -1.0, 0.6))
    assert plain.expected == pytest.approx((0.0, 0.75, 0.0, 0.75, 0.0, 0.2))
    scaled = reward_advantages(rewards, {"": 0.2}, LossConfig(baseline="group", normalise="group"))
    half = 0.25 / (0.5 / math.sqrt(2))
    assert scaled.advantages == pytest.approx((1.0, half, 0.0, -half, -1.0, 0.6), rel=1e-5)


def test_answers_without_a_group_are_in_none_together() -> None:
    found = reward_advantages(answers(1.0, -1.0, groups="--"), {"": 0.5}, LossConfig(baseline="group"))
    assert found.advantages == pytest.approx((0.5, -1.5))


def test_reinforce_plus_plus_baseline_by_hand() -> None:
    """Differences to the group means are 0.5, -0.5, 0.1, -0.1; their mean is 0 and their variance 0.52 / 3."""
    config = LossConfig(baseline="group", normalise="batch")
    found = reward_advantages(answers(1.0, 0.0, 0.6, 0.4, groups="xxyy"), {}, config)
    scale = math.sqrt(0.52 / 3)
    assert found.advantages == pytest.approx((0.5 / scale, -0.5 / scale, 0.1 / scale, -0.1 / scale), rel=1e-4)
    alone = reward_advantages(answers(1.0), {"": 0.5}, LossConfig(normalise="batch"))
    assert alone.advantages == (0.5,)


@given(st.lists(st.tuples(st.floats(-1, 1), st.integers(0, 3)), min_size=1, max_size=12))
def test_group_advantages_add_up_to_nothing_within_each_group(drawn: list[tuple[float, int]]) -> None:
    rewards = [Rewarded(reward=reward, key="", group=group) for reward, group in drawn]
    found = reward_advantages(rewards, {}, LossConfig(baseline="group", normalise="group"))
    for group in {one.group for one in rewards}:
        members = [a for a, one in zip(found.advantages, rewards, strict=True) if one.group == group]
        if len(members) > 1:
            assert math.fsum(members) == pytest.approx(0.0, abs=1e-6)
            assert max(map(abs, members)) <= len(members)


def with_origin(sample: Sample, group: str | None, task: str | None, step: int, key: str = "k") -> Sample:
    origin = Origin(key_id=key, group_id=group, task_id=task, step=step)
    return dataclasses.replace(sample, origin=origin)


def test_what_a_group_is() -> None:
    trainer = tiny_trainer()
    plain = make_sample(trainer, 0)
    one = with_origin(plain, "g", "t", 2, key="anna")
    assert group_of(plain, LossConfig(baseline="group")) is None
    assert group_of(one, LossConfig(baseline="running")) is None
    assert group_of(one, LossConfig(baseline="group")) == "g"
    assert group_of(one, LossConfig(baseline="step")) == ("t", 2)
    assert group_of(with_origin(plain, None, None, 2), LossConfig(baseline="step")) is None
    assert [a.key for a in rewarded([one, plain], LossConfig(baseline="per_key"))] == ["anna", ""]
    assert [a.key for a in rewarded([one], LossConfig())] == [""]


def test_step_wise_compares_equal_steps_of_conversations_that_began_alike() -> None:
    """Two conversations of two steps: 1 and 0 at the first step, -1 and 1 at the second."""
    trainer = tiny_trainer()
    rewards = {("s1", 0): 1.0, ("s2", 0): 0.0, ("s1", 1): -1.0, ("s2", 1): 1.0}
    samples = [
        with_origin(make_sample(trainer, i, reward=reward), f"g{i}", "task", step)
        for i, ((_, step), reward) in enumerate(rewards.items())
    ]
    config = LossConfig(baseline="step")
    found = reward_advantages(rewarded(samples, config), {}, config)
    assert found.advantages == pytest.approx((0.5, -0.5, -1.0, 1.0))


def test_a_group_of_equal_rewards_says_nothing() -> None:
    trainer = tiny_trainer()
    samples = [
        with_origin(make_sample(trainer, 0, reward=1.0), "g", None, 0),
        with_origin(make_sample(trainer, 1, reward=1.0), "g", None, 0),
        with_origin(make_sample(trainer, 2, reward=1.0), "alone", None, 0),
        with_origin(make_sample(trainer, 3, reward=None, hint="hm"), "g", None, 0),
        make_sample(trainer, 4, reward=1.0),
    ]
    assert telling_rewards(samples, LossConfig(baseline="group")) == [False, False, True, False, True]
    assert telling_rewards(samples, LossConfig()) == [True, True, True, False, True]


def test_opd_token_advantage_is_the_clipped_difference() -> None:
    teacher, old = torch.tensor([-1.0, -3.0, -0.2]), torch.tensor([-1.5, -0.5, -2.2])
    torch.testing.assert_close(opd_token_advantage(teacher, old, 1.0), torch.tensor([0.5, -1.0, 1.0]))
    torch.testing.assert_close(opd_token_advantage(teacher, old, 9.0), torch.tensor([0.5, -2.5, 2.0]))


def test_combine_adds_each_term_only_where_it_exists() -> None:
    yes, no = True, False
    advantage = combine(
        torch.tensor([1.0, 1.0, math.nan, math.nan]),
        torch.tensor([yes, yes, no, no]),
        torch.tensor([0.5, math.nan, 0.5, math.inf]),
        torch.tensor([yes, no, yes, no]),
        w_rl=2.0,
        w_opd=0.5,
    )
    torch.testing.assert_close(advantage, torch.tensor([2.25, 2.0, 0.25, 0.0]))


def test_topk_by_hand() -> None:
    """Support of the student {0, 1}, tail 0.2; the teacher there 0.1, 0.3, tail 0.6."""
    support = opd_topk_advantage(STUDENT, TEACHER, 2, 1.0)
    assert support.ids.tolist() == [[0, 1]]
    torch.testing.assert_close(support.old.exp(), torch.tensor([[0.6, 0.2, 0.2]]))
    # log(0.1/0.6) = -1.79 and log(0.6/0.2) = 1.10 are clipped, log(0.3/0.2) = 0.405 is not
    torch.testing.assert_close(support.advantage, torch.tensor([[-1.0, math.log(1.5), 1.0]]))


def test_a_tail_of_nothing_is_finite() -> None:
    sure = torch.tensor([[0.0, -200.0, -200.0]])
    entries = on_support(sure, torch.tensor([[0]]))
    torch.testing.assert_close(entries, torch.tensor([[0.0, math.log(TAIL_FLOOR)]]))


@given(st.integers(1, 7), st.integers(0, 2**31 - 1))
def test_support_is_a_distribution_and_an_equal_teacher_has_no_advantage(k: int, seed: int) -> None:
    logits = torch.randn(3, 8, generator=torch.Generator().manual_seed(seed))
    logprobs = logits.log_softmax(-1)
    support = opd_topk_advantage(logprobs, logprobs, k, 1.0)
    torch.testing.assert_close(support.old.exp().sum(-1), torch.ones(3))
    assert torch.count_nonzero(support.advantage) == 0
    assert bool((support.old[:, :-1].diff(dim=-1) <= 0).all())
