"""The cursors partition in Pulsar: its exclusive producer makes this process the owner, its records hold the state."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from itertools import chain
from typing import Final

from bridge.contract.commands import BEFORE_ALL, CommandPosition
from bridge.contract.cursors import (
    OWNER_KEY,
    TERM_KEY,
    OwnerRecord,
    RememberedIds,
    Term,
    ids_device,
    is_plain_ids,
    key_of_term,
    plain_confirmation,
    read_term,
    split_key,
    term_name,
    term_position,
    term_record,
)
from bridge.contract.names import MAX_NAME_BYTES, name_problem
from bridge.contract.segments import segment_device
from bridge.contract.tagged_positions import new_secret
from bridge.errors import ContractError
from bridge.pulsar.client import EARLIEST, MessageId, Producer, PulsarClient
from bridge.pulsar.messages import leave_out_foreign, position_of, read_records
from bridge.pulsar.sending import Writes, owners_producer
from bridge.push.cursor import Cursor
from bridge.push.cursor_store import CursorStore
from bridge.push.partition import Partition
from bridge.unreadable import leave_out

__all__ = ["CursorLog", "CursorRecords", "CursorRewriter", "CursorsAged", "CursorsForgotten", "owner_record"]

_OURS: Final = "\0"  # keys that begin with it are push's own, and of no device


def owner_record(key: str, payload: bytes) -> OwnerRecord | None:
    """Return the record of an owner, None for any other. Raises ContractError for one that cannot be read."""
    return OwnerRecord.decode(payload) if key == OWNER_KEY else None


class CursorRecords:
    """What a cursors partition contains: cursors by device, segments of parked ids, and the last record of an owner."""

    def __init__(self, capacity: int, confirmed_since_ms: int = 0) -> None:
        """``capacity`` is how many settled ids each cursor remembers. What the broker alone confirmed before
        ``confirmed_since_ms`` is not sent again.
        """
        self._capacity = capacity
        self._confirmed_since_ms = confirmed_since_ms
        self.by_device = CursorStore(capacity)
        self.parked: dict[str, dict[str, bytes]] = defaultdict(dict)
        """Segments of parked ids, by device and key."""
        self.unread_ids: list[tuple[str, str]] = []
        """Key and reason of those that were left out."""
        self.owner: OwnerRecord | None = None
        self.served: OwnerRecord | None = None
        """The last record of an owner that may have sent commands."""
        self.term = Term(b"")
        """What the last term had of the partition."""
        self.own_term = ""
        """The name of the reader's own term."""
        self.terms: dict[str, Term] = {}
        """What is stored under ``TERM_KEY``, by the name of the term."""
        self.clean = False
        """Whether each command that a cursor passed has its receipt: the former owner left cleanly, or there was none, and
        every record was read. A cursor that an earlier owner wrote late may lack receipts, until another term begins."""
        self.until = EARLIEST
        """The reader's own record, up to which the partition was read."""
        self.left_us = 0
        """When the former owners wrote last, in µs since the epoch; 0 if there was none."""

    def take(self, key: str, payload: bytes, at: CommandPosition = BEFORE_ALL) -> bool:
        """Take the next record, which is ``at`` this position. Returns False for one under a key that push does not use.
        Raises ContractError for one that cannot be read, or not by this release: the takeover goes on without it. What its
        device had is unknown then, so its commands are sent again, marked as repetitions.
        """
        if key.startswith(_OURS):
            return self._take_ours(key, payload)
        self._take_cursor(key, payload, at)
        return True

    def _take_ours(self, key: str, payload: bytes) -> bool:
        """Take a record that is not a device's cursor."""
        if split_key(key)[0] == TERM_KEY:
            self._take_term(split_key(key)[1], payload)
        elif key == OWNER_KEY:
            self.owner = OwnerRecord.decode(payload)
            self.served = self.served if self.owner.idle else self.owner
        elif ids_of := ids_device(key):
            self._take_ids(key, ids_of, payload)
        elif (parked_for := segment_device(key)) is not None:
            if payload:
                self.parked[parked_for][key] = payload
            else:
                self.parked[parked_for].pop(key, None)
        else:
            return False
        return True

    def whole(self) -> CursorStore:
        """Return the cursors, once all records were read."""
        for name in sorted(self.terms, key=term_position):
            self.term = self.terms[name] if self.terms[name].secret else self.term
        last = max([self.by_device.last_term, *self.terms], key=term_position)
        # An idle owner may hide the record of one that sent commands.
        fresh = self.owner is None and not len(self.by_device)
        self.clean = (fresh if self.served is None else self.served.clean) and not self.by_device.late(last)
        return self.by_device

    def _take_term(self, name: str, payload: bytes) -> None:
        term_position(name)
        self.terms[name] = Term(b"")
        if payload:
            self.terms[name] = read_term(payload)
        else:
            del self.terms[name]

    @property
    def orphans(self) -> list[str]:
        """Keys of the ids of devices of which nothing else is left: no owner would write or read these records again."""
        return self.by_device.orphans

    def _take_cursor(self, key: str, payload: bytes, at: CommandPosition) -> None:
        """Keep a cursor as it was read. It is decoded now if push looks at its device at once, or it cannot be read."""
        device, _, term = key.partition("\0")
        confirmed_ms = plain_confirmation(payload)
        if confirmed_ms is None and payload:
            try:
                cursor = Cursor.decode(payload, self._capacity)
            except ContractError:
                if name_problem(device, MAX_NAME_BYTES) is None:
                    self.by_device.add_unread(device, term, at)
                raise
            watched = bool(cursor.unproven or cursor.resend)
        else:
            watched = confirmed_ms is not None and 0 < confirmed_ms >= self._confirmed_since_ms
        self.by_device.add_record(device, term, at, payload)
        if self.by_device.uncertain:
            self.by_device.uncertain.discard(key)
        if watched:
            self.by_device.watched.add(device)

    def _take_ids(self, key: str, device: str, payload: bytes) -> None:
        unread = False
        try:
            if payload and not is_plain_ids(payload):
                RememberedIds.decode(payload, self._capacity)
        except ContractError as e:
            self.unread_ids.append((key, str(e)))
            payload, unread = b"", True
        self.by_device.add_ids(device, split_key(key)[1], payload, unread=unread)


