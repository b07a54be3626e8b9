"""Narrows the range of a batch query by pushed filters (Spark 4.1 and later).

Filters on topic and partition are exact, so Spark need not re-evaluate them. Filters on ``__publishTime`` skip entries
at both ends of a range, and Spark still evaluates each row. Producers set publish times, which are only nearly in
order. So the range is wider by a slack on both sides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any, Final

from bridge.contract import partition_number

__all__ = ["Narrowed", "narrow"]


@dataclass(frozen=True)
class Narrowed:
    """The result of the filters: tests of partitions, and publish times extended by the slack."""

    tests: tuple[tuple[str, str, Any, bool], ...] = field(default=())
    """Column (``__topic`` or ``partition``), kind of filter, its value, and whether it is negated."""
    since_ms: int | None = None
    """Entries before the first one published at this time or later are skipped."""
    until_ms: int | None = None
    """The first entry published at this time or later is skipped, and all after it."""

    def wants(self, topic: str, partition: str) -> bool:
        """Whether rows of this partition can pass."""
        values = {"__topic": topic, "partition": partition_number(partition)}
        return all(_EXACT[kind](values[column], value) is not negated for column, kind, value, negated in self.tests)


_EXACT: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "EqualTo": lambda found, value: bool(found == value),
    "EqualNullSafe": lambda found, value: bool(found == value),
    "GreaterThan": lambda found, value: bool(found > value),
    "GreaterThanOrEqual": lambda found, value: bool(found >= value),
    "LessThan": lambda found, value: bool(found < value),
    "LessThanOrEqual": lambda found, value: bool(found <= value),
    "In": lambda found, value: found in value,
    "StringStartsWith": lambda found, value: bool(found.startswith(value)),
    "StringEndsWith": lambda found, value: bool(found.endswith(value)),
    "StringContains": lambda found, value: value in found,
    "IsNull": lambda found, value: False,
    "IsNotNull": lambda found, value: True,
}
_OF_TEXT: Final = frozenset({"StringStartsWith", "StringEndsWith", "StringContains"})


def narrow(filters: Iterable[Any], slack_ms: int | None, decoded: Iterable[str] = ()) -> tuple[Narrowed, list[Any]]:
    """Return the result of the filters (joined by AND), and those left to Spark.

    ``slack_ms`` is how far publish times may be out of order, None if a filter on them skips nothing. ``decoded``
    names columns decoded from the payload, which cannot be evaluated here.
    """
    from_payload = {(name,) for name in decoded}
    tests: list[tuple[str, str, Any, bool]] = []
    since: list[int] = []
    until: list[int] = []
    rest = []
    for one in filters:
        kind, path, value, negated = _parts(one)
        if path in (("__topic",), ("partition",)) and path not in from_payload and _exact(path[0], kind, value):
            tests.append((path[0], kind, value, negated))
            continue
        rest.append(one)
        if path == ("__publishTime",) and slack_ms is not None and not negated:
            low, high = _bounds(kind, value)
            since += [] if low is None else [low - slack_ms]
            until += [] if high is None else [high + slack_ms]
    return (
        Narrowed(
            tuple(tests),
            max(0, *since) if since else None,
            max(0, min(until)) if until else None,
        ),
        rest,
    )


def _parts(one: Any) -> tuple[str, tuple[str, ...], Any, bool]:
    kind = type(one).__name__
    if kind == "Not":
        inner, path, value, negated = _parts(one.child)
        return inner, path, value, not negated
    return kind, tuple(getattr(one, "attribute", ())), getattr(one, "value", None), False


def _exact(column: str, kind: str, value: Any) -> bool:
    if kind not in _EXACT:
        return False
    if kind in ("IsNull", "IsNotNull"):
        return True
    values = value if kind == "In" else (value,)
    if column == "__topic":
        return all(isinstance(of, str) for of in values)
    return kind not in _OF_TEXT and all(isinstance(of, int) and not isinstance(of, bool) for of in values)


def _bounds(kind: str, value: Any) -> tuple[int | None, int | None]:
    """Return the first ms that can pass, and the first ms after all that can. Publish times are whole ms."""
    times = value if kind == "In" else (value,)
    if not isinstance(times, (tuple, list)) or not times or not all(isinstance(t, datetime) for t in times):
        return None, None
    first, last = min(map(_us, times)), max(map(_us, times))
    # ceil(x) is the first whole ms that is not below x, floor(x) + 1 the first that is above
    equal = kind in ("EqualTo", "EqualNullSafe", "In")
    low = high = None
    if equal or kind == "GreaterThanOrEqual":
        low = -(-first // 1000)
    elif kind == "GreaterThan":
        low = first // 1000 + 1
    if equal or kind == "LessThanOrEqual":
        high = last // 1000 + 1
    elif kind == "LessThan":
        high = -(-last // 1000)
    return low, high


def _us(time: datetime) -> int:
    if time.tzinfo is None:  # wall clock time of this process's zone
        time = time.astimezone()
    return (time - datetime(1970, 1, 1, tzinfo=timezone.utc)) // timedelta(microseconds=1)
