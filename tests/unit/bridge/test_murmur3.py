"""The hash of a key against known values, and what of it is remembered (H10)."""

from __future__ import annotations

import weakref

import pytest

from bridge.murmur3 import murmur3_32, partition_of


@pytest.mark.parametrize(
    ("data", "seed", "expected"),
    [(b"", 0, 0), (b"", 1, 0x514E28B7), (b"test", 0, 0xBA6BD213), (b"Hello, world!", 0, 0xC0363E43)],
)
def test_known_values(data: bytes, seed: int, expected: int) -> None:
    assert murmur3_32(data, seed) == expected


class Key(str):
    """One whose life can be followed."""


def test_h10_few_long_keys_are_kept() -> None:
    """Devices choose keys of up to 65,535 bytes: a cache by number alone would hold gigabytes of them."""
    alive = []
    for number in range(200):
        key = Key(f"{number:08}" + "k" * 2000)
        assert partition_of(key, 7) == (murmur3_32(key.encode()) & 0x7FFFFFFF) % 7
        alive.append(weakref.ref(key))
    del key
    assert sum(ref() is not None for ref in alive) < 100
