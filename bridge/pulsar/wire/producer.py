"""A producer on one partition: it writes messages in batches, and reports the broker's answer to each batch."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeAlias

from bridge.pulsar.wire.batches import BATCH_BYTES, Outgoing, encode
from bridge.pulsar.wire.commands import Kind, WireError, close
from bridge.pulsar.wire.connection import BrokerConnection

__all__ = ["BatchProducer", "Identity", "Receipt"]

Receipt: TypeAlias = Callable[[WireError | None], None]
"""Called on the connection's thread with None if all is stored, else with the error. It must neither block nor raise."""

_CLOSE_S: Final = 5.0


class Identity(NamedTuple):
    """The identity of a producer, by which the broker recognises its successor on a new connection.

    The broker accepts a name in use only after the earlier producer's connection is closed. So it cannot store bytes
    of that connection after the successor's messages.
    """

    name: str = ""
    """The broker chooses it for the first producer."""
    epoch: int = 0
    """The number of earlier producers of this name."""
    sequence: int = 0
    """The next sequence id. Never an earlier one, because a namespace with deduplication silently drops that."""


class BatchProducer:
    """Writes to one partition, in order, once it is ``opened``. It listens from its creation, so that it notices a close.

    One thread calls ``send``; receipts arrive on the connection's thread.

    The first error is final: no message since the last receipt is known to be stored.
    """

    def __init__(self, connection: BrokerConnection, number: int) -> None:
        self._connection = connection
        self._number = number
        self._name = b""
        self._epoch = self._sequence = 0
        self._max_message_bytes = connection.accepted.max_message_bytes
        self._most = min(BATCH_BYTES, self._max_message_bytes)
        self._lock = threading.Lock()
        self._failed: WireError | None = None
        self._known = True  # to the broker
        self._pending: deque[tuple[int, Receipt | None]] = deque()
        connection.listen(number, self)

    @property
    def broker(self) -> str:
        """Host and port of the broker that owns the partition."""
        return self._connection.accepted.address

    def opened(self, identity: Identity) -> None:
        """Begin: the broker has accepted this producer under that name."""
        self._name, self._epoch, self._sequence = identity.name.encode(), identity.epoch, identity.sequence

    def successor(self) -> Identity | None:
        """Return the identity of the partition's next producer if the connection was lost, else None.

        On one connection, or after the topic moved to another broker, messages of this one cannot arrive after it.
        """
        if self._connection.ended is None or not self._name:
            return None
        return Identity(self._name.decode(), self._epoch + 1, self._sequence)

    def send(self, messages: Sequence[Outgoing], receipt: Receipt) -> None:
        """Write messages, in order; ``receipt`` is called once, when the last of them is stored or one has failed."""
        batches = encode(
            messages,
            producer=self._number,
            name=self._name,
            sequence=self._sequence,
            publish_ms=time.time_ns() // 1_000_000,
            most=self._most,
        )
        large = max(batch.size for batch in batches)
        if large > self._max_message_bytes:
            self.failed(
                WireError("MessageTooBig", f"{large} bytes, Pulsar takes {self._max_message_bytes}"), closed=False
            )
        self._sequence += len(messages)
        with self._lock:
            failed = self._failed
            if failed is None:
                self._pending.extend((batch.sequence, None) for batch in batches[:-1])
                self._pending.append((batches[-1].sequence, receipt))
        if failed is not None:
            receipt(failed)
            return
        for batch in batches:
            self._connection.write(batch.frame)

    def close(self) -> None:
        """Close it at the broker. When this returns, the messages that the broker received are stored or have failed.

        It waits for the broker, up to 5 seconds, so the loop thread must not call it.
        """
        if self._known and self._connection.ended is None:
            request = self._connection.number()
            self._connection.request(request, close(Kind.CLOSE_PRODUCER, self._number, request), _CLOSE_S)
        self.failed(WireError("AlreadyClosed", "the producer was closed"), closed=True)
        self._connection.ignore(self._number)

    # --- called by the connection, on its thread; neither blocks nor raises ---

    def receipted(self, sequence: int, *, stored: bool) -> None:
        """Process the receipt of the batch ``sequence``: it is ``stored``, or was dropped as a duplicate."""
        with self._lock:
            if not self._pending or sequence < self._pending[0][0]:
                return
            first, receipt = self._pending[0]
            if sequence == first:
                self._pending.popleft()
        if sequence != first:
            # Receipts come in the order of sending. A missing one confirms nothing.
            self.failed(WireError("UnknownError", f"a receipt of {sequence} instead of {first}"), closed=False)
        elif not stored:
            # We use each sequence id once, so the topic has another batch under it. The successor on this connection
            # has a new name, without known sequence ids.
            self.failed(WireError("Dropped", f"Pulsar dropped batch {first} as a duplicate"), closed=False)
            if receipt is not None:
                receipt(WireError("Dropped"))
        elif receipt is not None:
            receipt(None)

    def failed(self, error: WireError, *, closed: bool) -> None:
        """Process the end of this producer: it can write no more. ``closed`` if the broker no longer knows it."""
        with self._lock:
            if closed:
                self._known = False
            if self._failed is not None:
                return
            self._failed = error
            pending, self._pending = self._pending, deque()
        for _, receipt in pending:
            if receipt is not None:
                receipt(error)
