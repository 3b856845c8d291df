from __future__ import annotations

import math
from typing import Any, Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from openclaw_rl.training.losses import (
    cispo_loss,
    clipped_policy_loss,
    clipped_share,
    entropy,
    estimated_kl,
    exact_kl,
    importance_sampling_loss,
    mean_per_sequence,
    mismatch_weight,
    negative_log_likelihood,
    policy_ratio,
    sequence_ratio,
    token_weights,
    topk_policy_loss,
)


def test_clipped_loss_by_hand() -> None:
    """Ratios 1.5, 1.5, 0.5, 0.5, 1.1 with clip 0.2 / 0.28: clipped only where that lowers the objective."""
    ratio = torch.tensor([1.5, 1.5, 0.5, 0.5, 1.1])
    old = torch.full((5,), -2.0)
    advantage = torch.tensor([1.0, -1.0, 1.0, -1.0, 2.0])
    ratio = policy_ratio(old + ratio.log(), old)
    loss = clipped_policy_loss(ratio, advantage, clip_low=0.2, clip_high=0.28)
    torch.testing.assert_close(loss, -torch.tensor([1.28, -1.5, 0.5, -0.8, 2.2]))
    clipped = clipped_share(ratio, advantage, clip_low=0.2, clip_high=0.28)
    assert clipped.tolist() == [True, False, False, True, False]


def test_clipped_tokens_have_no_gradient_and_the_others_the_policy_gradient() -> None:
    old = torch.full((3,), -2.0)
    logprobs = (old + torch.tensor([1.5, 0.5, 1.0]).log()).requires_grad_()
    advantage = torch.tensor([1.0, -1.0, 3.0])
    loss = clipped_policy_loss(policy_ratio(logprobs, old), advantage, clip_low=0.2, clip_high=0.28)
    loss.sum().backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(logprobs.grad, torch.tensor([0.0, 0.0, -3.0]))


def test_an_absurd_ratio_stays_finite_and_without_advantage_is_nothing() -> None:
    logprobs = torch.tensor([-1.0], requires_grad=True)
    ratio = policy_ratio(logprobs, torch.tensor([-1e9]))
    loss = clipped_policy_loss(ratio, torch.tensor([0.0]), clip_low=0.2, clip_high=0.28)
    loss.sum().backward()  # type: ignore[no-untyped-call]
    assert float(loss.detach()) == 0.0
    assert logprobs.grad is not None
    assert float(logprobs.grad) == 0.0


def test_dual_clip_bounds_a_bad_token_that_has_become_likely() -> None:
    """A = -1: at ratio 5 the loss would be 5; with c = 3 it is 3, without gradient. Good tokens are not bounded."""
    old = torch.full((4,), -2.0)
    logprobs = (old + torch.tensor([5.0, 2.0, 5.0, 0.5]).log()).requires_grad_()
    advantage = torch.tensor([-1.0, -1.0, 1.0, -1.0])
    loss = clipped_policy_loss(policy_ratio(logprobs, old), advantage, clip_low=0.2, clip_high=0.28, dual_clip=3.0)
    torch.testing.assert_close(loss, torch.tensor([3.0, 2.0, -1.28, 0.8]))
    loss.sum().backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(logprobs.grad, torch.tensor([0.0, 2.0, 0.0, 0.0]))


def test_cispo_clips_the_weight_and_never_the_gradient() -> None:
    """Ratios 1.5, 0.5, 1.1 become weights 1.28, 0.8, 1.1: d loss / d log π = -w·A at every token."""
    old = torch.full((3,), -2.0)
    logprobs = (old + torch.tensor([1.5, 0.5, 1.1]).log()).requires_grad_()
    advantage = torch.tensor([1.0, -1.0, 2.0])
    loss = cispo_loss(logprobs, policy_ratio(logprobs, old), advantage, clip_low=0.2, clip_high=0.28)
    torch.testing.assert_close(loss, -torch.tensor([1.28, 0.8, 1.1]) * advantage * logprobs.detach())
    loss.sum().backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(logprobs.grad, torch.tensor([-1.28, 0.8, -2.2]))


def test_importance_sampling_is_the_ratio_as_it_is() -> None:
    old = torch.tensor([-2.0, -2.0])
    logprobs = (old + torch.tensor([4.0, 0.25]).log()).requires_grad_()
    loss = importance_sampling_loss(policy_ratio(logprobs, old), torch.tensor([1.0, -2.0]))
    torch.testing.assert_close(loss, torch.tensor([-4.0, 0.5]))
    loss.sum().backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(logprobs.grad, torch.tensor([-4.0, 0.5]))


