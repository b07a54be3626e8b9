"""Writes one task's messages to Pulsar: a producer per partition, every receipt checked.

A task succeeds only if Pulsar has confirmed each of its messages. At the first error the writer closes all producers
(H1: an error makes a producer's later messages uncertain), and the task fails. Spark retries it with the same rows.
Push drops the repeated command ids.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Final

from bridge.contract import DEAD_LETTERS_TOPIC
from bridge.contract.commands import Problem
from bridge.contract.partitioning import partition_of
from bridge.dead_letters import dead_letter, letter_key
from bridge.errors import ContractError, DeniedError, PulsebridgeError, RefusedError, TransientError
from bridge.pulsar.client import Producer, PulsarClient, our_errors
from sinks.messages import BadRow, PulsarMessage
from sinks.pending import Receipts

if TYPE_CHECKING:
    from sinks.options import PulsarTarget

__all__ = ["TaskWriter", "writer_of_this_process"]

_MAX_PENDING: Final = 1000
_MAX_PRODUCERS: Final = 500
"""Rows may name any number of topics, and a worker process runs many tasks."""
_clients: dict[tuple[int, PulsarTarget], TaskWriter] = {}
_clients_lock = threading.Lock()


class TaskWriter:
    """Producers of one worker process, reused by its tasks and closed on the first error."""

    def __init__(self, target: PulsarTarget) -> None:
        self._target = target
        self._client: PulsarClient | None = None
        self._producers: dict[str, Producer] = {}

    def write(self, rows: Iterable[PulsarMessage | BadRow], option_topic: str = "") -> tuple[int, int]:
        """Write all rows and return the numbers of stored messages and stored dead letters.

        ``option_topic`` is the topic for bad rows without one. If it is empty, each row names its topic, and a row
        whose topic is missing or invalid is a bad row. Raises TransientError (also if the options' topic is missing),
        RefusedError, or ContractError for a bad row that fails the task. Then the producers are closed, an unknown part
        of the task is stored, and the whole task must be repeated.
        """
        if self._client is not None and self._client.renewals:
            self.retire()  # a new password closed its producers
        receipts = Receipts()
        partitions: dict[str, list[str]] = {}  # by topic, looked up in each task
        messages = bad = 0
        try:
            for row in rows:
                receipts.wait(_MAX_PENDING - 1, self._target.send_timeout_s, _size(row))
                found = self._send(row, option_topic, partitions, receipts) if isinstance(row, PulsarMessage) else row
                if found is None:
                    messages += 1
                else:
                    self._send_bad(found, option_topic, partitions, receipts)
                    bad += 1
            receipts.wait(0, self._target.send_timeout_s)
        except PulsebridgeError:
            self.retire()
            raise
        return messages, bad

    def retire(self) -> None:
        """Close the client and all its producers; the next write creates new ones."""
        client, self._client = self._client, None
        self._producers.clear()
        if client is not None:
            try:
                client.close()
            except PulsebridgeError:
                return  # the client is closed because of an earlier error

    def _send(
        self, message: PulsarMessage, option_topic: str, partitions: dict[str, list[str]], receipts: Receipts
    ) -> BadRow | None:
        """Send a message. Returns it as a bad row if the topic that its row names is missing or invalid."""
        try:
            producer = self._producer_of(message, partitions, receipts)
        except DeniedError:
            raise
        except RefusedError as e:
            if option_topic:
                raise
            return message.refused(Problem("__topic", f"is {message.topic!r}; {e.what}"))
        if producer is None:
            why = f"topic {message.topic} does not exist"
            remedy = "pulsar-admin topics create-partitioned-topic"
            if option_topic:  # it existed at the query's start, so it may be re-created
                raise TransientError(why, remedy=f"Spark retries the task; if it stays missing, create it ({remedy})")
            return message.refused(Problem("__topic", f"{why}; create it ({remedy})"))
        size = _size(message)
        receipts.sent(size)
        with our_errors(f"writing row {message.row} of the task to {message.topic}"):
            producer.send_async(
                message.payload,
                callback=partial(receipts.answered, size=size),
                properties=dict(message.properties),
                partition_key=message.key,
                ordering_key=message.ordering_key,
                event_timestamp=message.event_ms or None,
            )
        return None

    def _producer_of(
        self, message: PulsarMessage, partitions: dict[str, list[str]], receipts: Receipts
    ) -> Producer | None:
        """Return the producer of a message's partition, None if its topic does not exist."""
        names = self._partitions(message.topic, partitions)
        if not names:
            return None
        # Without a key there is no order to keep, so the rows are distributed in turn.
        partition = message.row % len(names) if message.key is None else partition_of(message.key, len(names))
        target = self._target
        return self._producer(names[partition], receipts, batching=target.batching, chunking=target.chunking)

    def _send_bad(self, row: BadRow, option_topic: str, partitions: dict[str, list[str]], receipts: Receipts) -> None:
        if self._target.fail_on_bad_rows:
            raise ContractError(row.reason, remedy="fix the row, or set badRows=deadletter")
        payload, properties = dead_letter(
            row.payload,
            topic=row.topic or option_topic,
            device=row.device,
            reason=row.reason,
            at_us=time.time_ns() // 1000,
            properties=row.properties,
            key=row.key,
        )
        topic = self._target.pulsar.system_topic(DEAD_LETTERS_TOPIC)
        names = self._partitions(topic, partitions)
        if not names:
            raise ContractError(
                f"{row.reason}; and the topic of dead letters {topic} does not exist",
                remedy="set provision=true, or run `pulsebridge provision`",
            )
        partition = partition_of(row.device, len(names))
        producer = self._producer(names[partition], receipts, batching=False, chunking=True, role="dead")
        size = _size(row)
        receipts.sent(size)
        with our_errors(f"writing a dead letter to {topic}"):
            producer.send_async(
                payload,
                callback=partial(receipts.answered, size=size),
                properties=properties,
                partition_key=letter_key(row.device) or "unknown",
            )

    def _partitions(self, topic: str, known: dict[str, list[str]]) -> list[str]:
        if topic not in known:
            known[topic] = self._connected().partitions(topic)
        return known[topic]

    def _connected(self) -> PulsarClient:
        if self._client is None:
            self._client = PulsarClient(self._target.pulsar)
        return self._client

    def _producer(
        self, partition: str, receipts: Receipts, *, batching: bool, chunking: bool, role: str = ""
    ) -> Producer:
        name = role + partition
        found = self._producers.pop(name, None)
        if found is None:
            if len(self._producers) >= _MAX_PRODUCERS:
                self._close_some(receipts)
            # Twice the pending limit, so that the queue never rejects (H1 a).
            found = self._connected().producer(
                partition, batching=batching, chunking=chunking, max_pending=2 * _MAX_PENDING
            )
        self._producers[name] = found  # at the end of the dict: last used
        return found

    def _close_some(self, receipts: Receipts) -> None:
        """Close the tenth of the producers that was unused for longest. A tenth, because it waits for all receipts."""
        receipts.wait(0, self._target.send_timeout_s)
        for name in list(self._producers)[: max(1, _MAX_PRODUCERS // 10)]:
            with our_errors(f"closing the producer of {name}"):
                self._producers.pop(name).close()


def _size(row: PulsarMessage | BadRow) -> int:
    property_bytes = sum(len(name) + len(value) for name, value in row.properties.items())
    return len(row.payload or b"") + property_bytes


def writer_of_this_process(target: PulsarTarget) -> TaskWriter:
    """Return this process's writer for this target. It is created on first use and never before a fork.

    Spark reuses its Python workers, and a connection per task would cost more than the task.
    """
    key = (os.getpid(), target)
    with _clients_lock:
        found = _clients.get(key)
        if found is None:
            found = _clients[key] = TaskWriter(target)
        return found
