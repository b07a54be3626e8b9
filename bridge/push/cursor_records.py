"""The state of a cursors partition, from its records in order."""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from bridge.contract.names import MAX_NAME_BYTES, name_problem
from bridge.errors import ContractError
from bridge.push.cursor import OWNER_KEY, TERM_KEY, Cursor, OwnerRecord, ids_device, ids_key, read_term
from bridge.push.segments import segment_device

__all__ = ["CursorRecords", "owner_record"]

_OURS: Final = "\0"
"""Keys that begin with it are push's own, and of no device."""
_A_CURSOR: Final = b'"position":'
_AN_OWNER: Final = b'"owner":'
_A_TERM: Final = b'"term":'
_LATE: Final = -1


def owner_record(key: str, payload: bytes) -> OwnerRecord | None:
    """Return the record of an owner, None for any other. Raises ContractError for one that cannot be read."""
    return OwnerRecord.decode(payload) if key == OWNER_KEY and not _is_foreign(key, payload) else None


def _is_foreign(key: str, payload: bytes) -> bool:
    """Whether a record under one of push's own keys says nothing that push would write there.

    Where earlier releases took a command to a device of such a name, push itself wrote its cursor there.
    """
    if not key.startswith(_OURS):
        return False
    if key == OWNER_KEY:
        return _AN_OWNER not in payload
    if key == TERM_KEY:
        return _A_TERM not in payload
    device = ids_device(key) or segment_device(key)
    return not device or device.startswith(_OURS) or _A_CURSOR in payload


class CursorRecords:
    """Cursors by device, segments of parked ids by device and key, and the last record of an owner.

    ``whole`` adds the ids that are stored apart to their cursors, and finds those without a cursor.
    """

    def __init__(self, capacity: int) -> None:
        """``capacity`` is how many settled ids each cursor remembers."""
        self._capacity = capacity
        self.by_device: dict[str, Cursor] = {}
        self.parked: dict[str, dict[str, bytes]] = defaultdict(dict)
        self.stale: set[str] = set()
        """Devices whose last record is outdated: the cursor is to be written again."""
        self.uncertain: set[str] = set()
        """Devices of which nothing is left but what a former owner wrote late: what its successor wrote before that was
        compacted away, and its commands since may have been sent."""
        self.orphans: list[str] = []
        """Devices of which nothing but ids is there: no owner would ever write these records again, or read them."""
        self.unread_ids: list[tuple[str, str]] = []
        """Key and reason of those that ``whole`` left out."""
        self.owner: OwnerRecord | None = None
        self.secret: bytes | None = None
        """The partition's secret, from the last term that began; None before the first."""
        self._last_begun: str | None = None  # the writer of the last term that began; None before the first
        self._terms: dict[str, int] = {}  # of writers, in the order in which they began
        self._back_in: dict[str, int] = {}  # by device: the term of the record that sends commands again
        self._ids: dict[str, dict[int, bytes]] = {}  # apart from the cursors: by device and term

    def take(self, key: str, payload: bytes, writer: str = "") -> bool:
        """Take the next record; ``writer`` is the name of its producer, which an owner has for itself. Returns False for
        a foreign one, which counts for nothing. Raises ContractError for one that cannot be read, or not by this
        release: the takeover goes on without it. What its device had is unknown then, so its commands are sent again,
        marked as repetitions.
        """
        if _is_foreign(key, payload):
            return False
        try:
            self._take(key, payload, writer)
        except ContractError:
            if not key.startswith(_OURS) and name_problem(key, MAX_NAME_BYTES) is None:
                self.by_device.setdefault(key, Cursor(self._capacity))
                self.uncertain.add(key)
            raise
        return True

    def _take(self, key: str, payload: bytes, writer: str) -> None:
        term = self._term_of(writer)
        if key == TERM_KEY:
            self.secret = read_term(payload)
            self._last_begun = writer
        elif key == OWNER_KEY:
            self.owner = OwnerRecord.decode(payload)
        elif (ids_of := ids_device(key)) is not None:
            self._take_ids(ids_of, payload, term)
        elif (parked_for := segment_device(key)) is not None:
            if payload:
                self.parked[parked_for][key] = payload
            else:
                self.parked[parked_for].pop(key, None)
        elif not payload:
            self.by_device.pop(key, None)  # a tombstone
            self._ids.pop(key, None)
        else:
            self._take_cursor(key, Cursor.decode(payload, self._capacity), term)

    def _term_of(self, writer: str) -> int:
        """Return where a record belongs in the order of the owners. The last term that began shows it better than the first
        record of a writer: what another writer has behind it is late, whatever was compacted away.
        """
        term = self._terms.setdefault(writer, len(self._terms))
        return term if self._last_begun in (None, writer) else _LATE

    def whole(self) -> dict[str, Cursor]:
        """Return the cursors with all their ids, once all records were read. Ids that cannot be read are left out."""
        while self._ids:
            device, by_term = self._ids.popitem()
            cursor = self.by_device.get(device)
            if cursor is not None:
                for _, payload in sorted(by_term.items(), reverse=True):
                    try:
                        cursor.with_ids(payload)  # before those that are known: the older ones come last
                    except ContractError as e:
                        self.unread_ids.append((ids_key(device), str(e)))
            else:
                self.orphans.append(device)
        self.stale.intersection_update(self.by_device)
        self.uncertain.intersection_update(self.by_device)
        return self.by_device

    def _take_ids(self, device: str, payload: bytes, term: int) -> None:
        """One owner's ids include those of the owners before; a late write of a former owner may have some more."""
        if not payload:
            self._ids.pop(device, None)
            return
        known = self._ids.setdefault(device, {})
        if not self._capacity:
            return
        if known and term < max(known):
            self.stale.add(device)
        else:
            known.clear()
        known[term] = payload

    def _take_cursor(self, device: str, cursor: Cursor, term: int) -> None:
        """Add a cursor. A write of a replaced owner may be stored when its successor leaves: it has the lower position, or
        does not know of commands that the successor sends again (H26).
        """
        earlier = self.by_device.get(device)
        if term != _LATE:
            self.uncertain.discard(device)
        elif earlier is None:  # else nothing between is hidden: of what is compacted one record is left
            self.uncertain.add(device)
        goes_back = earlier is not None and earlier.resend_from is not None and term < self._back_in[device]
        if earlier is not None and (earlier.position > cursor.position or goes_back):
            cursor, earlier = earlier, cursor
            self.stale.add(device)
        elif cursor.resend_from is not None:
            self._back_in[device] = term
        if earlier is not None and device in self.stale:
            cursor.merge(earlier)
        self.by_device[device] = cursor
