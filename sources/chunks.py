"""Keeps the subscription before the first chunk of a message whose last one has not been read (H14).

A chunked message belongs to the range that holds its last chunk. When a range ends inside of one, its first chunks are
read again later, so they must not be trimmed meanwhile. Pulsar trims ledgers as a whole, when they are acknowledged to
their end, and tells of single entries only. So the end of a range is looked at where an acknowledgement lets go of a
ledger, and where as many bytes were added as the first chunk of a message has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from bridge.contract import Position
from sources.planning import PartitionView

__all__ = ["ChunkGuard", "ChunkPart", "incomplete", "part_of"]

_FIRST_CHUNK_BYTES: Final = 1024 * 1024
"""A first chunk is as large as the broker takes messages, 5 MiB by default; brokers that take less are rare."""
_WINDOW: Final = 8
_WINDOW_OF_CHUNKS: Final = 64
"""Entries before the end that are looked at, where no chunk was seen yet and where one was: several producers'
messages may lie between the chunks of one."""
_FURTHEST: Final = 1000


class ChunkPart(NamedTuple):
    """One entry of a chunked message."""

    uuid: str
    number: int
    total: int


def part_of(headers: Mapping[str, str]) -> ChunkPart | None:
    """Return which part of which message an entry is, None when it is no part (headers by lower-case name)."""
    if "x-pulsar-chunk-id" not in headers:
        return None
    total = int(headers.get("x-pulsar-num-chunks-from-msg", "0"))
    return ChunkPart(headers.get("x-pulsar-uuid", ""), int(headers["x-pulsar-chunk-id"]), total)


def incomplete(parts: Sequence[tuple[Position, ChunkPart | None]]) -> dict[str, tuple[Position, int]]:
    """Return the messages whose last part is not among these entries, which are in order: id to the place and number
    of the first part that is.
    """
    found: dict[str, tuple[Position, int]] = {}
    for place, part in parts:
        if part is None:
            continue
        if part.number == part.total - 1:
            found.pop(part.uuid, None)
        else:
            found.setdefault(part.uuid, (place, part.number))
    return found


class ChunkGuard:
    """Which places one query may acknowledge on ``subscription``. ``ask`` tells what each of some entries of a
    partition is.
    """

    def __init__(self, subscription: str, ask: Callable[[str, Sequence[Position]], Sequence[ChunkPart | None]]) -> None:
        self._subscription = subscription
        self._ask = ask
        self._sizes: dict[str, dict[int, int]] = {}
        """Partition to the sizes of its ledgers when it was last looked at, at their end: what was added since is
        all that a new range can hold. Where a range ends earlier, nothing is known of its size."""
        self._windows: dict[str, int] = {}
        self._open: set[str] = set()
        """Partitions whose last range ended inside of a message."""

    def safe(self, views: Mapping[str, PartitionView], ends: Mapping[str, Position]) -> dict[str, Position]:
        """Return the ends, each moved back before the first chunk of a message that is not complete before it."""
        found = dict(ends)
        for name, end in ends.items():
            view = views.get(name)
            if view is None or not (name in self._open or self._may_let_go(view, end)):
                continue
            found[name] = self._before_chunks(view, end)
            self._sizes.pop(name, None)
            if end >= view.end:
                self._sizes[name] = {ledger.id: ledger.size for ledger in view.ledgers}
            self._open.discard(name)
            if found[name] != end:
                self._open.add(name)
        return found

    def _may_let_go(self, view: PartitionView, end: Position) -> bool:
        """Whether acknowledging up to ``end`` may let go of a ledger with chunks that are still needed."""
        last = view.last_before(end)
        if last is None or self._added(view) < _FIRST_CHUNK_BYTES:
            return False
        if any(of.id == last.ledger and of.entries == last.entry + 1 for of in view.ledgers):
            return True
        held = view.holds.get(self._subscription)
        earlier = [of for of in view.ledgers if of.id < last.ledger and of.entries]
        return last.entry < _FURTHEST and any(held is None or held.ledger <= of.id for of in earlier)

    def _added(self, view: PartitionView) -> int:
        known = self._sizes.get(view.name, {})
        return sum(max(0, ledger.size - known.get(ledger.id, 0)) for ledger in view.ledgers)

    def _before_chunks(self, view: PartitionView, end: Position) -> Position:
        window = self._windows.get(view.name, _WINDOW)
        while True:
            places = [
                Position(segment.ledger, entry)
                for segment in view.preceding(end, window)
                for entry in range(segment.first, segment.stop)
            ]
            parts = list(zip(places, self._ask(view.name, places), strict=True))
            opened = incomplete(parts).values()
            if any(part is not None for _, part in parts):
                self._windows[view.name] = _WINDOW_OF_CHUNKS
            if all(number == 0 for _, number in opened) or window >= _FURTHEST or len(places) < window:
                return min((place for place, _ in opened), default=end)
            window = min(_FURTHEST, window * 4)
