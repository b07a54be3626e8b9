"""Pulsar's Murmur3_32Hash, by which a key chooses its partition.

The Java, C++ and Python clients differ in their default hash; Murmur3 is the one they share, and the contract
of every partitioned topic that Pulsebridge writes. Checked against the C++ client in the contract tests.
"""

from __future__ import annotations

from functools import lru_cache

__all__ = ["murmur3_32", "partition_of"]

_MASK = 0xFFFFFFFF


def murmur3_32(data: bytes, seed: int = 0) -> int:
    """Return MurmurHash3 x86_32 of ``data`` as an unsigned 32-bit integer."""
    h = seed & _MASK
    rounded = len(data) & ~3
    for i in range(0, rounded, 4):
        h ^= _mix_k(int.from_bytes(data[i : i + 4], "little"))
        h = ((h << 13) | (h >> 19)) & _MASK
        h = (h * 5 + 0xE6546B64) & _MASK
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


@lru_cache(maxsize=65_536)
def partition_of(key: str, partitions: int) -> int:
    """Return the partition, from 0, that ``key`` belongs to in a topic of ``partitions`` partitions.

    The hash is taken of the key's UTF-8 bytes and its sign bit dropped, as ``Murmur3_32Hash.makeHash`` does.
    """
    return (murmur3_32(key.encode("utf-8")) & 0x7FFFFFFF) % partitions
