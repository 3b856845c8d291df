"""How token ids, log-probabilities and versions lie in the store: packed little-endian arrays.

An absent log-probability is stored as one particular NaN payload, so that absent and NaN stay two values.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Sequence
from typing import cast

_ABSENT = struct.pack("<Q", 0x7FF8_0000_0000_0ABC)


def _pack(typecode: str, values: Sequence[int] | Sequence[float]) -> bytes:
    packed = array(typecode, values)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


BYTES_PER_ID = 4


def pack_ids(ids: Sequence[int]) -> bytes:
    """Token ids or versions as 32-bit unsigned integers."""
    return _pack("I", ids)


def unpack_ids(blob: bytes) -> tuple[int, ...]:
    """The inverse of `pack_ids`."""
    unpacked = array("I")
    unpacked.frombytes(blob)
    if sys.byteorder == "big":
        unpacked.byteswap()
    return tuple(unpacked)


_UNKNOWN = 0xFFFF_FFFF


def pack_kept(kept: Sequence[Sequence[int] | None]) -> bytes:
    """Kept sets as 32-bit unsigned integers: per token how many ids, and the ids; 2**32 - 1 of them: unknown."""
    flat: list[int] = []
    for ids in kept:
        flat += [_UNKNOWN] if ids is None else [len(ids), *ids]
    return pack_ids(flat)


def unpack_kept(blob: bytes) -> tuple[tuple[int, ...] | None, ...]:
    """The inverse of `pack_kept`."""
    flat, kept, at = unpack_ids(blob), list[tuple[int, ...] | None](), 0
    while at < len(flat):
        size = 0 if flat[at] == _UNKNOWN else flat[at]
        kept.append(None if flat[at] == _UNKNOWN else flat[at + 1 : at + 1 + size])
        at += 1 + size
    return tuple(kept)


def pack_logprobs(logprobs: Sequence[float | None]) -> bytes:
    """Log-probabilities as 64-bit floats: exactly what the engine said, None included."""
    if None not in logprobs:
        return _pack("d", cast(Sequence[float], logprobs))
    return b"".join(_ABSENT if value is None else struct.pack("<d", value) for value in logprobs)


def unpack_logprobs(blob: bytes) -> tuple[float | None, ...]:
    """The inverse of `pack_logprobs`."""
    pieces = (blob[i : i + 8] for i in range(0, len(blob), 8))
    return tuple(None if piece == _ABSENT else struct.unpack("<d", piece)[0] for piece in pieces)
