"""What the records of a cursors partition come to, read from its beginning on. Pure."""

from __future__ import annotations

from collections import defaultdict

from bridge.push.cursor import OWNER_KEY, Cursor, OwnerRecord
from bridge.push.parked import segment_device

__all__ = ["CursorRecords"]


class CursorRecords:
    """Cursors by device, segments of parked ids by device and key, and the last record of an owner."""

    def __init__(self, capacity: int) -> None:
        """``capacity`` is how many settled ids each cursor remembers."""
        self._capacity = capacity
        self.by_device: dict[str, Cursor] = {}
        self.parked: dict[str, dict[str, bytes]] = defaultdict(dict)
        self.stale: set[str] = set()
        """Devices whose outdated record stands last: it is to be written again."""
        self.owner: OwnerRecord | None = None

    def take(self, key: str, payload: bytes) -> None:
        """Take the next record. Raises ContractError for one of another version."""
        if key == OWNER_KEY:
            self.owner = OwnerRecord.decode(payload)
        elif (parked_for := segment_device(key)) is not None:
            if payload:
                self.parked[parked_for][key] = payload
            else:
                self.parked[parked_for].pop(key, None)
        elif not payload:
            self.by_device.pop(key, None)  # a tombstone
        else:
            self._take_cursor(key, Cursor.decode(payload, self._capacity))

    def _take_cursor(self, device: str, cursor: Cursor) -> None:
        earlier = self.by_device.get(device)
        if earlier is not None and earlier.position > cursor.position:
            # A write of an owner that had been replaced, stored when its successor left.
            cursor, earlier = earlier, cursor
            self.stale.add(device)
        if earlier is not None and device in self.stale:
            cursor.merge(earlier)
        self.by_device[device] = cursor