_SHOWN: Final = 80
_TURN: Final = threading.Lock()
"""Partitions are read one after the other while records come: threads that take turns at each record need twice the CPU."""


class CursorLog:
    """The cursors partition ``topic``."""

    def __init__(self, client: PulsarClient, topic: str, writes: Writes) -> None:
        self._client = client
        self._writes = writes
        self._producer: Producer | None = None
        self.topic = topic
        self.last_stored: MessageId | None = None
        """The id of the last record that Pulsar has stored for us."""

    def own(self, *, fence: bool = False) -> None:
        """Get the exclusive producer of the partition, as ``owners_producer``. Raises FencedError or TransientError."""
        self._producer = owners_producer(self._client, self.topic, fence=fence)

    @property
    def unanswered(self) -> int:
        """So many writes, receipts apart, Pulsar has not answered."""
        return self._writes.unanswered

    def read(self, own: OwnerRecord, capacity: int, confirmed_since_ms: int = 0) -> CursorRecords:
        """Read the partition up to ``own``, which this owner has written before. Without a secret it gets a new one.
        The other arguments are those of ``CursorRecords``.

        A record that cannot be read is reported and left out. Raises TransientError when Pulsar stops answering.
        """
        found = CursorRecords(capacity, confirmed_since_ms)
        left_ms = unread = 0
        with closing(read_records(self._client, self.topic, EARLIEST, compacted=True, turn=_TURN)) as records:
            for key, message in records:
                payload = message.data()
                try:
                    record = owner_record(key, payload)
                    if record is not None and (record.token, record.serial) == (own.token, own.serial):
                        found.until = message.message_id()
                        found.own_term = term_name(position_of(found.until))
                        break
                    if not found.take(key, payload, position_of(message.message_id())):
                        leave_out_foreign(self.topic, message.message_id(), f"its key is {key[:_SHOWN]!r}", key)
                except ContractError as e:
                    unread += 1
                    leave_out_foreign(self.topic, message.message_id(), str(e), key)
                left_ms = max(left_ms, message.publish_timestamp())
        found.whole()
        for key, why in found.unread_ids:
            leave_out(self.topic, why, key=key)
        found.clean = found.clean and not unread
        found.term = found.term if found.term.secret else Term(new_secret())
        found.left_us = left_ms * 1000
        return found

    def proven_since(self, start: MessageId, own: OwnerRecord) -> MessageId | None:
        """Return the position of our record ``own``, None if another owner has written between ``start`` and it."""
        where = start
        with closing(read_records(self._client, self.topic, start)) as records:
            for key, message in records:
                where = message.message_id()
                try:
                    record = owner_record(key, message.data())
                except ContractError as e:
                    leave_out_foreign(self.topic, where, str(e), key)
                    return None  # any writer of it shows that our producer was not the only one
                if record is not None and record.token != own.token:
                    return None
                if record is not None and record.serial == own.serial:
                    break
        return where

    def write_cursor(self, records: Sequence[tuple[str, bytes]], token: object) -> None:
        """Write the records of a cursor, in their order, as ``write_record``; the last one has the token."""
        for key, payload in records[:-1]:
            self.write_record(key, payload, None)
        self.write_record(*records[-1], token)

    def write_record(self, key: str, payload: bytes, token: object) -> None:
        """Write one record; ``Stored(token)`` follows, or ``Failed`` with FencedError."""
        assert self._producer is not None
        self._writes.send(self._producer, self.topic, key, payload, token, stored=self._note)

    def _note(self, message_id: MessageId) -> None:
        self.last_stored = message_id


