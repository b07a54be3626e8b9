"""Writes records of a cursors partition again, some devices at a time.

After a takeover: what a former owner wrote late; behind it the record that our term begins, and then, for each device, what
we know of it. At once: everything, if Pulsar has lost the partition, because only its owner knows what it contained. And
slowly: records that are a day old; records of devices that do not exist any more are removed.

The retention subscription of the partition stays before the oldest record that is still the last of its key. So each of
them is in the log itself, and not in Pulsar's compacted view alone; by rewriting old records the owner lets the
subscription move on, and the log does not grow for ever. The view alone is not safe: if Pulsar dies while it compacts, its
horizon is behind the view it had, and readers get the first hundred entries of that and then the log (apache/pulsar#25118).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from typing import Final

from bridge.contract.commands import CommandPosition
from bridge.push.cursor import TERM_KEY, ids_key, term_record
from bridge.push.cursor_log import CursorLog, Cursors
from bridge.push.partition import Partition

__all__ = ["CursorRewriter", "CursorsAged", "CursorsForgotten"]

_WRITTEN_AT_ONCE: Final = 1000
"""Cursors that are written again, without a receipt so far: other writes must find room in the queue."""
_STEP_S: Final = 0.1
_STEP_DEVICES: Final = 20
_STEP_BYTES: Final = 100_000
"""So much in such a time if it is not urgent: a twentieth of a core at most. A device with more than that, in thousands of
parked commands, delays the next step."""
_ID_BYTES: Final = 40
"""What a parked command takes in a segment, about."""
_UNANSWERED: Final = 300
"""While Pulsar has so many writes to answer, rewriting waits: Pulsar is slow or unreachable, and a full queue ends the
session."""


class CursorsForgotten:
    """Event: the cursors topic was deleted and re-created, without its records."""


class CursorsAged:
    """Event: the oldest record of the cursors partition is old."""


class CursorRewriter:
    """The records of one partition that are to be written again."""

    def __init__(self, cursors: CursorLog) -> None:
        self._log = cursors
        self._lost: deque[str] = deque()
        self._aged: deque[str] = deque()
        self._orphans: deque[str] = deque()
        self._parked_bytes = 0  # of a device, on the average
        self._being_written = 0
        self._term_follows = False  # written behind what is being rewritten
        self._next = 0.0
        self._secret = b""  # of the partition, once it is taken over

    def taken_over(self, found: Cursors, horizon: CommandPosition | None) -> None:
        """Write outdated cursors again, and then that our term begins. ``horizon``: the last command; up to there a device
        may have received commands that no record shows, which an owner that dies meanwhile leaves to the next.
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
        """Remove the ids of devices without any other record: no owner would write them again."""
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
            if (
                core.devices.cursor_of(orphan) is None
            ):  # else the device exists again, and they are written with its cursor
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
        """Leave to the next owner what is not urgent. Our term must not be the oldest record."""
        self._aged.clear()
        self._write_term()
        self._orphans.clear()

    def stored(self) -> None:
        """One that was written with the token ``CursorsForgotten`` is stored."""
        self._being_written -= 1