def test_gspo_by_hand() -> None:
    """An answer with log-ratios 0.3 and -0.1 has s = e^0.1 at both tokens; one token alone has its own ratio.

    The mean over the tokens of s_t·A has the gradient of s·A with s one number: `s·A / |y|` at each token.
    """
    owner = torch.tensor([0, 0, 2])
    old = torch.tensor([-1.0, -2.0, -1.5])
    logprobs = (old + torch.tensor([0.3, -0.1, 0.5])).requires_grad_()
    mean = mean_per_sequence((logprobs - old).detach(), owner)
    torch.testing.assert_close(mean, torch.tensor([0.1, 0.1, 0.5]))
    ratio = sequence_ratio(logprobs, mean)
    torch.testing.assert_close(ratio, torch.tensor([math.exp(0.1), math.exp(0.1), math.exp(0.5)]))
    advantage = torch.tensor([2.0, 2.0, 1.0])
    loss = clipped_policy_loss(ratio, advantage, clip_low=0.2, clip_high=0.28)
    torch.testing.assert_close(loss, -torch.tensor([2 * math.exp(0.1), 2 * math.exp(0.1), 1.28]))
    (loss * token_weights(owner, torch.ones(3, dtype=torch.bool), "samples")).sum().backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(logprobs.grad, torch.tensor([-math.exp(0.1) / 2, -math.exp(0.1) / 2, 0.0]))

    whole = (old + torch.tensor([0.3, -0.1, 0.5])).requires_grad_()
    one_number = (whole - old)[:2].mean().exp() * 2.0
    (-one_number / 2).backward()  # type: ignore[no-untyped-call]
    assert whole.grad is not None
    assert logprobs.grad is not None
    torch.testing.assert_close(logprobs.grad[:2], whole.grad[:2])


@given(st.lists(st.integers(1, 4), min_size=1, max_size=5), st.randoms(use_true_random=False))
def test_gspo_can_be_cut_anywhere(lengths: list[int], random: Any) -> None:
    """The sequence's ratio is known beforehand, so the gradients of pieces add up to that of the whole."""
    owner = torch.tensor([i for i, length in enumerate(lengths) for _ in range(length)])
    old = torch.tensor([random.uniform(-3, -1) for _ in owner])
    logprobs = old + torch.tensor([random.uniform(-0.5, 0.5) for _ in owner])
    mean = mean_per_sequence(logprobs - old, owner)
    advantage = torch.tensor([random.uniform(-1, 1) for _ in owner])
    cut = random.randint(0, len(owner))
    grads = []
    for pieces in ([slice(0, len(owner))], [slice(0, cut), slice(cut, len(owner))]):
        leaf = logprobs.clone().requires_grad_()
        for piece in pieces:
            ratio = sequence_ratio(leaf[piece], mean[piece])
            clipped_policy_loss(ratio, advantage[piece], clip_low=0.1, clip_high=0.1).sum().backward()  # type: ignore[no-untyped-call]
        grads.append(leaf.grad)
    torch.testing.assert_close(*grads)


def test_mismatch_weights_by_hand() -> None:
    """Trainer over engine 4, 1.5, 0.25, 1: cut at 2; left out beyond 0.5 to 3; both."""
    engine = torch.full((4,), -3.0)
    trainer = (engine + torch.tensor([4.0, 1.5, 0.25, 1.0]).log()).requires_grad_()
    cut = mismatch_weight(trainer, engine, cap=2.0, low=None, high=None)
    torch.testing.assert_close(cut, torch.tensor([2.0, 1.5, 0.25, 1.0]))
    assert not cut.requires_grad
    band = mismatch_weight(trainer, engine, cap=None, low=0.5, high=3.0)
    torch.testing.assert_close(band, torch.tensor([0.0, 1.5, 0.0, 1.0]))
    both = mismatch_weight(trainer, engine, cap=1.2, low=0.5, high=3.0)
    torch.testing.assert_close(both, torch.tensor([0.0, 1.2, 0.0, 1.0]))


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


def test_kl_estimates_by_hand() -> None:
    """π(a) = 0.5, π_ref(a) = 0.25: d = log 2."""
    logprobs, reference = torch.tensor([0.5]).log(), torch.tensor([0.25]).log()
    one = torch.ones(1)
    d = math.log(2)
    torch.testing.assert_close(estimated_kl("k1", logprobs, reference, one), torch.tensor([d]))
    torch.testing.assert_close(estimated_kl("k2", logprobs, reference, one), torch.tensor([d * d / 2]))
    torch.testing.assert_close(estimated_kl("k3", logprobs, reference, one), torch.tensor([0.5 - 1 + d]))
    assert float(estimated_kl("k3", logprobs, logprobs, one)) == 0.0


@pytest.mark.parametrize("kind", ["k1", "k2"])
def test_the_gradient_of_the_estimates_is_on_average_that_of_the_exact_kl(kind: Literal["k1", "k2"]) -> None:
    """The expectation over the policy's own tokens, taken exactly over a vocabulary of 5. The plain `d` has none."""
    logits = torch.tensor([0.3, -1.0, 0.8, 0.1, -0.4], requires_grad=True)
    reference = torch.tensor([1.0, 0.2, -0.5, 0.0, 0.4]).log_softmax(-1)
    own = logits.log_softmax(-1)
    (exact,) = torch.autograd.grad(
        exact_kl(own.unsqueeze(0), reference.unsqueeze(0)).sum(), logits, retain_graph=True
    )
    estimate = estimated_kl(kind, own, reference, policy_ratio(own, own.detach()))
    (found,) = torch.autograd.grad((own.detach().exp() * estimate).sum(), logits, retain_graph=True)
    torch.testing.assert_close(found, exact)
    (plain,) = torch.autograd.grad((own.detach().exp() * (own - reference)).sum(), logits)
    torch.testing.assert_close(plain, torch.zeros(5))


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
