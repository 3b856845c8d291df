from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from openclaw_rl.training.advantages import (
    TAIL_FLOOR,
    combine,
    on_support,
    opd_token_advantage,
    opd_topk_advantage,
    running_baseline,
)

STUDENT = torch.tensor([[0.6, 0.2, 0.15, 0.05]]).log()
TEACHER = torch.tensor([[0.1, 0.3, 0.5, 0.1]]).log()


def test_first_batch_is_measured_against_its_own_mean() -> None:
    used, following = running_baseline(None, torch.tensor([1.0, -1.0, -1.0, -1.0]), 0.9)
    assert used == pytest.approx(-0.5)
    assert following == pytest.approx(-0.5)


def test_later_batches_are_measured_against_the_past() -> None:
    used, following = running_baseline(-0.5, torch.tensor([1.0, 0.0]), 0.9)
    assert used == -0.5
    assert following == pytest.approx(0.9 * -0.5 + 0.1 * 0.5)


def test_a_batch_without_rewards_leaves_the_baseline_alone() -> None:
    assert running_baseline(None, torch.tensor([]), 0.9) == (0.0, None)
    assert running_baseline(0.25, torch.tensor([]), 0.9) == (0.25, 0.25)


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
