"""Filters that Spark pushes: what they spare, and what Spark still has to evaluate."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sources.pushdown import Narrowed, narrow

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


@dataclass(frozen=True)
class Binary:
    attribute: tuple[str, ...]
    value: Any


@dataclass(frozen=True)
class Not:
    child: Any


KINDS = {
    name: type(name, (Binary,), {})
    for name in (
        "EqualTo",
        "GreaterThan",
        "GreaterThanOrEqual",
        "LessThan",
        "LessThanOrEqual",
        "In",
        "StringStartsWith",
    )
}  # as pyspark names them


def one(kind: str, column: str, value: Any) -> Any:
    return KINDS[kind]((column,), value)


def at(ms: float) -> datetime:
    return datetime.fromtimestamp(ms / 1000, timezone.utc)


def test_filters_on_topic_and_partition_are_exact_and_spark_need_not_look_again() -> None:
    filters = [
        one("StringStartsWith", "__topic", "persistent://a/"), Not(one("EqualTo", "__topic", "persistent://a/b/u")),
        one("In", "partition", (1, 2)), one("LessThan", "partition", 2),
    ]  # fmt: skip
    narrowed, rest = narrow(filters, 0)
    assert rest == []
    assert narrowed.wants("persistent://a/b/t", "persistent://a/b/t-partition-1")
    for topic, partition in (
        ("persistent://a/b/t", "persistent://a/b/t-partition-0"),
        ("persistent://a/b/t", "persistent://a/b/t-partition-2"),
        ("persistent://a/b/u", "persistent://a/b/u-partition-1"),
        ("persistent://c/b/t", "persistent://c/b/t-partition-1"),
    ):
        assert not narrowed.wants(topic, partition)


def test_what_is_not_understood_is_left_to_spark() -> None:
    filters = [
        one("EqualTo", "qos", 1), one("EqualTo", "partition", "1"), one("EqualTo", "__topic", None),
        Not(one("LessThan", "__publishTime", at(5))), one("LessThan", "__eventTime", at(5)), object(),
    ]  # fmt: skip
    assert narrow(filters, 0) == (Narrowed(), filters)


def test_a_decoded_field_of_the_same_name_is_left_to_spark() -> None:
    filters = [one("EqualTo", "partition", 1)]
    assert narrow(filters, 0, ["partition"]) == (Narrowed(), filters)


@given(
    st.sampled_from(["EqualTo", "GreaterThan", "GreaterThanOrEqual", "LessThan", "LessThanOrEqual", "In"]),
    st.integers(10**12, 2 * 10**12), st.integers(-1000, 1000), st.integers(-5, 5),
)  # fmt: skip
def test_a_publish_time_that_passes_is_never_spared(kind: str, ms: int, micros: int, off: int) -> None:
    """Publish times are whole ms, values of a filter have µs."""
    value = at(ms + micros / 1000)
    filters = [one(kind, "__publishTime", (value,) if kind == "In" else value)]
    narrowed, rest = narrow(filters, 0)
    assert rest == filters, "Spark looks again"
    published = ms + off
    passes = {
        "EqualTo": at(published) == value, "In": at(published) == value, "GreaterThan": at(published) > value,
        "GreaterThanOrEqual": at(published) >= value, "LessThan": at(published) < value,
        "LessThanOrEqual": at(published) <= value,
    }[kind]  # fmt: skip
    if passes:
        assert narrowed.since_ms is None or published >= narrowed.since_ms
        assert narrowed.until_ms is None or published < narrowed.until_ms


def test_all_bounds_apply_together_and_the_slack_widens_them() -> None:
    filters = [
        one("GreaterThanOrEqual", "__publishTime", at(1000)), one("GreaterThan", "__publishTime", at(3000)),
        one("LessThan", "__publishTime", at(9000)), one("LessThanOrEqual", "__publishTime", at(7000)),
    ]  # fmt: skip
    assert narrow(filters, 0)[0] == Narrowed((), 3001, 7001)
    assert narrow(filters, 500)[0] == Narrowed((), 2501, 7501)
    assert narrow(filters, 10**9)[0].since_ms == 0
    assert narrow(filters, None)[0] == Narrowed()


@pytest.mark.parametrize("value", [5, "1970", None, ()])
def test_a_time_that_is_none_spares_nothing(value: Any) -> None:
    assert narrow([one("In" if value == () else "EqualTo", "__publishTime", value)], 0)[0] == Narrowed()
