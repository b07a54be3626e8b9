"""Sends messages and collects Pulsar's receipts, for writers that wait for them, or get each as an event."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Final

import structlog

from bridge.contract.partitioning import partition_of
from bridge.errors import PulsebridgeError, TransientError
from bridge.pulsar.client import OK, MessageId, Producer, PulsarClient, our_errors
from bridge.pulsar.errors import as_our_error

__all__ = ["Failed", "PartitionWriters", "Receipts", "Stored", "Writes", "close_quietly", "owners_producer"]

log = structlog.get_logger("pulsar")

_NONE: Final = object()
_LOOK_S: Final = 0.2


class Receipts:
    """Pulsar's answers to sent messages, collected on its threads. The caller identifies each message by a key."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._sent = 0
        self._results: dict[Hashable, Any] = {}
        self._ids: dict[Hashable, Any] = {}

    def of(self, key: Hashable) -> Callable[..., None]:
        """Return the callback of a message: for ``send_async``, or as a ``bridge.pulsar.wire.producer.Receipt``."""
        self._sent += 1

        def answered(
            result: Any, message_id: Any = None
        ) -> None:  # must never raise: the C++ client would end the process
            with self._changed:
                self._results[key] = result
                self._ids[key] = message_id
                self._changed.notify_all()

        return answered

    def wait(self, timeout_s: float) -> bool:
        """Wait for the answers to all messages. Returns False at the time-out."""
        with self._changed:
            return self._changed.wait_for(lambda: len(self._results) >= self._sent, timeout_s)

    def wait_for_all(self, operation: str, patience_s: float, over: Callable[[], bool]) -> bool:
        """Wait for the answers to all messages. Returns False when it is ``over`` before.

        Raises TransientError if no further answer arrives for ``patience_s`` seconds: Pulsar's client retries without end.
        """
        answered, since = -1, 0.0
        while not self.wait(_LOOK_S):
            if over():
                return False
            if len(self._results) > answered:
                answered, since = len(self._results), time.monotonic()
            if time.monotonic() - since >= patience_s:
                raise TransientError(
                    f"{operation}: no answer to {self._sent - answered} messages for {patience_s:g} s",
                    remedy="see whether Pulsar's brokers and bookies are up",
                )
        return True

    def message_id(self, key: Hashable) -> MessageId:
        """Return the id of a message that ``send_async`` sent, and that is stored."""
        found: MessageId = self._ids[key]
        return found

    def error(self, key: Hashable, operation: str) -> PulsebridgeError | None:
        """Return why a message is not known to be stored, None if it is; ``operation`` names it and its topic."""
        result = self._results.get(key, _NONE)
        if result is _NONE:
            return TransientError(f"{operation}: Pulsar does not confirm it")
        return None if result is None or result == OK else as_our_error(result, operation)


class PartitionWriters:
    """The partitions of the topics that a process writes to, and a producer of each, opened at its first use.

    They are unbatched unless ``of`` requests batches, because a refusal then names one message. ``most`` bounds the
    messages without a receipt. With ``chunking`` an unbatched message may exceed Pulsar's limit.
    """

    def __init__(self, client: PulsarClient, most: int = 1000, *, chunking: bool = False) -> None:
        self._client = client
        self._most = most
        self._chunking = chunking
        self._partitions: dict[str, list[str]] = {}
        self._producers: dict[str, Producer] = {}

    def partitions(self, local: str) -> list[str]:
        """Return the partitions of a system topic, which are looked up once."""
        names = self._partitions.get(local)
        if names is None:
            topic = self._client.settings.system_topic(local)
            names = self._partitions[local] = self._client.partitions(topic) or [topic]
        return names

    def partition(self, local: str, key: str) -> str:
        """Return the partition of a system topic that has the messages with ``key``."""
        names = self.partitions(local)
        return names[partition_of(key, len(names))]

    def add(self, partition: str, producer: Producer) -> None:
        """Use this producer for a partition; ``close`` closes it, too."""
        self._producers[partition] = producer

    def of(self, partition: str, *, batching: bool = False) -> Producer:
        """Return the producer of a partition. Raises as ``PulsarClient.producer``."""
        found = self._producers.get(partition)
        if found is None:
            chunking = self._chunking and not batching
            found = self._client.producer(partition, batching=batching, chunking=chunking, max_pending=self._most)
            self._producers[partition] = found
        return found

    def close(self) -> None:
        """Close all of them, after their receipts."""
        for producer in self._producers.values():
            close_quietly(producer)


@dataclass(frozen=True, slots=True)
class Stored:
    """Event: Pulsar has stored what was written for ``token``."""

    token: object


@dataclass(frozen=True, slots=True)
class Failed:
    """Event: Pulsar refused a write, or a thread that reads ended. Its owner ends."""

    error: Exception


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


def owners_producer(client: PulsarClient, topic: str, *, fence: bool) -> Producer:
    """Return the exclusive producer of a partition, which makes this process its owner (H23).

    Raises FencedError if another process has it. ``fence`` takes it from that one first: only if that process is silent.
    """
    if fence:
        # It is not kept: whenever a producer in this mode reconnects, it interrupts its successor.
        close_quietly(client.producer(topic, exclusive=True, fencing=True))
    return client.producer(topic, exclusive=True, max_pending=60_000)


def close_quietly(one: Any) -> None:
    """Close a producer or a reader that is not needed any more, and ignore Pulsar's errors. It waits for Pulsar."""
    try:
        with our_errors("closing it"):
            one.close()
    except PulsebridgeError as e:  # closed either way
        log.debug("a producer or a reader was not closed cleanly", why=e.what)
