"""How far a query is behind: entries, bytes and seconds of each partition, as the last trigger's snapshot shows it.

Entries and bytes follow from the snapshot. Seconds are the age of the first entry that the trigger leaves unread, by
its publish time, which Pulsar has to be asked for: only of partitions that are behind, and not more than once a
second, since a query in step with its topics must not pay for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from bridge.contract import Behind, Position
from sources.planning import PartitionView

__all__ = ["BEHIND", "Lag", "as_json"]

BEHIND: Final = "behind"
"""Key of the lag in the ``latestOffset`` of a query's progress."""
_ASK_S: Final = 1.0


class Lag:
    """The lag of one query. ``published_ms`` asks for the publish times of entries, all at once."""

    def __init__(
        self,
        published_ms: Callable[[Mapping[str, Position]], Mapping[str, int | None]],
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._published_ms = published_ms
        self._clock = clock
        self._asked: dict[str, tuple[Position, float, int | None]] = {}
        """Partition to the place asked for, when, and its publish time."""

    def of(self, views: Mapping[str, PartitionView], places: Mapping[str, Position]) -> dict[str, Behind]:
        """Return what waits from ``places`` on, of the partitions that exist."""
        now = self._clock()
        sizes = {name: views[name].backlog(place) for name, place in places.items() if name in views}
        heads = {}
        for name, (entries, _) in sizes.items():
            if entries:
                first = views[name].segments(places[name])[0]
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
        for name, place in heads.items():
            known = self._asked.get(name)
            # A place behind the one asked for is older than it: the lag never looks smaller than it is.
            if known is None or (known[0] != place and (now - known[1] >= _ASK_S or place < known[0])):
                due[name] = place
        if due:
            told = self._published_ms(due)
            for name, place in due.items():
                self._asked[name] = (place, now, told.get(name))


def as_json(lag: Mapping[str, Behind]) -> dict[str, Any]:
    """Return the lag as it stands in a query's progress."""
    return {name: {"entries": of.entries, "bytes": of.size, "seconds": of.seconds} for name, of in sorted(lag.items())}
