"""The Pulsar objects of one partition: what a standby has, and what it opens with ``subscribe`` when it becomes the owner.

Nothing is decided here. Messages, and the answers to writes, come on threads of their own and are handed to ``post`` as
events, which the partition's own thread handles.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

import structlog

from bridge.backoff import backoff_s
from bridge.contract import (
    COMMANDS_TOPIC,
    CURSORS_TOPIC,
    DEAD_LETTERS_TOPIC,
    PARKED_TOPIC,
    PRESENCE_TOPIC,
    PUSH_SUBSCRIPTION,
    RECEIPTS_TOPIC,
    RESUME_TOPIC,
    partition_name,
)
from bridge.contract.commands import CommandPosition
from bridge.contract.presence import PresenceRecord
from bridge.dead_letters import letter_key
from bridge.errors import ContractError, PulsebridgeError
from bridge.pulsar.batch_writer import BatchWriter
from bridge.pulsar.client import EARLIEST, Message, MessageId, PulsarClient, our_errors, received
from bridge.pulsar.messages import leave_out_foreign, record_key, stored_message
from bridge.pulsar.provisioning_plan import PARKED_RETENTION
from bridge.pulsar.read_budget import ReadBudget
from bridge.pulsar.sending import Failed, PartitionWriters, Writes, close_quietly
from bridge.pulsar.subscription import Subscription
from bridge.pulsar.topic_end import end_of
from bridge.push.cursor_log import CursorLog
from bridge.push.puller import Puller
from bridge.push.request_log import RequestLog
from bridge.settings.pulsar import PulsarSettings
from bridge.threads import start_thread

__all__ = ["PartitionLog", "PresenceLog", "Seen", "receive_commands"]

log = structlog.get_logger("push")

_RECEIVE_MS: Final = 500
"""How long a receive waits before it looks whether the session has ended: closing a client while a thread waits in its
receive can block both."""
_QUEUE: Final = 10
"""Entries that Pulsar's client reads ahead: it needs 3 KB and more for each message in them, so 3 MB for entries with a
hundred messages. The broker counts entries, the client messages.
"""
_IDLE_MS: Final = 500
_GATHER_MS: Final = 5
_AT_ONCE: Final = 256
_RETRY_S: Final = (1.0, 30.0)


class Seen(NamedTuple):
    """Event: devices, when each gave a sign of life (µs since the epoch, by ingest's clock), and at which link of ingest."""

    signs: tuple[tuple[str, int, str], ...]


class PresenceLog:
    """Reads the signs of life that ingest notes in Pulsar, on a thread of its own: in the partition of the presence topic
    that has the number of a commands partition. ``post`` is called on that thread.

    It begins with the last sign of each device in the compacted topic, and continues with new ones. Push does not wait
    for it: while the first ones are read, a device counts as online.
    """

    def __init__(self, client: PulsarClient, partition: int, post: Callable[[object], None]) -> None:
        self._client = client
        self._partition = partition
        self._post = post
        self._closing = threading.Event()
        self._from: MessageId = EARLIEST
        self._thread = threading.Thread(target=self._run, name=f"push-presence-{partition}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread; before the client is closed."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        attempt = 0
        while not self._closing.is_set():
            try:
                topic = self._topic()
                if topic is not None:
                    self._read(topic)
                    attempt = 0
            except PulsebridgeError as e:
                log.debug("signs of life cannot be read", partition=self._partition, why=str(e))
            except Exception:  # push does not wait for this thread: its end must not go unnoticed
                log.error("signs of life cannot be read. Action: report this", shown=1, exc_info=True)
            self._closing.wait(backoff_s(attempt, *_RETRY_S, 0.5))
            attempt += 1

    def _topic(self) -> str | None:
        """Return the partition to be read, None while there is none that has our devices."""
        settings = self._client.settings
        topic = settings.system_topic(PRESENCE_TOPIC)
        partitions = self._client.partitioned(topic)
        commands = self._client.partitioned(settings.system_topic(COMMANDS_TOPIC))
        if partitions and len(partitions) != len(commands):
            log.warning(
                f"what ingest hears wakes no device: run pulsar-admin topics delete-partitioned-topic {topic}, and it is "
                "re-created with as many partitions as the commands have",
                partitions=len(partitions),
                wanted=len(commands),
                shown=1,
            )
            return None
        return partitions[self._partition] if partitions else None

    def _read(self, topic: str) -> None:
        """Hand on each record with those that come close behind it."""
        reader: Any = self._client.reader(topic, self._from, queue=1000, compacted=True)
        signs: list[tuple[str, int, str]] = []
        try:
            while not self._closing.is_set():
                message = received(reader.read_next, _GATHER_MS if signs else _IDLE_MS, f"reading {topic}")
                if message is not None:
                    self._from = message.message_id()
                    self._take(message, topic, signs)
                if signs and (message is None or len(signs) >= _AT_ONCE):
                    self._post(Seen(tuple(signs)))
                    signs.clear()
        finally:
            close_quietly(reader)

    def _take(self, message: Message, topic: str, signs: list[tuple[str, int, str]]) -> None:
        device = record_key(message, topic)
        if device and message.data():
            try:
                signs.append((device, *PresenceRecord.decode(message.data())))
            except ContractError as e:
                leave_out_foreign(topic, message.message_id(), str(e), device)


class PartitionLog:
    """The client, the cursors partition, and the topics that a partition writes to. Once it is subscribed: its commands,
    its parked commands by position, and the requests of its devices.
    """

    def __init__(self, settings: PulsarSettings, partition: int, post: Callable[[object], None]) -> None:
        # A lookup that takes longer is tried again.
        patient = settings.model_copy(update={"operation_timeout": min(settings.operation_timeout, 5.0)})
        self._client = PulsarClient(patient)
        self._post = post
        self._writers = PartitionWriters(self._client, 60_000, chunking=True)
        self.partition = partition
        self.commands = self._partition(COMMANDS_TOPIC)
        self.writes = Writes(post)
        self.cursors = CursorLog(self._client, self._partition(CURSORS_TOPIC), self.writes)
        self.receipts = BatchWriter(self._client, post, self._thread_failed)
        self._closes: list[Callable[[], object]] = []
        self._requests: RequestLog | None = None
        self._subscription: Subscription
        self.puller: Puller
        self.last: CommandPosition
        """The last position of the commands when they were subscribed to."""

    def _partition(self, topic: str) -> str:
        return partition_name(self._client.settings.system_topic(topic), self.partition)

    def _thread_failed(self, error: Exception) -> None:
        self._post(Failed(error))

    def subscribe(self, budget: ReadBudget, pulled_bytes: int, most_found: int) -> None:
        """Subscribe to the commands partition and to the requests of its devices, and begin to read. ``budget`` bounds
        the commands that are not acknowledged, ``pulled_bytes`` the parked commands that are read; ``most_found`` bounds
        what a request gets.

        Raises FencedError while the former owner's connection still has a subscription: try again.
        """
        if self._requests is None:
            self._requests = self._subscribe_to_requests(most_found)
        retention: Any = self._client.consumer(self.commands, PARKED_RETENTION, queue=1)  # it precedes ours (H25)
        with our_errors(f"closing {PARKED_RETENTION} on {self.commands}"):
            retention.close()
        subscription = self._subscription = Subscription(self._client, self.commands, PUSH_SUBSCRIPTION, queue=_QUEUE)
        last = subscription.last_message_id()
        work = partial(receive_commands, subscription, budget, self._post)
        receiver = start_thread(f"push-receive-{self.partition}", work, self._thread_failed)
        self._closes += [budget.close, receiver.join]
        presence = PresenceLog(self._client, self.partition, self._post)
        self._closes.append(presence.close)
        if self._requests is not None:
            self._requests.start()
        self._writers.partitions(RECEIPTS_TOPIC)  # while it is known how many partitions it has
        self.puller = Puller(
            self._client,
            self.commands,
            self._partition(PARKED_TOPIC),
            self.partition,
            self._post,
            self._thread_failed,
            max_bytes=pulled_bytes,
        )
        self._closes.append(self.puller.close)
        self.last = end_of(self._client.settings, self.commands, last)

    def _subscribe_to_requests(self, most_found: int) -> RequestLog | None:
        """Return the requests of this partition's devices, None if their topic does not exist."""
        topics = self._client.partitioned(self._client.settings.system_topic(RESUME_TOPIC))
        if len(topics) <= self.partition:
            return None
        return RequestLog(
            self._client,
            topics[self.partition],
            self.commands,
            self.partition,
            most_found=most_found,
            post=self._post,
            failed=self._thread_failed,
        )

    def is_ours(self, device: str) -> bool:
        """Return whether the device's commands are in this partition."""
        return self._writers.partition(COMMANDS_TOPIC, device) == self.commands

    def acknowledge(self, message_id: MessageId) -> None:
        """Acknowledge one command. A lost acknowledgement is repeated when the command arrives again."""
        self._subscription.acknowledge(message_id)

    @property
    def requests(self) -> RequestLog:
        """The requests of this partition's devices, for what follows from one of them."""
        assert self._requests is not None
        return self._requests

    @property
    def writing(self) -> bool:
        """Whether Pulsar has not answered a write."""
        return self.writes.unanswered > 0 or self.receipts.writing

    def write_receipt(self, device: str, payload: bytes, token: object) -> None:
        """Write one receipt row with the next flush of ``receipts``, which reports when it is stored."""
        self.receipts.write(self._writers.partition(RECEIPTS_TOPIC, device), device, payload, token)

    def write_dead_letter(self, device: str, payload: bytes, properties: dict[str, str], token: object) -> None:
        """Write one dead letter, unbatched and chunked (H5); ``Stored(token)`` follows."""
        topic = self._writers.partition(DEAD_LETTERS_TOPIC, device)
        key = letter_key(device) or "unknown"
        self.writes.send(self._writers.of(topic), topic, key, payload, token, properties)

    def close(self) -> None:
        """Close everything; what is not acknowledged arrives again, at the next owner."""
        for close in self._closes:
            close()
        if self._requests is not None:
            self._requests.close()
        self._client.close()


def receive_commands(subscription: Subscription, budget: ReadBudget, post: Callable[[object], None]) -> None:
    """Receive commands until the budget is closed, and post each."""
    while budget.wait():
        message = subscription.receive(_RECEIVE_MS)
        if message is not None:
            stored = stored_message(message)
            budget.acquire(len(stored.payload))
            post(stored)
