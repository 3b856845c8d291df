from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from openclaw_rl.config import LossConfig
from openclaw_rl.training.batch import MAX_PADDING, TokenSequence, build_batch, plan_micro_batches
from openclaw_rl.types import Method
from tests.training.support import make_sample, mixed_samples, tiny_trainer


def sequences(lengths: list[tuple[int, int]]) -> list[TokenSequence]:
    found, start = [], 0
    for i, (prompt, response) in enumerate(lengths):
        ids = tuple(range(10 * i + 1, 10 * i + 1 + prompt + response))
        found.append(TokenSequence(prompt_ids=ids[:prompt], response_ids=ids[prompt:], start=start))
        start += response
    return found


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(1, 9)), min_size=1, max_size=9), st.integers(8, 90))
def test_every_response_token_is_read_once_from_the_position_before_it(
    lengths: list[tuple[int, int]], budget: int
) -> None:
    given_sequences = sequences(lengths)
    flat_targets = torch.tensor([token for s in given_sequences for token in s.response_ids])
    micros = plan_micro_batches(given_sequences, budget)
    seen = torch.cat([micro.flat for micro in micros])
    assert sorted(seen.tolist()) == list(range(len(flat_targets)))
    for micro in micros:
        following = micro.input_ids[micro.rows, micro.columns + 1]
        assert following.tolist() == flat_targets[micro.flat].tolist()
        rows = micro.input_ids.shape[0]
        assert rows == 1 or micro.padded_tokens <= budget


def test_padding_stays_small() -> None:
    micros = plan_micro_batches(sequences([(600, 9), (20, 3), (22, 3), (580, 9), (21, 2)]), 4096)
    assert [micro.input_ids.shape[0] for micro in micros] == [2, 3]
    for micro in micros:
        real = int((micro.input_ids != 0).sum())
        assert 1 - real / micro.padded_tokens <= MAX_PADDING


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
