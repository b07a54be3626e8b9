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
        self._terms: dict[str, int] = {}  # of writers, in the order in which they began
        self._back_in: dict[str, int] = {}  # by device: whose record sends commands once more

    def take(self, key: str, payload: bytes, writer: str = "") -> None:
        """Take the next record; ``writer`` is the name of its producer, which an owner has for itself. Raises
        ContractError for one of another version.
        """
        term = self._terms.setdefault(writer, len(self._terms))
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
            self._take_cursor(key, Cursor.decode(payload, self._capacity), term)

    def _take_cursor(self, device: str, cursor: Cursor, term: int) -> None:
        """A write of an owner that had been replaced may be stored when its successor leaves. It has the lower position;
        or it says nothing of commands that the successor is sending once more (H26).
        """
        earlier = self.by_device.get(device)
        goes_back = earlier is not None and earlier.again_from is not None and term < self._back_in[device]
        if earlier is not None and (earlier.position > cursor.position or goes_back):
            cursor, earlier = earlier, cursor
            self.stale.add(device)
        elif cursor.again_from is not None:
            self._back_in[device] = term
        if earlier is not None and device in self.stale:
            cursor.merge(earlier)
        self.by_device[device] = cursor
