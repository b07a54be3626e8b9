"""Keeps the subscription before the first chunk of an incompletely read message (H14).

A chunked message belongs to the range with its last chunk. If a range stops inside a message, a later range rereads
the first chunks, so Pulsar must not trim them. Pulsar trims only whole ledgers, when they are acknowledged to their
end, and describes only single entries. So the guard inspects the end of a range only if two conditions are true. The
acknowledgement may release a ledger, and at least the bytes of a first chunk were added.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from bridge.contract import Position
from sources.planning import PartitionView

__all__ = ["ChunkGuard", "ChunkPart", "incomplete", "part_of"]

_FIRST_CHUNK_BYTES: Final = 1024 * 1024
"""A first chunk has the size of the broker's message limit, 5 MiB by default. Lower limits are rare."""
_WINDOW: Final = 8
_WINDOW_OF_CHUNKS: Final = 64
"""Entries inspected before the end, without and with a chunk seen in the partition. Messages of several producers may
be between the chunks of one."""
_FURTHEST: Final = 1000


class ChunkPart(NamedTuple):
    """One entry of a chunked message."""

    uuid: str
    number: int
    total: int


def part_of(headers: Mapping[str, str]) -> ChunkPart | None:
    """Return the chunk part of an entry, None for other entries (headers by lower-case name)."""
    if "x-pulsar-chunk-id" not in headers:
        return None
    total = int(headers.get("x-pulsar-num-chunks-from-msg", "0"))
    return ChunkPart(headers.get("x-pulsar-uuid", ""), int(headers["x-pulsar-chunk-id"]), total)


def incomplete(parts: Sequence[tuple[Position, ChunkPart | None]]) -> dict[str, tuple[Position, int]]:
    """Return the messages whose last part is not among these ordered entries.

    Maps each id to the position and number of the first part present.
    """
    found: dict[str, tuple[Position, int]] = {}
    for position, part in parts:
        if part is None:
            continue
        if part.number == part.total - 1:
            found.pop(part.uuid, None)
        else:
            found.setdefault(part.uuid, (position, part.number))
    return found


class ChunkGuard:
    """Decides up to which positions one query may acknowledge on ``subscription``.

    ``ask`` returns the chunk part of each of some entries of a partition.
    """

    def __init__(self, subscription: str, ask: Callable[[str, Sequence[Position]], Sequence[ChunkPart | None]]) -> None:
        self._subscription = subscription
        self._ask = ask
        self._sizes: dict[str, dict[int, int]] = {}
        """Partition to the sizes of its ledgers at the last inspection at its end. A new range has at most the bytes
        added since. If a range stops before the end, its size is unknown."""
        self._windows: dict[str, int] = {}
        self._open: set[str] = set()
        """Partitions whose last range ended inside a message."""

    def safe(self, views: Mapping[str, PartitionView], stops: Mapping[str, Position]) -> dict[str, Position]:
        """Return the stops, each moved before the first chunk of an incomplete message."""
        found = dict(stops)
        for name, end in stops.items():
            view = views.get(name)
            if view is None or not (name in self._open or self._may_release(view, end)):
                continue
            found[name] = self._before_chunks(view, end)
            self._sizes.pop(name, None)
            if end >= view.end:
                self._sizes[name] = {ledger.id: ledger.size for ledger in view.ledgers}
            self._open.discard(name)
            if found[name] != end:
                self._open.add(name)
        return found

    def _may_release(self, view: PartitionView, end: Position) -> bool:
        """Whether acknowledging up to ``end`` may release a ledger with chunks that are still needed."""
        last = view.last_before(end)
        if last is None or self._added(view) < _FIRST_CHUNK_BYTES:
            return False
        if any(of.id == last.ledger and of.entries == last.entry + 1 for of in view.ledgers):
            return True
        mark_delete = view.mark_deletes.get(self._subscription)
        earlier = [of for of in view.ledgers if of.id < last.ledger and of.entries]
        return last.entry < _FURTHEST and any(mark_delete is None or mark_delete.ledger <= of.id for of in earlier)

    def _added(self, view: PartitionView) -> int:
        known = self._sizes.get(view.name, {})
        return sum(max(0, ledger.size - known.get(ledger.id, 0)) for ledger in view.ledgers)

    def _before_chunks(self, view: PartitionView, end: Position) -> Position:
        window = self._windows.get(view.name, _WINDOW)
        while True:
            positions = [
                Position(segment.ledger, entry)
                for segment in view.preceding(end, window)
                for entry in range(segment.first, segment.stop)
            ]
            parts = list(zip(positions, self._ask(view.name, positions), strict=True))
            opened = incomplete(parts).values()
            if any(part is not None for _, part in parts):
                self._windows[view.name] = _WINDOW_OF_CHUNKS
            if all(number == 0 for _, number in opened) or window >= _FURTHEST or len(positions) < window:
                return min((position for position, _ in opened), default=end)
            window = min(_FURTHEST, window * 4)
