"""One partition's side of Pulsar: the producer that makes us its owner, cursors, commands, receipts, dead letters.

It decides nothing about commands. Receipts of Pulsar and messages come on threads of their own and are handed to
``post`` as events, to be handled by the partition's one thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from bridge.contract import (
    COMMANDS_TOPIC,
    CURSORS_TOPIC,
    DEAD_LETTERS_TOPIC,
    PARKED_TOPIC,
    PUSH_SUBSCRIPTION,
    RECEIPTS_TOPIC,
    RESUME_TOPIC,
    partition_name,
)
from bridge.contract.commands import CommandPosition
from bridge.contract.partitioning import partition_of
from bridge.dead_letters import letter_key
from bridge.errors import ContractError
from bridge.pulsar.client import (
    EARLIEST,
    OK,
    Consumer,
    MessageId,
    Producer,
    PulsarClient,
    our_errors,
    received,
)
from bridge.pulsar.errors import as_our_error
from bridge.pulsar.provisioning_plan import PARKED_RETENTION
from bridge.pulsar.topic_end import end_of
from bridge.push.actions import FindCommands
from bridge.push.cursor import Cursor, OwnerRecord
from bridge.push.gate import Gate
from bridge.push.position_tags import new_secret
from bridge.push.presence_log import PresenceLog
from bridge.push.pulling import Puller
from bridge.push.receipt_log import ReceiptLog
from bridge.push.records import CursorRecords, owner_record
from bridge.push.requests import Requests
from bridge.push.taken import Taken, foreign, record_key, taken
from bridge.push.threads import telling
from bridge.settings.pulsar import PulsarSettings
from bridge.unreadable import leave_out

__all__ = ["Arrived", "Cursors", "Failed", "PartitionLog", "Stored"]

_READ_PATIENCE_MS: Final = 10_000
_SHOWN: Final = 80
_RECEIVE_MS: Final = 500
"""How long a receive waits before it looks whether the session is over: closing a client while a thread waits in
its receive can hang both."""
_QUEUE: Final = 10
"""Entries that Pulsar's client reads ahead of us: it keeps 3 KB and more of each message in them, so of entries with a
hundred messages 3 MB. The broker counts entries, the client messages.
"""


@dataclass(frozen=True, slots=True)
class Stored:
    """Pulsar has stored what was written for ``token``."""

    token: object


@dataclass(frozen=True, slots=True)
class Failed:
    """Pulsar refused a write, or a thread that reads ended. The session is over."""

    error: Exception


@dataclass(frozen=True, slots=True)
class Arrived:
    """A message of the commands partition."""

    message: Taken


@dataclass(frozen=True, slots=True)
class Cursors:
    """What the cursors partition holds: by device; the segments of parked ids, by device and key; which cursors are to
    be written again because an outdated record stands last; which may be outdated, and nothing better is left; of which
    devices there are ids alone; whether the former owner left cleanly, or nobody was here; the record of ours up to which it was read.
    """

    by_device: dict[str, Cursor]
    parked: dict[str, dict[str, bytes]]
    stale: set[str]
    uncertain: set[str]
    orphans: list[str]
    clean: bool
    until: MessageId
    secret: bytes
    """The partition's secret: that of the former owners, a new one where there was none."""
    left_us: int
    """When the former owners wrote last, in µs since the epoch; 0 when nobody did."""