_UNANSWERED_LOST: Final = 1000
"""While Pulsar has so many writes to answer, even lost cursors wait: other writes must find room in the queue."""
_STEP_S: Final = 0.1
_STEP_DEVICES: Final = 20
_STEP_BYTES: Final = 100_000
"""So much in such a time if it is not urgent: a twentieth of a core at most. A device with more than that, in thousands of
parked commands, delays the next step."""
_ID_BYTES: Final = 40  # what a parked command takes in a segment, about
_UNANSWERED: Final = 300
"""While Pulsar has so many writes to answer, rewriting waits: Pulsar is slow or unreachable, and a full queue ends the
session."""


class CursorsForgotten:
    """Event: the cursors topic was deleted and re-created, without its records."""


class CursorsAged:
    """Event: the oldest record of the cursors partition is old."""


class CursorRewriter:
    """The records of one partition that are to be written again.

    After a takeover: what cannot be read, and the record that our term begins. At once: everything, if Pulsar has lost the
    partition, because only its owner knows what it contained. And slowly: records that are a day old; records of devices
    that do not exist any more are removed.

    The retention subscription of the partition stays before the oldest record that is still the last of its key
    (``bridge.pulsar.compaction``): by rewriting old records the owner lets it move on, and the log does not grow for ever.
    """

    def __init__(self, cursors: CursorLog) -> None:
        self._log = cursors
        self._lost: Iterator[str] = iter(())
        self._slow: Iterator[str] = iter(())  # devices, and keys of push's own
        self._parked_bytes = 0  # of a device, on the average
        self._next = 0.0
        self._term = Term(b"")  # of the partition, once it is taken over
        self._own_term = ""

    def taken_over(self, found: CursorRecords, horizon: CommandPosition | None) -> None:
        """Write again what could not be read, and that our term begins. ``horizon``: the last command; up to there a device
        may have received commands that no record shows, which an owner that dies meanwhile leaves to the next.
        """
        self._term, self._own_term = found.term, found.own_term
        found.by_device.horizon = horizon
        for device in {split_key(key)[0] for key in found.by_device.uncertain}:
            resting = found.by_device.look(device)
            if resting is not None:
                self._log.write_cursor(resting.cursor.records(device, self._own_term, whole=True), None)
                found.by_device.put(device, resting)
        self._write_term()
        for term in found.terms:
            self._log.write_record(key_of_term(TERM_KEY, term), b"", None)
        self.remove_ids(found.orphans)

    def _write_term(self) -> None:
        self._log.write_record(key_of_term(TERM_KEY, self._own_term), term_record(self._term), None)

    def begin(self, event: CursorsForgotten | CursorsAged, core: Partition) -> None:
        """Note what is to be written."""
        if isinstance(event, CursorsAged):
            self._slow = chain(self._slow, core.devices.stored, [TERM_KEY])
            self._parked_bytes = core.segments.parked * _ID_BYTES // max(1, core.devices.known_count)
            return
        self._write_term()
        self._lost = core.devices.with_cursors
        self._slow = iter(())
        core.segments.rewrite_all(time.time_ns() // 1000)

    def remove_ids(self, orphans: Iterable[str]) -> None:
        """Remove these records of ids, of devices without any other record: no owner would write them again."""
        self._slow = chain(self._slow, orphans)

    def turn(self, core: Partition, now: float) -> None:
        """Write some; ``now`` in seconds of the monotonic clock."""
        while self._log.unanswered < _UNANSWERED_LOST and (device := next(self._lost, None)) is not None:
            records = core.devices.records_of(device, whole=True)
            if records:
                self._log.write_cursor(records, None)
        if now >= self._next and self._log.unanswered < _UNANSWERED:
            self._step(core, now)

    def _step(self, core: Partition, now: float) -> None:
        count = size = 0
        while count < _STEP_DEVICES and size < _STEP_BYTES and (name := next(self._slow, None)) is not None:
            count += 1
            if name == TERM_KEY:
                self._write_term()
            elif (orphan := ids_device(name)) is not None:
                ours = split_key(name)[1] == self._own_term
                if not ours or core.devices.cursor_of(orphan) is None:  # else the ids are written with the cursor
                    self._log.write_record(name, b"", None)
            else:
                core.segments.rewrite(name)
                size += self._parked_bytes
                records = core.devices.records_of(name, all_keys=True)
                if records:
                    size += sum(len(key) + len(payload) for key, payload in records)
                    self._log.write_cursor(records, None)
        self._next = now + _STEP_S * max(1.0, size / _STEP_BYTES)

    def drain(self) -> None:
        """Leave to the next owner what is not urgent. Our term must not be the oldest record."""
        self._slow = iter(())
        self._write_term()
