"""Reads topic metadata by Pulsar's binary protocol while the admin is unreachable.

The protocol gives the last message, and the first message from any position on. With these, the end of a ledger that
is not the last is searched for once, because closed ledgers do not change. The protocol gives no sizes, no
subscriptions, and no type of an entry that is not a message.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from bridge.contract import Position
from bridge.pulsar.client import (
    EARLIEST,
    LATEST,
    Consumer,
    MessageId,
    PulsarClient,
    ReceiveTimeout,
    our_errors,
)
from sources.planning import Ledger, PartitionView

__all__ = ["BinaryTopics", "LedgerEnd", "ledger_end"]

_WAIT_MS: Final = 10_000
_CHUNKS_BACK: Final = 64
"""Entries before a ledger's end at which its last message may begin. Producers send chunks consecutively."""


class LedgerEnd(NamedTuple):
    """Number of entries in a ledger, as messages show it, and the next ledger."""

    entries: int
    following: int | None
    """None if no message follows."""


def ledger_end(
    ledger: int,
    known: int,
    first_from: Callable[[int], Position | None],
    last_from: Callable[[int], int],
) -> LedgerEnd:
    """Find the end of a ledger that has at least ``known`` entries.

    ``first_from`` returns the position of the first message that begins at a given entry or later, or None. For a
    chunked message it is the position of the last chunk. It is called about twice the logarithm of the ledger's
    length. ``last_from`` returns the last entry of all such messages, ``entry - 1`` for none. The message that ends
    last need not be the one that begins last, because chunks of several messages may interleave.
    """
    entries = max(0, known - _CHUNKS_BACK)
    step, beyond, following = 1, None, None
    at = entries
    while beyond is None or entries < beyond:
        found = first_from(at)
        if found is not None and found.ledger == ledger:
            entries = max(entries, found.entry + 1)
            step *= 2
        else:
            beyond = at
            following = None if found is None else found.ledger
        at = entries + step - 1 if beyond is None else (entries + beyond) // 2
    return LedgerEnd(max(known, entries, last_from(max(0, entries - _CHUNKS_BACK)) + 1), following)


class BinaryTopics:
    """Topics as the binary protocol shows them. ``consumer`` returns the query's consumer of a partition, or None.

    Raises TransientError if the broker is unreachable. Several threads may use it, each for another partition.
    """

    def __init__(
        self,
        client: Callable[[], PulsarClient],
        consumer: Callable[[str], Consumer | None] = lambda partition: None,
    ) -> None:
        self._client = client
        self._consumer = consumer
        self._closed: dict[tuple[str, int], LedgerEnd] = {}

    def partition_count(self, topic: str) -> int:
        """Return the number of partitions, 0 for a topic without partitions."""
        return len(self._client().partitioned(topic))

    def view(self, partition: str, known: PartitionView | None, begin: Position | None) -> PartitionView:
        """Return a partition from the known ledgers, else from ``begin``, else from its first message."""
        ledgers = [] if known is None else list(known.ledgers)
        if not ledgers and begin is not None:
            ledgers = [Ledger(begin.ledger, begin.entry)]
        if not ledgers:
            first = self._first(partition, EARLIEST)
            if first is None:
                return PartitionView(partition, ())
            ledgers = [Ledger(first.ledger, first.entry)]
        last = self._last(partition)
        while last is not None and last.ledger >= ledgers[-1].id:
            open_one = ledgers[-1]
            if last.ledger == open_one.id:
                ledgers[-1] = open_one.grown(max(open_one.entries, last.entry + 1))
                break
            end = self._end(partition, open_one)
            ledgers[-1] = open_one.grown(end.entries)
            ledgers.append(Ledger(last.ledger if end.following is None else end.following, 0))
        return PartitionView(partition, tuple(ledgers))

    def position_at(self, partition: str, time_ms: int) -> Position | None:
        """Return the first message published at ``time_ms`` or later, None if there is none yet."""
        return self._first(partition, EARLIEST, time_ms)

    def _end(self, partition: str, ledger: Ledger) -> LedgerEnd:
        key = (partition, ledger.id)
        if key not in self._closed:
            self._closed[key] = ledger_end(
                ledger.id,
                ledger.entries,
                lambda entry: self._first(partition, MessageId(-1, ledger.id, entry, -1)),
                lambda entry: self._last_of(partition, Position(ledger.id, entry)),
            )
        return self._closed[key]

    def _last(self, partition: str) -> Position | None:
        consumer = self._consumer(partition)
        if consumer is not None:
            with our_errors(f"asking for the last message of {partition}"):
                found = consumer.get_last_message_id()
            return None if found.entry_id() < 0 else Position(found.ledger_id(), found.entry_id())
        return self._first(partition, LATEST)

    def _last_of(self, partition: str, start: Position) -> int:
        """Return the last entry in the ledger of ``start``, of the messages from ``start`` on."""
        last = start.entry - 1
        reader = self._client().reader(partition, MessageId(-1, start.ledger, start.entry, -1))
        try:
            with our_errors(f"reading from {partition}"):
                while reader.has_message_available():
                    found = reader.read_next(_WAIT_MS).message_id()
                    if found.ledger_id() != start.ledger:
                        break
                    last = max(last, found.entry_id())
        finally:
            reader.close()
        return last

    def _first(self, partition: str, start: Any, time_ms: int | None = None) -> Position | None:
        reader = self._client().reader(partition, start, queue=1)
        try:
            with our_errors(f"reading from {partition}"):
                if time_ms is not None:
                    reader.seek(time_ms)
                if not reader.has_message_available():
                    return None
                try:
                    found = reader.read_next(_WAIT_MS).message_id()
                except ReceiveTimeout:  # only chunks of an incomplete message are available
                    return None
                return Position(found.ledger_id(), found.entry_id())
        finally:
            reader.close()
