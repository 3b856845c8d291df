"""TensorBoard's format against known answers, and read back."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw_rl.training.event_file import (
    crc32c,
    first_event,
    masked_crc,
    record,
    records,
    scalars_event,
    step_of,
)


@pytest.mark.parametrize(
    ("data", "checksum"),
    [
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),  # RFC 3720, B.4
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
    ],
)
def test_the_checksum_is_crc_32c(data: bytes, checksum: int) -> None:
    assert crc32c(data) == checksum


def test_a_masked_checksum_by_hand() -> None:
    """0xE3069283 turned right by 15 bits is 0x2507C60D; 0xA282EAD8 is added."""
    assert masked_crc(b"123456789") == (0x2507C60D + 0xA282EAD8) & 0xFFFFFFFF


def test_a_file_begins_as_tensorboards_do() -> None:
    """Field 1, eight bytes of time; field 3, thirteen bytes of text."""
    payload = first_event(2.0)
    assert payload == b"\x09\x00\x00\x00\x00\x00\x00\x00\x40\x1a\x0dbrain.Event:2"
    assert step_of(payload) == 0


def test_an_event_by_hand() -> None:
    value = b"\x0a\x02kl" + b"\x15\x00\x00\x80\x3e"  # tag, simple_value 0.25
    summary = b"\x0a\x09" + value
    assert scalars_event(300, 2.0, {"kl": 0.25}) == (
        b"\x09\x00\x00\x00\x00\x00\x00\x00\x40" + b"\x10\xac\x02" + b"\x2a\x0b" + summary
    )


@given(steps=st.lists(st.integers(1, 2**40), max_size=4), cut=st.integers(1, 40))
def test_whole_records_are_read_and_a_torn_end_is_not(steps: list[int], cut: int) -> None:
    made = [record(scalars_event(step, 1.0, {"loss": float(step)})) for step in steps]
    last = record(scalars_event(7, 1.0, {"loss": 1.0}))
    torn = b"".join(made) + last[: -min(cut, len(last))]
    found = list(records(io.BytesIO(torn)))
    assert [step_of(payload) for _, payload in found] == steps
    assert (found[-1][0] if found else 0) == sum(map(len, made))


def test_a_changed_byte_ends_the_reading() -> None:
    whole = record(first_event(1.0))
    for place in range(len(whole)):
        broken = bytearray(whole)
        broken[place] ^= 1
        assert list(records(io.BytesIO(bytes(broken)))) == []
