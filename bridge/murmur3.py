"""Pulsar's Murmur3_32Hash, by which a key chooses its partition.

The Java, C++ and Python clients differ in their default hash; Murmur3 is the one they share, and the contract
of every partitioned topic that Pulsebridge writes. Checked against the C++ client in the contract tests.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Final

__all__ = ["murmur3_32", "partition_of"]

_MASK = 0xFFFFFFFF
_WORDS: Final = struct.Struct("<I").iter_unpack
_LONG: Final = 256
"""Of longer keys, up to 65,535 bytes as devices choose, few are remembered, so that the caches stay small (H10)."""


def murmur3_32(data: bytes, seed: int = 0) -> int:
    """Return MurmurHash3 x86_32 of ``data`` as an unsigned 32-bit integer."""
    h = seed & _MASK
    rounded = len(data) & ~3
    for (k,) in _WORDS(data[:rounded]):  # the loop of keys of 65,535 bytes: written out
        k = (k * 0xCC9E2D51) & _MASK
        h ^= ((k << 15 | k >> 17) * 0x1B873593) & _MASK
        h = ((h << 13 | h >> 19) * 5 + 0xE6546B64) & _MASK
    if len(data) > rounded:
        h ^= _mix_k(int.from_bytes(data[rounded:], "little"))
    h ^= len(data)
    h = ((h ^ (h >> 16)) * 0x85EBCA6B) & _MASK
    h = ((h ^ (h >> 13)) * 0xC2B2AE35) & _MASK
    return h ^ (h >> 16)


def _mix_k(k: int) -> int:
    k = (k * 0xCC9E2D51) & _MASK
    k = ((k << 15) | (k >> 17)) & _MASK
    return (k * 0x1B873593) & _MASK


def partition_of(key: str, partitions: int) -> int:
    """Return the partition, from 0, that ``key`` belongs to in a topic of ``partitions`` partitions.

    The hash is taken of the key's UTF-8 bytes and its sign bit dropped, as ``Murmur3_32Hash.makeHash`` does.
    """
    return _of_short(key, partitions) if len(key) <= _LONG else _of_long(key, partitions)


def _partition_of(key: str, partitions: int) -> int:
    return (murmur3_32(key.encode("utf-8")) & 0x7FFFFFFF) % partitions


_of_short = lru_cache(maxsize=65_536)(_partition_of)
_of_long = lru_cache(maxsize=64)(_partition_of)
