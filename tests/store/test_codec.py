from __future__ import annotations

import math
import struct

from hypothesis import given
from hypothesis import strategies as st

from openclaw_rl.store import codec


@given(st.lists(st.integers(0, 2**32 - 1)))
def test_ids_come_back(ids: list[int]) -> None:
    assert codec.unpack_ids(codec.pack_ids(ids)) == tuple(ids)


@given(st.lists(st.none() | st.floats(allow_nan=False)))
def test_logprobs_come_back_exactly(logprobs: list[float | None]) -> None:
    assert codec.unpack_logprobs(codec.pack_logprobs(logprobs)) == tuple(logprobs)


@given(st.lists(st.none() | st.lists(st.integers(0, 2**32 - 1), max_size=5).map(tuple)))
def test_kept_sets_come_back(kept: list[tuple[int, ...] | None]) -> None:
    assert codec.unpack_kept(codec.pack_kept(kept)) == tuple(kept)


def test_absent_nan_and_zero_are_three_values() -> None:
    absent, nan, zero = codec.unpack_logprobs(codec.pack_logprobs([None, math.nan, 0.0]))
    assert absent is None
    assert nan is not None
    assert math.isnan(nan)
    assert zero == 0.0


def test_the_layout_is_little_endian() -> None:
    assert codec.pack_ids([1, 258]) == b"\x01\x00\x00\x00\x02\x01\x00\x00"
    assert codec.pack_logprobs([-0.5]) == struct.pack("<d", -0.5)
