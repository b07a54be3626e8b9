"""Writes what stands in a cursors partition once more, some devices at a time.

At once where Pulsar has lost the partition: what it held only its owner knows. And unhurriedly where records have stood
for a day. The hold of the partition stays before the oldest record that is still the last of its key, so that each of
them is in the log itself and not in Pulsar's compacted view alone; it is the owner who lets the hold move on, by which
the log does not grow for ever. The view alone would not do: where Pulsar dies while it compacts, its horizon is behind
the view it had, and readers are given the first hundred entries of that and then the log (apache/pulsar#25118).
"""

from __future__ import annotations

import time
from collections import deque
from typing import Final

from bridge.push.partition_log import PartitionLog
from bridge.push.replay import ReplayCore

__all__ = ["CursorsAged", "CursorsForgotten", "Rewriting"]

_WRITTEN_AT_ONCE: Final = 1000
"""Cursors that are written again, without a receipt yet: what is written besides must find room in the queue."""
_PACE: Final = (0.1, 20)
"""Seconds and devices where there is no hurry: a twentieth of a core at most."""


class CursorsForgotten:
    """Event: the cursors topic was deleted and made anew, without what it held."""


class CursorsAged:
    """Event: the oldest record of the cursors partition has stood there for long."""


class Rewriting:
    """What is left to write once more, of one partition."""

    def __init__(self, partition_log: PartitionLog) -> None:
        self._log = partition_log
        self._lost: deque[str] = deque()
        self._aged: deque[str] = deque()
        self._being_written = 0
        self._next = 0.0

    def begin(self, event: CursorsForgotten | CursorsAged, core: ReplayCore) -> None:
        """Note what is to be written."""
        if isinstance(event, CursorsAged):
            self._aged = deque(core.stored_devices)
            return
        self._lost = deque(core.with_cursors)
        self._aged.clear()
        core.store_again(time.time_ns() // 1000)

    def turn(self, core: ReplayCore, now: float) -> None:
        """Write some; ``now`` in seconds of the monotonic clock."""
        while self._lost and self._being_written < _WRITTEN_AT_ONCE:
            device = self._lost.popleft()
            cursor = core.cursor_of(device)
            if cursor is not None:
                self._being_written += 1
                self._log.write_cursor(cursor.records(device, whole=True), CursorsForgotten)
        if not self._aged or now < self._next:
            return
        self._next = now + _PACE[0]
        for _ in range(min(_PACE[1], len(self._aged))):
            device = self._aged.popleft()
            core.store_once_more(device)
            cursor = core.cursor_of(device)
            if cursor is not None:
                self._log.write_cursor(cursor.records(device, all_keys=True), None)

    def stored(self) -> None:
        """One that was written with the token ``CursorsForgotten`` is stored."""
        self._being_written -= 1
