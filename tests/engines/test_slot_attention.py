"""One pass over many slots attends as each sequence would alone."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from openclaw_rl.serving.engines.embedded.cache import KvShape, Slot, SlotPool
from openclaw_rl.serving.engines.embedded.slot_attention import PackedStep, segments_of, slot_attention

SHAPE = KvShape(layers=2, kv_heads=2, head_dim=4, groups=3, dtype=torch.float32, device=torch.device("cpu"))


class Layer(nn.Module):
    layer_idx = 1


def pool_with(*lengths: int) -> SlotPool:
    """Slots that hold random keys and values; behind them lies what would spoil any sum."""
    pool = SlotPool(SHAPE, len(lengths))
    for slot, length in zip(pool.slots, lengths, strict=True):
        slot.reserve(length)
    pool.memory.kv.fill_(math.nan)
    for slot, length in zip(pool.slots, lengths, strict=True):
        slot.kv[:, :length].normal_()
        slot.tokens = list(range(length))
    return pool


def alone(slot: Slot, past: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """By the definition of attention: [length, heads, head_dim] for new tokens behind the `past` of a slot."""
    keys = torch.cat([slot.kv[1, :past, 0].transpose(0, 1), key], dim=1).repeat_interleave(SHAPE.groups, dim=0)
    values = torch.cat([slot.kv[1, :past, 1].transpose(0, 1), value], dim=1).repeat_interleave(SHAPE.groups, dim=0)
    scores = query @ keys.transpose(1, 2) / math.sqrt(SHAPE.head_dim)
    hidden = torch.ones(scores.shape[1:], dtype=torch.bool).triu(past + 1)
    return (scores.masked_fill(hidden, -torch.inf).softmax(-1) @ values).transpose(0, 1)


@pytest.mark.parametrize(
    ("held", "pieces", "calls"),
    [
        ((5, 6, 7), [(0, 1), (1, 1), (2, 1)], 1),
        ((5, 6, 7), [(2, 1), (0, 1), (1, 1)], 1),
        ((5, 5, 5), [(0, 1), (1, 1), (2, 1)], 1),
        ((5, 6, 7, 8), [(0, 1), (2, 1), (3, 1)], 2),  # a gap
        ((2, 90, 80), [(0, 1), (1, 1), (2, 1)], 2),  # a short one beside long ones
        ((5, 0, 7), [(0, 1), (1, 4), (2, 3)], 3),  # pieces of prompts
        ((300, 250, 260), [(0, 1), (1, 1), (2, 9)], 2),
    ],
)
def test_a_pass_attends_as_each_sequence_alone(
    held: tuple[int, ...], pieces: list[tuple[int, int]], calls: int
) -> None:
    torch.manual_seed(0)
    pool = pool_with(*held)
    segments = segments_of([(pool.slots[slot], length) for slot, length in pieces])
    step = PackedStep(segments, SHAPE)
    assert len(step.attended) == calls
    tokens = sum(length for _, length in pieces)
    query, key, value = (torch.randn(1, heads, tokens, SHAPE.head_dim) for heads in (6, 2, 2))
    step.update(key, value, 1)
    output, _ = slot_attention(Layer(), query, key, value, None, packed_step=step)
    for s in segments:
        new = slice(s.begin, s.begin + s.length)
        expected = alone(s.slot, s.past, query[0, :, new], key[0, :, new], value[0, :, new])
        assert torch.allclose(output[0, new], expected, atol=1e-6)
        assert torch.equal(s.slot.kv[1, s.past : s.end, 0], key[0, :, new].transpose(0, 1))


def test_what_a_spoiled_sequence_left_is_multiplied_with_nothing() -> None:
    pool = pool_with(3, 9)
    pool.slots[0].make_finite(10)
    pool.slots[0].kv[:, 5:] = math.nan  # a broken adapter's
    pool.slots[0].clear()
    pool.slots[0].tokens = [1, 2, 3]
    step = PackedStep(segments_of([(slot, 1) for slot in pool.slots]), SHAPE)
    query, key, value = (torch.randn(1, heads, 2, SHAPE.head_dim) for heads in (6, 2, 2))
    step.update(key, value, 1)
    output, _ = slot_attention(Layer(), query, key, value, None, packed_step=step)
    assert bool(torch.isfinite(output).all())
