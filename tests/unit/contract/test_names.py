"""Names of devices, topics and partitions, and the partition of a key."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.contract import (
    Position,
    base_topic,
    namespace_of,
    partition_name,
    partition_names,
    partition_number,
)
from bridge.contract.names import name_problem
from bridge.contract.partitioning import partition_of

TOPIC = "persistent://a/b/t"


@given(topic=st.text(min_size=1), number=st.integers(0, 10_000))
def test_a_partition_name_yields_its_topic_and_its_number(topic: str, number: int) -> None:
    name = partition_name(topic, number)
    assert (base_topic(name), partition_number(name)) == (topic, number)


@pytest.mark.parametrize("name", [TOPIC, f"{TOPIC}-partition-x", f"{TOPIC}-partition-", f"{TOPIC}-partition-²", ""])
def test_any_other_name_is_no_partition_s(name: str) -> None:
    assert base_topic(name) == name
    assert (partition_number(name), partition_number(name, without=-1)) == (0, -1)


@given(topic=st.text(min_size=1), count=st.integers(0, 20))
def test_a_topic_has_the_names_of_its_partitions_or_its_own(topic: str, count: int) -> None:
    names = partition_names(topic, count)
    assert [partition_number(name) for name in names] == list(range(count)) if count else names == [topic]


def test_a_topic_s_namespace_includes_its_tenant() -> None:
    assert namespace_of(TOPIC) == namespace_of(partition_name(TOPIC, 3)) == "a/b"


def test_a_position_is_read_as_the_admin_writes_it() -> None:
    assert (Position.parse("7:3"), Position.parse("7:-1")) == (Position(7, 3), Position(7, -1))
    for wrong in ("", "7", "7:", "7:x"):
        with pytest.raises(ValueError, match="invalid literal"):
            Position.parse(wrong)


@pytest.mark.parametrize("name", ["d", "ü" * 512, "a" * 1024, "a b\n"])
def test_a_name_within_the_limit_is_valid(name: str) -> None:
    assert name_problem(name) is None


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "is empty"),
        ("a" * 1025, "has 1025 bytes, max_name_bytes is 1024"),
        ("ü" * 513, "has 1026 bytes, max_name_bytes is 1024"),
        ("\ud800", "is not valid UTF-8"),
    ],
)
def test_a_name_that_is_not_valid_has_a_reason(name: str, why: str) -> None:
    assert name_problem(name) == why


@pytest.mark.parametrize(("key", "murmur3"), [("", 0), ("test", 0xBA6BD213), ("Hello, world!", 0xC0363E43)])
@pytest.mark.parametrize("partitions", [1, 7, 1024])
def test_the_partition_of_a_key_comes_from_known_values_of_murmur3(key: str, murmur3: int, partitions: int) -> None:
    assert partition_of(key, partitions) == (murmur3 & 0x7FFFFFFF) % partitions
