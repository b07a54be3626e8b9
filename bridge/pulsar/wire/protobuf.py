"""The part of protobuf's wire format that Pulsar's commands need.

Fields are identified by their numbers in PulsarApi.proto; unknown ones are skipped, as protobuf requires.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

__all__ = ["fields", "number", "numbers_of", "read_varint", "text", "varint"]

_FIXED: Final = {1: 8, 5: 4}
"""Wire types of a fixed size, in bytes."""


def varint(value: int) -> bytes:
    """Return a non-negative number as bytes of seven bits, the lowest first."""
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def number(field: int, value: int) -> bytes:
    """Return a field with a number, a bool or an enum."""
    return varint(field << 3) + varint(value)


def text(field: int, value: bytes) -> bytes:
    """Return a field with bytes, UTF-8 text or another message."""
    return varint(field << 3 | 2) + varint(len(value)) + value


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the number that begins at ``at``, and the position after it. Raises IndexError if the data is too short,
    ValueError if it has more than ten bytes, which would be costly to add up.
    """
    value = shift = 0
    while shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValueError("not protobuf: a number of more than ten bytes")


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the fields of a message, as far as it is complete; numbers as int, the rest as bytes."""
    at, end = 0, len(data)
    while at < end:
        try:
            key, at = (data[at], at + 1) if data[at] < 0x80 else read_varint(data, at)
            kind = key & 7
            size = _FIXED.get(kind, 0) if kind else 0
            if not size:
                size, at = (data[at], at + 1) if data[at] < 0x80 else read_varint(data, at)
        except (IndexError, ValueError):  # an incomplete or invalid number
            return
        if kind == 0:
            yield key >> 3, size
            continue
        if at + size > end:
            return
        yield key >> 3, data[at : at + size]
        at += size


def numbers_of(data: bytes) -> dict[int, int]:
    """Return the numbers in a message, by field; the last of several, as protobuf requires."""
    return {field: value for field, value in fields(data) if isinstance(value, int)}
