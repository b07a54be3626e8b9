"""The partition of a key against known values of MurmurHash3 x86_32."""

from __future__ import annotations

import pytest

from bridge.contract.partitioning import partition_of


@pytest.mark.parametrize(("key", "murmur3"), [("", 0), ("test", 0xBA6BD213), ("Hello, world!", 0xC0363E43)])
@pytest.mark.parametrize("partitions", [1, 7, 1024])
def test_known_values(key: str, murmur3: int, partitions: int) -> None:
    assert partition_of(key, partitions) == (murmur3 & 0x7FFFFFFF) % partitions
