"""Writes one task's commands to Pulsar: a producer per partition, every receipt checked.

It decides when a task has succeeded: only when Pulsar has answered Ok for each of its messages. The first error
retires all producers of the task (H1: what follows an error on the same producer vouches for nothing) and fails
the task, which Spark then retries with the same rows; push drops the repeated command ids.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from bridge.commands import Command, encode_command
from bridge.contract import C_ID, DEAD_LETTERS_TOPIC, partition_name
from bridge.dead_letters import dead_letter
from bridge.errors import PulsebridgeError, TransientError
from bridge.murmur3 import partition_of
from bridge.pulsar_client import OK, MessageId, Producer, PulsarClient, our_errors
from bridge.pulsar_errors import as_our_error
from sinks.rows import BadRow

if TYPE_CHECKING:
    from sinks.options import SinkOptions

__all__ = ["Receipts", "TaskWriter", "writer_of_this_process"]

_MAX_PENDING: Final = 1000
_clients: dict[tuple[int, SinkOptions, int], TaskWriter] = {}
_clients_lock = threading.Lock()


class Receipts:
    """Counts messages sent and receipts back; wakes who waits. Receipts come on the client's own threads."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._pending = 0
        self._answers = 0
        self._error: PulsebridgeError | None = None

    def sent(self) -> None:
        """Count one message more; call it before the send."""
        with self._changed:
            self._pending += 1

    def answered(self, result: object, _id: MessageId) -> None:
        """Take one receipt. Called by Pulsar's client on a thread of its own; must not raise."""
        with self._changed:
            self._pending -= 1
            self._answers += 1
            if result != OK and self._error is None:
                self._error = as_our_error(result, "writing a command")
            self._changed.notify_all()

    def wait(self, at_most: int, timeout_s: float) -> None:
        """Wait until at most ``at_most`` receipts are missing.

        Raises the first error that Pulsar answered, TransientError when no receipt came for ``timeout_s`` seconds.
        """
        with self._changed:
            while self._error is None and self._pending > at_most:
                seen = self._answers
                self._changed.wait(timeout_s)
                if self._answers == seen and self._error is None:
                    raise TransientError(
                        f"{self._pending} commands have no receipt from Pulsar after {timeout_s:g} s",
                        remedy="Spark retries the task; see that Pulsar is up, or raise sendTimeoutMs",
                    )
            if self._error is not None:
                raise self._error


class TaskWriter:
    """Producers of one Python worker process, kept from task to task and dropped on the first error."""

    def __init__(self, options: SinkOptions, partitions: int) -> None:
        self._options = options
        self._partitions = partitions
        self._client: PulsarClient | None = None
        self._producers: dict[str, Producer] = {}
        self._dead_partitions: list[str] = []

    def write(self, rows: Iterable[Command | BadRow]) -> tuple[int, int]:
        """Write all rows and return how many commands and how many dead letters Pulsar has stored.

        Raises TransientError or RefusedError after having retired the producers; nothing is known then of what
        was stored, and the whole task is to be written again.
        """
        receipts = Receipts()
        commands = bad = 0
        try:
            for row in rows:
                receipts.wait(_MAX_PENDING - 1, self._options.send_timeout_s)
                if isinstance(row, Command):
                    self._send_command(row, receipts)
                    commands += 1
                else:
                    self._send_bad(row, receipts)
                    bad += 1
            receipts.wait(0, self._options.send_timeout_s)
        except PulsebridgeError:
            self.retire()
            raise
        return commands, bad

    def retire(self) -> None:
        """Close the client and every producer of it; the next write makes new ones."""
        client, self._client = self._client, None
        self._producers.clear()
        if client is not None:
            try:
                client.close()
            except PulsebridgeError:
                return  # it was being given up because of an error already

    def _send_command(self, command: Command, receipts: Receipts) -> None:
        partition = partition_of(command.device, self._partitions)
        producer = self._producer(partition_name(self._options.topic, partition), batching=True)
        properties = encode_command(command)
        receipts.sent()
        with our_errors(f"writing command {command.command_id}"):
            producer.send_async(
                command.payload,
                callback=receipts.answered,
                properties=properties,
                partition_key=command.device,
                event_timestamp=command.emitted_at_us // 1000 or None,
            )

    def _send_bad(self, row: BadRow, receipts: Receipts) -> None:
        payload, properties = dead_letter(
            row.payload,
            topic=self._options.topic,
            device=row.device,
            reason=row.reason,
            at_us=time.time_ns() // 1000,
            properties={C_ID: row.command_id},
        )
        topic = self._options.pulsar.system_topic(DEAD_LETTERS_TOPIC)
        if not self._dead_partitions:
            self._dead_partitions = self._connected().partitions(topic) or [topic]
        partition = self._dead_partitions[partition_of(row.device, len(self._dead_partitions))]
        producer = self._producer(partition, batching=False)
        receipts.sent()
        with our_errors(f"writing a dead letter to {topic}"):
            producer.send_async(
                payload,
                callback=receipts.answered,
                properties=properties,
                partition_key=row.device or "unknown",
            )

    def _connected(self) -> PulsarClient:
        if self._client is None:
            self._client = PulsarClient(self._options.pulsar)
        return self._client

    def _producer(self, topic: str, *, batching: bool) -> Producer:
        found = self._producers.get(topic)
        if found is None:
            # Twice what may be pending, so that the queue never refuses (H1 a).
            found = self._connected().producer(
                topic, batching=batching, chunking=not batching, max_pending=2 * _MAX_PENDING
            )
            self._producers[topic] = found
        return found


def writer_of_this_process(options: SinkOptions, partitions: int) -> TaskWriter:
    """Return the writer of this process for these options, made on first use and never before a fork.

    Spark reuses its Python workers, and a connection per task would cost more than the task.
    """
    key = (os.getpid(), options, partitions)
    with _clients_lock:
        found = _clients.get(key)
        if found is None:
            found = _clients[key] = TaskWriter(options, partitions)
        return found
