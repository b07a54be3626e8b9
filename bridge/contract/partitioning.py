"""Selects the partition of a key by Pulsar's Murmur3_32Hash.

The Java, C++ and Python clients differ in their default hash, but all have Murmur3. All partitioned topics that
Pulsebridge writes use it. The contract tests compare it with the C++ client.
"""

from __future__ import annotations

import mmh3

__all__ = ["partition_of"]


def partition_of(key: str, partitions: int) -> int:
    """Return the partition, from 0, of ``key`` in a topic of ``partitions`` partitions.

    As ``Murmur3_32Hash.makeHash``, it hashes the key's UTF-8 bytes and drops the sign bit.
    """
    return (mmh3.hash(key.encode("utf-8"), signed=False) & 0x7FFFFFFF) % partitions
