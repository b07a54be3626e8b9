"""A producer on one partition: it is given messages, makes batches of them, and says what the broker said of each."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeAlias

from bridge.pulsar_wire.batches import BATCH_BYTES, Outgoing, encode
from bridge.pulsar_wire.commands import WireError, close_producer
from bridge.pulsar_wire.connection import BrokerConnection

__all__ = ["BatchProducer", "Identity", "Receipt"]

Receipt: TypeAlias = Callable[[WireError | None], None]
"""Called on the connection's thread with None when all is stored, else with what came in its place. It must neither
block nor raise."""

_CLOSE_S: Final = 5.0


class Identity(NamedTuple):
    """Under what name a producer writes, so that its successor on a new connection is known as such.

    The broker lets a producer in under a name in use only when the earlier one's connection is gone: what that left
    unread on the way cannot be stored behind what the successor writes.
    """

    name: str = ""
    """Chosen by the broker for the first one."""
    epoch: int = 0
    """The how manieth of this name."""
    sequence: int = 0
    """The next sequence id. Never an earlier one: where the namespace deduplicates, it would be dropped in silence."""


class BatchProducer:
    """Writes to one partition, in order, once it is ``opened``; it listens from the beginning, lest it be closed unheard.

    ``send`` is called by one thread, its receipts come on the connection's.

    The first error is the last word: nothing that was sent since the last receipt is known to be stored.
    """

    def __init__(self, connection: BrokerConnection, number: int) -> None:
        self._connection = connection
        self._number = number
        self._name = b""
        self._epoch = self._sequence = 0
        self._most = min(BATCH_BYTES, connection.max_message_bytes)
        self._lock = threading.Lock()
        self._failed: WireError | None = None
        self._known = True  # to the broker
        self._pending: deque[tuple[int, Receipt | None]] = deque()
        connection.listen(number, self)

    @property
    def broker(self) -> str:
        """Host and port of the broker that serves the partition."""
        return self._connection.name

    def opened(self, identity: Identity) -> None:
        """Begin: the broker has let this producer in under that name."""
        self._name, self._epoch, self._sequence = identity.name.encode(), identity.epoch, identity.sequence

    def successor(self) -> Identity | None:
        """Return what the next producer of this partition is to be called when the connection was lost, else None.

        On one connection, or where the topic went to another broker, what this one sent cannot come behind it.
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
        if large > self._connection.max_message_bytes:
            self.failed(
                WireError("MessageTooBig", f"{large} bytes, Pulsar takes {self._connection.max_message_bytes}"),
                closed=False,
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
        """Have the broker forget this producer. What it has got is stored or failed when this returns.

        It waits for the broker, up to 5 seconds: not for the loop thread.
        """
        if self._known and self._connection.ended is None:
            request = self._connection.number()
            self._connection.request(request, close_producer(self._number, request), _CLOSE_S)
        self.failed(WireError("AlreadyClosed", "the producer was closed"), closed=True)
        self._connection.ignore(self._number)

    # --- what the connection says, on its thread ---

    def receipted(self, sequence: int, *, stored: bool) -> None:
        """Take the receipt of the batch ``sequence``; see ``Listener``."""
        with self._lock:
            if not self._pending or sequence < self._pending[0][0]:
                return
            first, receipt = self._pending[0]
            if sequence == first:
                self._pending.popleft()
        if sequence != first:
            # Receipts come in the order of sending. One that is left out vouches for nothing.
            self.failed(WireError("UnknownError", f"a receipt of {sequence} instead of {first}"), closed=False)
        elif not stored:
            # Ours are never sent twice under one sequence id, so what the topic has is another batch. The successor
            # on this connection has a new name, of which no sequence id is known.
            self.failed(WireError("Dropped", f"batch {first} was taken for a duplicate"), closed=False)
            if receipt is not None:
                receipt(WireError("Dropped"))
        elif receipt is not None:
            receipt(None)

    def failed(self, error: WireError, *, closed: bool) -> None:
        """Take the end of this producer; see ``Listener``."""
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
