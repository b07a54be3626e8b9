"""The lag of a query for each partition: entries, bytes and seconds behind.

Entries and bytes follow from the last trigger's snapshot. Seconds are the age, by publish time, of the first entry
that the trigger leaves unread. Pulsar is asked for that time at most once a second, and only for partitions that are
behind. So a query without lag costs no requests.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from bridge.contract import Position
from sources.planning import PartitionView

__all__ = ["BEHIND", "Behind", "Lag", "as_json"]

BEHIND: Final = "behind"
"""Key of the lag in the ``latestOffset`` of a query's progress."""
_ASK_S: Final = 1.0


class Behind(NamedTuple):
    """The lag of a query in one partition after its last batch."""

    entries: int
    size: int
    """Bytes as stored."""
    seconds: float | None
    """Age of the first unread entry, 0 without one, None if Pulsar did not report it."""


class Lag:
    """The lag of one query. ``published_ms`` requests the publish times of all given entries together."""

    def __init__(
        self,
        published_ms: Callable[[Mapping[str, Position]], Mapping[str, int | None]],
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._published_ms = published_ms
        self._clock = clock
        self._asked: dict[str, tuple[Position, float, int | None]] = {}
        """Partition to the requested position, the time of the request, and the publish time."""

    def of(self, views: Mapping[str, PartitionView], positions: Mapping[str, Position]) -> dict[str, Behind]:
        """Return the lag from ``positions`` on, of the partitions that exist."""
        now = self._clock()
        sizes = {name: views[name].backlog(position) for name, position in positions.items() if name in views}
        heads = {}
        for name, (entries, _) in sizes.items():
            if entries:
                first = views[name].segments(positions[name])[0]
                heads[name] = Position(first.ledger, first.first)
        self._ask(heads, now)
        found = {}
        for name, (entries, size) in sizes.items():
            seconds: float | None = 0.0
            if entries:
                at = self._asked[name][2]
                seconds = None if at is None else round(max(0.0, now - at / 1000), 3)
            found[name] = Behind(entries, size, seconds)
        return found

    def _ask(self, heads: Mapping[str, Position], now: float) -> None:
        self._asked = {name: known for name, known in self._asked.items() if name in heads}
        due = {}
        for name, position in heads.items():
            known = self._asked.get(name)
            # An earlier position has an older entry: so the lag never looks smaller than it is.
            if known is None or (known[0] != position and (now - known[1] >= _ASK_S or position < known[0])):
                due[name] = position
        if due:
            times = self._published_ms(due)
            for name, position in due.items():
                self._asked[name] = (position, now, times.get(name))


def as_json(lag: Mapping[str, Behind]) -> dict[str, Any]:
    """Return the lag as in a query's progress."""
    return {name: {"entries": of.entries, "bytes": of.size, "seconds": of.seconds} for name, of in sorted(lag.items())}
