"""Writes one task's messages to Pulsar: a producer per partition, every receipt checked.

It decides when a task has succeeded: only when Pulsar has answered Ok for each of its messages. The first error
retires all producers of the task (H1: what follows an error on the same producer vouches for nothing) and fails
the task, which Spark then retries with the same rows; push drops the repeated command ids.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Final

from bridge.commands import Problem
from bridge.contract import DEAD_LETTERS_TOPIC
from bridge.dead_letters import dead_letter, letter_key
from bridge.errors import ContractError, DeniedError, PulsebridgeError, RefusedError, TransientError
from bridge.murmur3 import partition_of
from bridge.pulsar_client import Producer, PulsarClient, our_errors
from sinks.messages import BadRow, PulsarMessage
from sinks.pending import Receipts

if TYPE_CHECKING:
    from sinks.options import PulsarTarget

__all__ = ["TaskWriter", "writer_of_this_process"]

_MAX_PENDING: Final = 1000
_MAX_PRODUCERS: Final = 500
"""Rows may name any number of topics, and a worker process lives from task to task."""
_clients: dict[tuple[int, PulsarTarget], TaskWriter] = {}
_clients_lock = threading.Lock()


class TaskWriter:
    """Producers of one Python worker process, kept from task to task and dropped on the first error."""

    def __init__(self, target: PulsarTarget) -> None:
        self._target = target
        self._client: PulsarClient | None = None
        self._producers: dict[str, Producer] = {}

    def write(self, rows: Iterable[PulsarMessage | BadRow], meant: str = "") -> tuple[int, int]:
        """Write all rows and return how many messages and how many dead letters Pulsar has stored.

        ``meant`` is the topic of bad rows that name none; empty where each row names its own, and answers for it: one
        whose topic is not there or is none makes a bad row. Raises TransientError (also where a topic that no row
        chose is not there) or RefusedError, or ContractError for a bad row where these fail the task, after having
        retired the producers; nothing is known then of what was stored, and the whole task is to be written again.
        """
        receipts = Receipts()
        partitions: dict[str, list[str]] = {}  # of each topic, asked for anew in each task
        messages = bad = 0
        try:
            for row in rows:
                receipts.wait(_MAX_PENDING - 1, self._target.send_timeout_s, _size(row))
                found = self._send(row, meant, partitions, receipts) if isinstance(row, PulsarMessage) else row
                if found is None:
                    messages += 1
                else:
                    self._send_bad(found, meant, partitions, receipts)
                    bad += 1
            receipts.wait(0, self._target.send_timeout_s)
        except PulsebridgeError:
            self.retire()
            raise
        return messages, bad

    def retire(self) -> None:
        """Close the client and every producer of it; the next write makes new ones."""
        client, self._client = self._client, None
        self._producers.clear()
        if client is not None:
            try:
                client.close()
            except PulsebridgeError:
                return  # it was being given up because of an error already

    def _send(
        self, message: PulsarMessage, meant: str, partitions: dict[str, list[str]], receipts: Receipts
    ) -> BadRow | None:
        """Send a message; return the bad row that it is when the topic that its row chose will not do."""
        try:
            producer = self._producer_of(message, partitions, receipts)
        except DeniedError:
            raise
        except RefusedError as e:
            if meant:
                raise
            return message.refused(Problem("__topic", f"is {message.topic!r}; {e.what}"))
        if producer is None:
            why = f"there is no topic {message.topic}"
            remedy = "pulsar-admin topics create-partitioned-topic"
            if meant:  # it was there at the query's start: it may be being made anew
                raise TransientError(why, remedy=f"Spark retries the task; where it stays away, {remedy}")
            return message.refused(Problem("__topic", f"{why}; make it ({remedy})"))
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
        """Return the producer of the partition that a message goes to, None when its topic is not there."""
        names = self._partitions(message.topic, partitions)
        if not names:
            return None
        # Without a key there is no order to keep: in turn.
        place = message.row % len(names) if message.key is None else partition_of(message.key, len(names))
        target = self._target
        return self._producer(names[place], receipts, batching=target.batching, chunking=target.chunking)

    def _send_bad(self, row: BadRow, meant: str, partitions: dict[str, list[str]], receipts: Receipts) -> None:
        if self._target.fail_on_bad_rows:
            raise ContractError(row.reason, remedy="mend the row, or let badRows=deadletter put such rows aside")
        payload, properties = dead_letter(
            row.payload,
            topic=row.topic or meant,
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
                f"{row.reason}; and the topic of dead letters {topic} is gone",
                remedy="set provision=true, or run `pulsebridge provision`",
            )
        place = partition_of(row.device, len(names))
        producer = self._producer(names[place], receipts, batching=False, chunking=True, role="dead")
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
            # Twice what may be pending, so that the queue never refuses (H1 a).
            found = self._connected().producer(
                partition, batching=batching, chunking=chunking, max_pending=2 * _MAX_PENDING
            )
        self._producers[name] = found  # the last one is the one used last
        return found

    def _close_some(self, receipts: Receipts) -> None:
        """Close the producers that were not used for longest: a tenth, since that waits for what is under way."""
        receipts.wait(0, self._target.send_timeout_s)
        for name in list(self._producers)[: max(1, _MAX_PRODUCERS // 10)]:
            with our_errors(f"closing the producer of {name}"):
                self._producers.pop(name).close()


def _size(row: PulsarMessage | BadRow) -> int:
    told = sum(len(name) + len(value) for name, value in row.properties.items())
    return len(row.payload or b"") + told


def writer_of_this_process(target: PulsarTarget) -> TaskWriter:
    """Return the writer of this process for this target, made on first use and never before a fork.

    Spark reuses its Python workers, and a connection per task would cost more than the task.
    """
    key = (os.getpid(), target)
    with _clients_lock:
        found = _clients.get(key)
        if found is None:
            found = _clients[key] = TaskWriter(target)
        return found
