from __future__ import annotations

import torch

from openclaw_rl.config import LossConfig
from openclaw_rl.training.batch import build_batch
from openclaw_rl.types import Method
from tests.training.support import make_sample, mixed_samples, tiny_trainer


def test_signals_follow_the_method() -> None:
    samples = mixed_samples(tiny_trainer())
    rewarded, hinted = [True, True, False, True, True, False], [False, True, True, True, False, False]

    def per_sample(method: Method) -> tuple[list[bool], list[bool], list[bool]]:
        batch = build_batch(samples, method, LossConfig())
        firsts = list(batch.starts[:-1])
        return (
            batch.reward_mask[firsts].tolist(),
            batch.hint_mask[firsts].tolist(),
            (batch.weights[firsts] > 0).tolist(),
        )

    nothing = [False] * 6
    assert per_sample(Method.BINARY_RL) == (rewarded, nothing, rewarded)
    assert per_sample(Method.OPD) == (nothing, hinted, hinted)
    assert per_sample(Method.COMBINE) == (rewarded, hinted, [True, True, True, True, True, False])


def test_demonstrations_answer_the_first_prompt_and_share_the_weight_of_samples() -> None:
    samples = mixed_samples(tiny_trainer())
    off = build_batch(samples, Method.COMBINE, LossConfig(w_retry=0.0))
    assert off.demos == ()
    batch = build_batch(samples, Method.COMBINE, LossConfig(w_retry=0.5))
    assert [(d.prompt_ids, d.response_ids, d.start) for d in batch.demos] == [
        ((4, 5, 5), (3, 9, 27), 0),
        ((4, 5, 6), (8, 2), 3),
    ]
    assert (off.signals, batch.signals) == (5, 6)
    assert batch.demo_targets.tolist() == [3, 9, 27, 8, 2]
    # five samples act on the policy, so each demonstration weighs a fifth, shared by its tokens
    torch.testing.assert_close(batch.demo_weights, torch.tensor([1 / 15] * 3 + [1 / 10] * 2))


def test_old_logprobs_are_the_engines() -> None:
    trainer = tiny_trainer()
    sample = make_sample(trainer, 1)
    batch = build_batch([sample], Method.COMBINE, LossConfig())
    torch.testing.assert_close(batch.old, torch.tensor(sample.logprobs))
    assert batch.targets.tolist() == list(sample.tokens.response_ids)
