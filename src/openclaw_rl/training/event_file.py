"""TensorBoard's event format, as much of it as scalars need, so that writing it needs no package.

A file is a row of records: length (uint64), its checksum (uint32), the payload, the payload's checksum, all little
endian; the checksums are CRC-32C (Castagnoli), masked as the TFRecord format asks. A payload is a protocol buffer
`Event`: wall_time (field 1, double), step (2, int64), file_version (3, string) or summary (5), whose values (1)
each have a tag (1, string) and a simple_value (2, float). Formats: TensorFlow's `record_writer.h`, `event.proto` and
`summary.proto`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import BinaryIO

VERSION = "brain.Event:2"
"""What the first record of every file says."""

_POLYNOMIAL = 0x82F63B78
_MASK_DELTA = 0xA282EAD8
_HEADER = struct.Struct("<QI")
_CHECKSUM = struct.Struct("<I")


def _row(byte: int) -> int:
    for _ in range(8):
        byte = (byte >> 1) ^ (_POLYNOMIAL if byte & 1 else 0)
    return byte


_TABLE = tuple(_row(byte) for byte in range(256))


def crc32c(data: bytes) -> int:
    """CRC-32C of `data` (RFC 3720, B.4)."""
    value = 0xFFFFFFFF
    for byte in data:
        value = (value >> 8) ^ _TABLE[(value ^ byte) & 0xFF]
    return value ^ 0xFFFFFFFF


def masked_crc(data: bytes) -> int:
    """The checksum as a record has it: rotated by 15 bits, and a constant added."""
    value = crc32c(data)
    return (((value >> 15) | (value << 17)) + _MASK_DELTA) & 0xFFFFFFFF


def record(payload: bytes) -> bytes:
    """One record of the file."""
    length = struct.pack("<Q", len(payload))
    return length + _CHECKSUM.pack(masked_crc(length)) + payload + _CHECKSUM.pack(masked_crc(payload))


def records(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """The whole records of a file, each with the offset of its end; what is torn or damaged ends the row."""
    end = 0
    while len(header := file.read(_HEADER.size)) == _HEADER.size:
        length, checksum = _HEADER.unpack(header)
        if checksum != masked_crc(header[:8]):
            return
        payload, tail = file.read(length), file.read(_CHECKSUM.size)
        if len(tail) < _CHECKSUM.size or _CHECKSUM.unpack(tail)[0] != masked_crc(payload):
            return
        end += _HEADER.size + length + _CHECKSUM.size
        yield end, payload


def first_event(wall_time: float) -> bytes:
    """The payload that begins a file."""
    return _double(1, wall_time) + _bytes(3, VERSION.encode())


def scalars_event(step: int, wall_time: float, values: Mapping[str, float]) -> bytes:
    """The payload with all scalars of one step (above 0): one record, so that a step is there whole or not at all."""
    summary = b"".join(
        _bytes(1, _bytes(1, name.encode()) + _key(2, 5) + struct.pack("<f", value)) for name, value in values.items()
    )
    return _double(1, wall_time) + _key(2, 0) + _varint(step) + _bytes(5, summary)


def step_of(payload: bytes) -> int:
    """The step of a payload that one of these functions made; 0 for the first."""
    after_time = 9
    if payload[after_time : after_time + 1] != _key(2, 0):
        return 0
    value = shift = 0
    for byte in payload[after_time + 1 :]:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    return value


def _key(field: int, wire_type: int) -> bytes:
    return _varint(field << 3 | wire_type)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _double(field: int, value: float) -> bytes:
    return _key(field, 1) + struct.pack("<d", value)


def _bytes(field: int, value: bytes) -> bytes:
    return _key(field, 2) + _varint(len(value)) + value
