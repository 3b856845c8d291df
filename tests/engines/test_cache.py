from __future__ import annotations

import pytest
import torch

from openclaw_rl.serving.engines.embedded.cache import KvShape, Slot, SlotPool

SHAPE = KvShape(layers=2, kv_heads=1, head_dim=4, groups=2, dtype=torch.float32, device=torch.device("cpu"))


def fill(slot: Slot, tokens: list[int]) -> None:
    slot.reserve(len(tokens))
    for place, token in enumerate(tokens):
        slot.kv[:, place] = float(token)
    slot.tokens = list(tokens)


def finished(pool: SlotPool, tokens: list[int], version: int = 0) -> Slot:
    slot = pool.take(tokens, version, 0)
    fill(slot, tokens)
    pool.release(slot)
    return slot


def test_a_slot_keeps_its_content_when_it_grows() -> None:
    slot = SlotPool(SHAPE, 2).slots[1]
    assert slot.memory.capacity == 0
    fill(slot, [1, 2, 3])
    before = slot.kv[:, :3].clone()
    slot.reserve(1000)
    assert slot.memory.capacity >= 1000
    assert torch.equal(slot.kv[:, :3], before)


def test_the_longest_common_beginning_is_continued_in_place() -> None:
    pool = SlotPool(SHAPE, 3)
    short, long = finished(pool, [1, 2, 9]), finished(pool, [1, 2, 3, 4])
    taken = pool.take([1, 2, 3, 4, 5], 0, 4)
    assert taken is long
    assert taken is not short
    assert taken.tokens == [1, 2, 3, 4]


def test_the_last_token_is_left_to_be_read() -> None:
    pool = SlotPool(SHAPE, 1)
    finished(pool, [1, 2, 3])
    assert pool.take([1, 2, 3], 0, 2).tokens == [1, 2]


def test_another_version_shares_nothing() -> None:
    pool = SlotPool(SHAPE, 1)
    finished(pool, [1, 2, 3], version=1)
    assert pool.take([1, 2, 3], 2, 2).tokens == []


def test_a_short_beginning_is_copied_and_the_long_memory_stays() -> None:
    pool = SlotPool(SHAPE, 2)
    memory = finished(pool, list(range(100)))
    taken = pool.take([0, 1, 2, 7, 7], 0, 4)
    assert taken is not memory
    assert taken.tokens == [0, 1, 2]
    assert taken.kv[0, :3, 0, 0, 0].tolist() == [0.0, 1.0, 2.0]
    assert memory.tokens == list(range(100))


def test_a_busy_slot_lends_its_beginning() -> None:
    pool = SlotPool(SHAPE, 2)
    busy = pool.take([5, 6, 7], 0, 2)
    fill(busy, [5, 6, 7])
    taken = pool.take([5, 6, 8], 0, 2)
    assert taken is not busy
    assert taken.tokens == [5, 6]
    assert pool.free == 0


def test_a_slot_that_grew_in_a_forward_pass_is_copied_into_and_from() -> None:
    """Memory that is allocated under inference mode may not be written outside of it."""
    pool = SlotPool(SHAPE, 3)
    busy, other = pool.take([5, 6, 7], 0, 2), pool.take([9], 0, 0)
    with torch.inference_mode():
        fill(busy, [5, 6, 7])
        fill(other, [9])
    assert busy.kv.is_inference()
    assert other.kv.is_inference()
    pool.release(other)
    pool.slots[2].busy = True  # so that only the slot that grew in a pass is free
    taken = pool.take([5, 6, 8], 0, 2)
    assert taken is other
    assert taken.tokens == [5, 6]
    assert taken.kv[0, :2, 0, 0, 0].tolist() == [5.0, 6.0]


def test_without_anything_in_common_the_slot_unused_for_longest_goes() -> None:
    pool = SlotPool(SHAPE, 2)
    oldest, newer = finished(pool, [1, 1]), finished(pool, [2, 2])
    assert pool.take([3, 3], 0, 1) is oldest
    assert newer.tokens == [2, 2]


def test_a_version_that_is_gone_is_forgotten() -> None:
    pool = SlotPool(SHAPE, 1)
    slot = finished(pool, [1, 2], version=3)
    pool.forget(3)
    assert slot.tokens == []


def test_a_sliding_window_is_refused() -> None:
    class Model:
        class config:
            num_attention_heads = 2
            layer_types = ("full_attention", "sliding_attention")

    with pytest.raises(ValueError, match="full attention"):
        KvShape.of(Model())
