from __future__ import annotations

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from openclaw_rl.training.losses import (
    clipped_policy_loss,
    clipped_share,
    entropy,
    exact_kl,
    negative_log_likelihood,
    token_weights,
    topk_policy_loss,
)


def test_clipped_loss_by_hand() -> None:
    """Ratios 1.5, 1.5, 0.5, 0.5, 1.1 with clip 0.2 / 0.28: clipped only where that lowers the objective."""
    ratio = torch.tensor([1.5, 1.5, 0.5, 0.5, 1.1])
    old = torch.full((5,), -2.0)
    advantage = torch.tensor([1.0, -1.0, 1.0, -1.0, 2.0])
    loss = clipped_policy_loss(old + ratio.log(), old, advantage, clip_low=0.2, clip_high=0.28)
    torch.testing.assert_close(loss, -torch.tensor([1.28, -1.5, 0.5, -0.8, 2.2]))
    clipped = clipped_share(old + ratio.log(), old, advantage, clip_low=0.2, clip_high=0.28)
    assert clipped.tolist() == [True, False, False, True, False]


def test_clipped_tokens_have_no_gradient_and_the_others_the_policy_gradient() -> None:
    old = torch.full((3,), -2.0)
    logprobs = (old + torch.tensor([1.5, 0.5, 1.0]).log()).requires_grad_()
    advantage = torch.tensor([1.0, -1.0, 3.0])
    clipped_policy_loss(logprobs, old, advantage, clip_low=0.2, clip_high=0.28).sum().backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(logprobs.grad, torch.tensor([0.0, 0.0, -3.0]))


def test_an_absurd_ratio_stays_finite_and_without_advantage_is_nothing() -> None:
    logprobs = torch.tensor([-1.0], requires_grad=True)
    loss = clipped_policy_loss(logprobs, torch.tensor([-1e9]), torch.tensor([0.0]), clip_low=0.2, clip_high=0.28)
    loss.sum().backward()  # type: ignore[no-untyped-call]
    assert float(loss.detach()) == 0.0
    assert logprobs.grad is not None
    assert float(logprobs.grad) == 0.0


def test_topk_loss_by_hand() -> None:
    """Old 0.6, 0.2, tail 0.2; new 0.9, 0.05, 0.05: ratios 1.5, 0.25, 0.25, none of which the clip changes."""
    old = torch.tensor([[0.6, 0.2, 0.2]]).log()
    new = torch.tensor([[0.9, 0.05, 0.05]]).log()
    advantage = torch.tensor([[-1.0, 0.4, 1.0]])
    loss = topk_policy_loss(new, old, advantage, clip_low=0.2, clip_high=0.28)
    expected = -(0.6 * 1.5 * -1.0 + 0.2 * 0.25 * 0.4 + 0.2 * 0.25 * 1.0)
    torch.testing.assert_close(loss, torch.tensor([expected]))


def test_topk_gradient_at_the_old_policy_is_the_expected_advantage() -> None:
    """With ratio 1, d loss / d log π(v) = -π_old(v)·A(v)."""
    old = torch.tensor([[0.5, 0.3, 0.2]]).log()
    new = old.clone().requires_grad_()
    advantage = torch.tensor([[1.0, -0.5, 0.25]])
    topk_policy_loss(new, old, advantage, clip_low=0.2, clip_high=0.28).sum().backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(new.grad, torch.tensor([[-0.5, 0.15, -0.05]]))


def test_kl_and_entropy_by_hand() -> None:
    p, q = torch.tensor([[0.5, 0.25, 0.25]]), torch.tensor([[0.25, 0.25, 0.5]])
    expected = 0.5 * math.log(2) + 0.25 * math.log(0.5)
    torch.testing.assert_close(exact_kl(p.log(), q.log()), torch.tensor([expected]))
    torch.testing.assert_close(entropy(p.log()), torch.tensor([1.5 * math.log(2)]))
    assert float(exact_kl(p.log(), p.log())) == 0.0


def test_likelihood_has_no_ratio() -> None:
    logprobs = torch.tensor([-3.0, -0.5], requires_grad=True)
    negative_log_likelihood(logprobs).sum().backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(logprobs.grad, torch.tensor([-1.0, -1.0]))


def test_weights_by_hand() -> None:
    """Samples of 3, 1 and 2 tokens; the last without a signal."""
    owner = torch.tensor([0, 0, 0, 1, 2, 2])
    mask = torch.tensor([True, True, True, True, False, False])
    torch.testing.assert_close(token_weights(owner, mask, "tokens"), torch.tensor([0.25] * 4 + [0.0] * 2))
    expected = torch.tensor([1 / 6, 1 / 6, 1 / 6, 1 / 2, 0.0, 0.0])
    torch.testing.assert_close(token_weights(owner, mask, "samples"), expected)


def test_no_signal_at_all_weighs_nothing() -> None:
    owner = torch.tensor([0, 1])
    mask = torch.zeros(2, dtype=torch.bool)
    for reduction in ("tokens", "samples"):
        assert token_weights(owner, mask, reduction).tolist() == [0.0, 0.0]


@given(st.lists(st.tuples(st.integers(1, 5), st.booleans()), min_size=1, max_size=6))
def test_weights_sum_to_one_whatever_is_masked(samples: list[tuple[int, bool]]) -> None:
    owner = torch.tensor([i for i, (length, _) in enumerate(samples) for _ in range(length)])
    mask = torch.tensor([effective for length, effective in samples for _ in range(length)])
    for reduction in ("tokens", "samples"):
        weights = token_weights(owner, mask, reduction)
        torch.testing.assert_close(weights.sum(), torch.tensor(1.0 if bool(mask.any()) else 0.0))
        assert torch.count_nonzero(weights[~mask]) == 0
