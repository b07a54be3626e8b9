"""Which entries a batch query can spare by the filters that Spark pushes (4.1 and later).

Pure: filters in, narrower ranges out. Filters on topic and partition are exact, and Spark need not evaluate them again.
Filters on ``__publishTime`` spare entries at both ends of a range, and Spark still looks at each row: publish times are
the producers' own and only nearly in order, so the range is left wider by a slack on both sides.
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
    """What the filters leave: partitions that pass, and publish times in ms, the slack already taken off."""

    tests: tuple[tuple[str, str, Any, bool], ...] = field(default=())
    """Column (``__topic`` or ``partition``), kind of filter, its value, and whether it is negated."""
    since_ms: int | None = None
    """Entries before the first one published at this time or later are spared."""
    until_ms: int | None = None
    """The first entry published at this time or later is spared, and all after it."""

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
    """Return what the filters leave, and those that Spark still has to evaluate. All of them hold together (AND).

    ``slack_ms`` is how far publish times may be out of order, None when a filter on them may spare nothing;
    ``decoded`` names columns that come from the payload, of which nothing is known.
    """
    strangers = {(name,) for name in decoded}
    tests: list[tuple[str, str, Any, bool]] = []
    since: list[int] = []
    until: list[int] = []
    rest = []
    for one in filters:
        kind, path, value, negated = _parts(one)
        if path in (("__topic",), ("partition",)) and path not in strangers and _exact(path[0], kind, value):
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
    """Return the first ms that can pass, and the first after all that can; publish times are whole ms."""
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
