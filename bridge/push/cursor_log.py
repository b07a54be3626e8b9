"""The cursors partition in Pulsar: its exclusive producer makes this process the owner, its records hold the state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bridge.errors import ContractError
from bridge.pulsar.client import EARLIEST, OK, MessageId, Producer, PulsarClient, our_errors
from bridge.pulsar.errors import as_our_error
from bridge.push.cursor import Cursor, OwnerRecord
from bridge.push.cursor_records import CursorRecords, owner_record
from bridge.push.position_tags import new_secret
from bridge.push.stored_message import leave_out_foreign, record_key
from bridge.unreadable import leave_out

__all__ = ["CursorLog", "Cursors", "Failed", "Stored", "Writes"]

_READ_PATIENCE_MS: Final = 10_000
_SHOWN: Final = 80


@dataclass(frozen=True, slots=True)
class Stored:
    """Event: Pulsar has stored what was written for ``token``."""

    token: object


@dataclass(frozen=True, slots=True)
class Failed:
    """Event: Pulsar refused a write, or a thread that reads ended. The session ends."""

    error: Exception


@dataclass(frozen=True, slots=True)
class Cursors:
    """What a cursors partition contains."""

    by_device: dict[str, Cursor]
    parked: dict[str, dict[str, bytes]]
    """Segments of parked ids, by device and key."""
    stale: set[str]
    """Devices whose cursor is to be written again, because an outdated record is the last one."""
    uncertain: set[str]
    """Devices whose cursor may be outdated, without a better record."""
    orphans: list[str]
    """Devices of which only ids are left."""
    clean: bool
    """Whether the former owner left cleanly, or there was none."""
    until: MessageId
    """Our own record, up to which the partition was read."""
    secret: bytes
    """The partition's secret: that of the former owners, a new one if there was none."""
    left_us: int
    """When the former owners wrote last, in µs since the epoch; 0 if there was none."""


class Writes:
    """Writes that Pulsar has not answered. ``post`` gets ``Stored`` or ``Failed``, on a thread of Pulsar's client."""

    def __init__(self, post: Callable[[object], None]) -> None:
        self._post = post
        self.unanswered = 0

    def send(
        self,
        producer: Producer,
        topic: str,
        key: str,
        payload: bytes,
        token: object,
        properties: dict[str, str] | None = None,
        stored: Callable[[MessageId], None] = lambda _id: None,
    ) -> None:
        """Write a message; ``stored`` is called with its id."""

        def answered(result: object, message_id: MessageId) -> None:
            if result == OK:
                stored(message_id)
                self._post(Stored(token))
            else:
                self._post(Failed(as_our_error(result, f"writing to {topic}")))

        self.unanswered += 1
        with our_errors(f"writing to {topic}"):
            producer.send_async(payload, callback=answered, partition_key=key, properties=properties or {})


class CursorLog:
    """The cursors partition ``topic``."""

    def __init__(self, client: PulsarClient, topic: str, writes: Writes) -> None:
        self._client = client
        self._writes = writes
        self._producer: Producer | None = None
        self.topic = topic
        self.last_stored: MessageId | None = None
        """The id of the last record that Pulsar has stored for us."""

    def own(self) -> None:
        """Become the owner: wait for the exclusive producer of the partition (H23).

        Raises TransientError after a few seconds as a standby: try again.
        """
        self._producer = self._client.producer(self.topic, exclusive=True, max_pending=60_000)

    @property
    def unanswered(self) -> int:
        """So many writes, receipts apart, Pulsar has not answered."""
        return self._writes.unanswered

    def read(self, own: OwnerRecord, capacity: int) -> Cursors:
        """Read the partition up to ``own``, which this owner has written before.

        A record that cannot be read is reported and left out. Raises TransientError when Pulsar stops answering.
        """
        found = CursorRecords(capacity)
        until = EARLIEST
        left_ms = unread = 0
        for key, payload, where, at_ms, writer in self._records(EARLIEST, compacted=True):
            try:
                record = owner_record(key, payload)
                if record is not None and (record.token, record.serial) == (own.token, own.serial):
                    until = where
                    break
                if not found.take(key, payload, writer):
                    leave_out_foreign(self.topic, where, f"its key is {key[:_SHOWN]!r}", key)
            except ContractError as e:
                unread += 1
                leave_out_foreign(self.topic, where, str(e), key)
            left_ms = max(left_ms, at_ms)
        cursors, former = found.whole(), found.owner
        for key, why in found.unread_ids:
            leave_out(self.topic, why, key=key)
        return Cursors(
            cursors,
            found.parked,
            found.stale,
            found.uncertain,
            found.orphans,
            clean=(former.clean if former is not None else not cursors) and not unread,
            until=until,
            secret=found.secret or new_secret(),
            left_us=left_ms * 1000,
        )

    def replaced_since(self, start: MessageId, own: OwnerRecord) -> bool:
        """Return whether another owner has written between ``start`` and our record ``own``."""
        for key, payload, where, _, _ in self._records(start, compacted=False):
            try:
                record = owner_record(key, payload)
            except ContractError as e:
                leave_out_foreign(self.topic, where, str(e), key)
                return True  # any writer of it shows that our producer was not the only one
            if record is not None:
                if record.token != own.token:
                    return True
                if record.serial == own.serial:
                    break
        return False

    def _records(self, start: MessageId, *, compacted: bool) -> Iterator[tuple[str, bytes, MessageId, int, str]]:
        """Yield key, payload, id, publish time (ms since the epoch) and producer of each record."""
        reader: Any = self._client.reader(self.topic, start, compacted=compacted)
        try:
            while True:
                with our_errors(f"reading {self.topic}"):
                    message = reader.read_next(_READ_PATIENCE_MS)
                stamp = message.publish_timestamp()
                key = record_key(message, self.topic)
                if key is not None:
                    yield key, message.data(), message.message_id(), stamp, message.producer_name()
        finally:
            with our_errors(f"closing the reader of {self.topic}"):
                reader.close()

    def write_cursor(self, records: Sequence[tuple[str, bytes]], token: object) -> None:
        """Write a cursor, the last one of its records, after the others; as ``write_record`` for each."""
        for key, payload in records[:-1]:
            self.write_record(key, payload, None)
        self.write_record(*records[-1], token)

    def write_record(self, key: str, payload: bytes, token: object) -> None:
        """Write one record; ``Stored(token)`` follows, or ``Failed`` with FencedError."""
        assert self._producer is not None
        self._writes.send(self._producer, self.topic, key, payload, token, stored=self._note)

    def _note(self, message_id: MessageId) -> None:
        self.last_stored = message_id