class PartitionLog:
    """The Pulsar objects of one partition while this process owns it, or tries to."""

    def __init__(
        self,
        settings: PulsarSettings,
        partition: int,
        *,
        gate: Gate,
        post: Callable[[object], None],
        pulled_bytes: int,
    ) -> None:
        """``pulled_bytes``: so much of parked commands that were read again is held at most, as ``gate`` holds others."""
        # A lookup that takes longer is tried again; a standby waits in such tries (WaitForExclusive).
        patient = settings.model_copy(update={"operation_timeout": min(settings.operation_timeout, 5.0)})
        self._settings = settings
        self._client = PulsarClient(patient)
        self._post = post
        self._gate = gate
        self._pulled_bytes = pulled_bytes
        self.partition = partition
        self.commands = partition_name(settings.system_topic(COMMANDS_TOPIC), partition)
        self._moved = partition_name(settings.system_topic(PARKED_TOPIC), partition)
        self.cursors = partition_name(settings.system_topic(CURSORS_TOPIC), partition)
        self._cursor_producer: Producer | None = None
        self._unanswered = 0
        self._last_stored: MessageId | None = None
        self._consumer: Consumer | None = None
        self._receiver: threading.Thread | None = None
        self._producers: dict[str, Producer] = {}
        self.receipts = ReceiptLog(self._client, post, self._thread_failed)
        self._partitions: dict[str, list[str]] = {}
        self._puller: Puller | None = None
        self._presence: PresenceLog | None = None
        self._requests: Requests | None = None

    def own(self) -> None:
        """Become the owner: wait for the exclusive producer of the cursors partition (H23).

        Raises TransientError after a few seconds as a standby: try again.
        """
        self._cursor_producer = self._client.producer(self.cursors, exclusive=True, max_pending=60_000)

    def read_cursors(self, own: OwnerRecord, capacity: int) -> Cursors:
        """Read the cursors partition up to ``own``, which this owner has written before.

        A record that cannot be read is named and left out. Raises TransientError when Pulsar stops answering.
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
                    foreign(self.cursors, where, f"its key is {key[:_SHOWN]!r}", key)
            except ContractError as e:
                unread += 1
                foreign(self.cursors, where, str(e), key)
            left_ms = max(left_ms, at_ms)
        cursors, former = found.whole(), found.owner
        for key, why in found.unread_ids:
            leave_out(self.cursors, why, key=key)
        clean = (former.clean if former is not None else not cursors) and not unread
        return Cursors(
            cursors,
            found.parked,
            found.stale,
            found.uncertain,
            found.orphans,
            clean,
            until,
            found.secret or new_secret(),
            left_ms * 1000,
        )

    def replaced_since(self, start: MessageId, own: OwnerRecord) -> bool:
        """Return whether another owner has written between ``start`` and our record ``own``.

        A producer that waits for exclusive access is granted it again when its successor leaves, and nobody is
        told; then its receipts are Ok, and yet it is not the owner that it was.
        """
        for key, payload, where, _, _ in self._records(start, compacted=False):
            try:
                record = owner_record(key, payload)
            except ContractError as e:
                foreign(self.cursors, where, str(e), key)
                return True  # whoever wrote it, our producer was not the only one
            if record is not None:
                if record.token != own.token:
                    return True
                if record.serial == own.serial:
                    break
        return False

    def _records(self, start: MessageId, *, compacted: bool) -> Iterator[tuple[str, bytes, MessageId, int, str]]:
        """Yield key, payload, id, publish time (ms since the epoch) and producer of each record."""
        reader: Any = self._client.reader(self.cursors, start, compacted=compacted)
        try:
            while True:
                with our_errors(f"reading {self.cursors}"):
                    message = reader.read_next(_READ_PATIENCE_MS)
                stamp = message.publish_timestamp()
                key = record_key(message, self.cursors)
                if key is not None:
                    yield key, message.data(), message.message_id(), stamp, message.producer_name()
        finally:
            with our_errors(f"closing the reader of {self.cursors}"):
                reader.close()

    def subscribe(self, most_found: int) -> CommandPosition:
        """Subscribe to the commands partition and start to read, and to what its devices ask for; ``most_found`` bounds
        the answer to that. Returns the last position that is there now.

        Raises FencedError while the former owner's connection still holds a subscription: try again.
        """
        if self._requests is None:
            self._requests = self._subscribe_to_requests(most_found)
        hold: Any = self._client.consumer(self.commands, PARKED_RETENTION, queue=1)  # there before our own (H25)
        with our_errors(f"closing {PARKED_RETENTION} on {self.commands}"):
            hold.close()
        consumer: Any = self._client.consumer(self.commands, PUSH_SUBSCRIPTION, queue=_QUEUE)
        self._consumer = consumer
        with our_errors(f"asking for the end of {self.commands}"):
            last = consumer.get_last_message_id()
        self._receiver = threading.Thread(
            target=telling(partial(self._receive, consumer), self._thread_failed),
            name=f"push-receive-{self.partition}",
            daemon=True,
        )
        self._receiver.start()
        self._presence = PresenceLog(self._client, self.partition, self._post)
        if self._requests is not None:
            self._requests.start()
        self._names(RECEIPTS_TOPIC)  # while it is known how many partitions it has
        self._puller = Puller(
            self._client,
            self.commands,
            self._moved,
            self.partition,
            self._post,
            self._thread_failed,
            held_bytes=self._pulled_bytes,
        )
        return end_of(self._settings, self.commands, last)

    def _subscribe_to_requests(self, most_found: int) -> Requests | None:
        """Return the requests of this partition's devices, None where nobody has made their topic."""
        topics = self._client.partitioned(self._settings.system_topic(RESUME_TOPIC))
        if len(topics) <= self.partition:
            return None
        return Requests(
            self._client,
            topics[self.partition],
            self.commands,
            self.partition,
            most_found=most_found,
            post=self._post,
            failed=self._thread_failed,
        )

    def find(self, order: FindCommands) -> None:
        """Search the commands for those of a device; ``Found`` is posted."""
        assert self._requests is not None
        self._requests.find(order)

    def acknowledge_request(self, message_id: MessageId) -> None:
        """Acknowledge what a device has asked for."""
        assert self._requests is not None
        self._requests.acknowledge(message_id)

    def _receive(self, consumer: Consumer) -> None:
        while self._gate.enter():
            came = received(consumer.receive, _RECEIVE_MS, f"reading {self.commands}")
            if came is not None:
                message = taken(came)
                self._gate.took(len(message.payload))
                self._post(Arrived(message))

    def _thread_failed(self, error: Exception) -> None:
        self._post(Failed(error))

    @property
    def puller(self) -> Puller:
        """Reads parked commands again; there is one once the commands are subscribed to."""
        assert self._puller is not None
        return self._puller

    def is_ours(self, device: str) -> bool:
        """Return whether the device's commands stand in this partition."""
        return self._partition(COMMANDS_TOPIC, device) == self.commands

    def write_cursor(self, records: Sequence[tuple[str, bytes]], token: object) -> None:
        """Write a cursor, the last one of its records, after the others; as ``write_record`` for each."""
        for key, payload in records[:-1]:
            self.write_record(key, payload, None)
        self.write_record(*records[-1], token)

    def write_record(self, key: str, payload: bytes, token: object) -> None:
        """Write one record to the cursors partition; ``Stored(token)`` follows, or ``Failed`` with FencedError."""
        assert self._cursor_producer is not None
        self._send(self._cursor_producer, self.cursors, key, payload, {}, token)

    def stored(self) -> None:
        """Note that a ``Stored`` was handled."""
        self._unanswered -= 1

    @property
    def unanswered(self) -> int:
        """So many writes, receipts apart, Pulsar has not answered for."""
        return self._unanswered

    @property
    def writing(self) -> bool:
        """Whether Pulsar has not answered for something that was written."""
        return self._unanswered > 0 or self.receipts.writing

    def write_receipt(self, device: str, payload: bytes, token: object) -> None:
        """Write one receipt row with the next flush of ``receipts``, which tells when it is stored."""
        self.receipts.write(self._partition(RECEIPTS_TOPIC, device), device, payload, token)

    def write_dead_letter(self, device: str, payload: bytes, properties: dict[str, str], token: object) -> None:
        """Write one dead letter, unbatched and chunked (H5); ``Stored(token)`` follows."""
        topic = self._partition(DEAD_LETTERS_TOPIC, device)
        self._send(self._producer(topic), topic, letter_key(device) or "unknown", payload, properties, token)

    @property
    def last_stored(self) -> MessageId | None:
        """The id of the last record that Pulsar has stored in the cursors partition for us."""
        return self._last_stored

    def _send(
        self,
        producer: Producer,
        topic: str,
        key: str,
        payload: bytes,
        properties: dict[str, str],
        token: object,
    ) -> None:
        def answered(result: object, message_id: MessageId) -> None:  # on a thread of Pulsar's client
            if result == OK:
                if topic == self.cursors:
                    self._last_stored = message_id
                self._post(Stored(token))
            else:
                self._post(Failed(as_our_error(result, f"writing to {topic}")))

        self._unanswered += 1
        with our_errors(f"writing to {topic}"):
            producer.send_async(payload, callback=answered, partition_key=key, properties=properties)

    def _partition(self, local: str, device: str) -> str:
        names = self._names(local)
        return names[partition_of(device, len(names))]

    def _names(self, local: str) -> list[str]:
        names = self._partitions.get(local)
        if names is None:
            topic = self._settings.system_topic(local)
            names = self._partitions[local] = self._client.partitions(topic) or [topic]
        return names

    def _producer(self, topic: str) -> Producer:
        found = self._producers.get(topic)
        if found is None:
            found = self._client.producer(topic, batching=False, chunking=True, max_pending=60_000)
            self._producers[topic] = found
        return found

    def acknowledge(self, message_id: MessageId) -> None:
        """Acknowledge one command. An ack that does not arrive is made again when the command comes again."""
        assert self._consumer is not None
        with our_errors(f"acknowledging on {self.commands}"):
            self._consumer.acknowledge(message_id)

    def close(self) -> None:
        """Close everything; what is not acknowledged comes again, to the next owner."""
        self._gate.close()
        if self._receiver is not None:
            self._receiver.join()
        if self._puller is not None:
            self._puller.close()
        if self._presence is not None:
            self._presence.close()
        if self._requests is not None:
            self._requests.close()
        self._client.close()
