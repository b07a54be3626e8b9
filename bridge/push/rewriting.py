"""Writes what stands in a cursors partition once more, some devices at a time.

After a takeover what a former owner wrote late; behind that stands that our term begins, and where it is written again,
there stands of each device what we know.

At once where Pulsar has lost the partition: what it held only its owner knows. And unhurriedly where records have stood
for a day; so are those removed, by and by, that belong to no device any more. The hold of the partition stays before the oldest record that is still the last of its key, so that each of
them is in the log itself and not in Pulsar's compacted view alone; it is the owner who lets the hold move on, by which
the log does not grow for ever. The view alone would not do: where Pulsar dies while it compacts, its horizon is behind
the view it had, and readers are given the first hundred entries of that and then the log (apache/pulsar#25118).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from typing import Final

from bridge.contract.commands import CommandPosition
from bridge.push.cursor import TERM_KEY, ids_key, term_record
from bridge.push.partition import Partition
from bridge.push.partition_log import Cursors, PartitionLog

__all__ = ["CursorsAged", "CursorsForgotten", "Rewriting"]

_WRITTEN_AT_ONCE: Final = 1000
"""Cursors that are written again, without a receipt yet: what is written besides must find room in the queue."""
_STEP_S: Final = 0.1
_STEP_DEVICES: Final = 20
_STEP_BYTES: Final = 100_000
"""So much in such a time where there is no hurry: a twentieth of a core at most. A device with more than that, in
thousands of parked commands, is waited for the longer."""
_ID_BYTES: Final = 40
"""What a parked command takes in a segment, about."""
_UNANSWERED: Final = 300
"""While Pulsar has so many writes to answer, what may wait waits: it is slow or away, and a full queue ends the session."""


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
        self._orphans: deque[str] = deque()
        self._parked_bytes = 0  # of a device, on the average
        self._being_written = 0
        self._term_follows = False  # behind what is being written, as it has stood for long
        self._next = 0.0
        self._secret = b""  # of the partition, once it is taken over

    def taken_over(self, found: Cursors, horizon: CommandPosition | None) -> None:
        """Write again what was found outdated, and then that our term begins. ``horizon``: the last command; up to there a
        device may have had what nobody knows of any more, and an owner that dies meanwhile leaves that to the next.
        """
        self._secret = found.secret
        for device in found.uncertain:
            found.by_device[device].maybe_seen_to = horizon
        for device in found.stale | found.uncertain:
            self._log.write_cursor(found.by_device[device].records(device, whole=True), None)
        self._write_term()
        self.remove_ids(found.orphans)

    def _write_term(self) -> None:
        self._log.write_record(TERM_KEY, term_record(self._secret), None)
        self._term_follows = False

    def begin(self, event: CursorsForgotten | CursorsAged, core: Partition) -> None:
        """Note what is to be written."""
        if isinstance(event, CursorsAged):
            self._aged = deque(core.devices.stored)
            self._term_follows = True
            self._parked_bytes = core.segments.parked * _ID_BYTES // max(1, len(self._aged))
            return
        self._write_term()
        self._lost = deque(core.devices.with_cursors)
        self._aged.clear()
        core.segments.rewrite_all(time.time_ns() // 1000)

    def remove_ids(self, orphans: Iterable[str]) -> None:
        """Remove the ids of devices of which nothing else is there: nobody would write them once more."""
        self._orphans.extend(orphans)

    def turn(self, core: Partition, now: float) -> None:
        """Write some; ``now`` in seconds of the monotonic clock."""
        while self._lost and self._being_written < _WRITTEN_AT_ONCE:
            device = self._lost.popleft()
            cursor = core.devices.cursor_of(device)
            if cursor is not None:
                self._being_written += 1
                self._log.write_cursor(cursor.records(device, whole=True), CursorsForgotten)
        if now >= self._next and self._log.unanswered < _UNANSWERED:
            self._step(core, now)

    def _step(self, core: Partition, now: float) -> None:
        devices = size = 0
        while self._orphans and devices < _STEP_DEVICES:
            orphan = self._orphans.popleft()
            devices += 1
            if core.devices.cursor_of(orphan) is None:  # else it has come again, and they are written with its cursor
                self._log.write_record(ids_key(orphan), b"", None)
        while self._aged and devices < _STEP_DEVICES and size < _STEP_BYTES:
            device = self._aged.popleft()
            core.segments.rewrite(device)
            size += self._parked_bytes
            cursor = core.devices.cursor_of(device)
            if cursor is not None:
                records = cursor.records(device, all_keys=True)
                size += sum(len(key) + len(payload) for key, payload in records)
                self._log.write_cursor(records, None)
            devices += 1
        if self._term_follows and not self._aged:
            self._write_term()
        self._next = now + _STEP_S * max(1.0, size / _STEP_BYTES)

    def drain(self) -> None:
        """Leave what is not urgent to the next owner: it is asked for again. Our term is not to be the oldest record."""
        self._aged.clear()
        self._write_term()
        self._orphans.clear()

    def stored(self) -> None:
        """One that was written with the token ``CursorsForgotten`` is stored."""
        self._being_written -= 1
