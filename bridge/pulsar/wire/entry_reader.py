"""Reads the entries of one partition as Pulsar stores them: whole, in order, batches and chunks not yet decoded."""

from __future__ import annotations

import secrets
import time
from typing import Final, NamedTuple

from bridge.errors import DeniedError, TransientError
from bridge.pulsar.dial import with_grant
from bridge.pulsar.errors import as_our_error
from bridge.pulsar.wire.broker_link import BrokerLink, read_any
from bridge.pulsar.wire.client import Brokers
from bridge.pulsar.wire.commands import Answer, Kind, WireError, close, flow, subscribe_reader
from bridge.pulsar.wire.protobuf import numbers_of
from bridge.settings.pulsar import PulsarSettings

__all__ = ["EntryReader", "RawEntry", "WireReaders"]

_CLOSE_S: Final = 5.0


class RawEntry(NamedTuple):
    """An entry: its position, and metadata and payload as they were sent."""

    ledger: int
    entry: int
    data: bytes


class EntryReader:
    """The entries of ``partition`` from (``ledger``, ``entry``) on.

    ``permits`` is the number of messages that the broker may send at first. Nothing remains in Pulsar after ``close``.
    """

    def __init__(
        self, link: BrokerLink, partition: str, ledger: int, entry: int, *, permits: int, timeout_s: float
    ) -> None:
        self.partition = partition
        self._link = link
        self._number = link.number()
        self._left = permits
        link.listen(self._number)
        request = link.number()
        name = f"pulsebridge-reader-{secrets.token_hex(5)}"
        asked = subscribe_reader(partition, self._number, request, name=name, ledger=ledger, entry=entry)
        answer = link.request(request, asked, timeout_s)
        if isinstance(answer, WireError):
            link.ignore(self._number)
            raise as_our_error(answer, f"reading {partition}")
        link.write(flow(self._number, permits))

    def receive(self, timeout_s: float) -> RawEntry | None:
        """Return the next entry, None if none arrives within the time.

        Raises TransientError if the connection was lost or the topic moved to another broker.
        """
        return self._entry(self._link.next_for(self._number, timeout_s))

    def at_hand(self) -> RawEntry | None:
        """Return the next entry that ``WireReaders.read`` stored, None if there is none. Raises as ``receive``."""
        return self._entry(self._link.at_hand_for(self._number))

    def _entry(self, answer: Answer | WireError | None) -> RawEntry | None:
        if answer is None:
            return None
        if isinstance(answer, WireError):
            raise as_our_error(answer, f"reading {self.partition}")
        if answer.kind == Kind.CLOSE_CONSUMER:
            raise TransientError(f"reading {self.partition}: the broker unloaded the topic")
        return _entry_of(answer)

    def took(self, messages: int, wanted: int) -> None:
        """Report the messages of an entry, and about how many more may be in flight.

        When half of them are used, the broker may send more, up to about that number.
        """
        self._left -= messages
        most = max(1, wanted)
        if self._left * 2 <= most:
            self._link.write(flow(self._number, most - self._left))
            self._left = most

    def close(self) -> None:
        """Close this reader at the broker; messages that the broker still sends are dropped."""
        self._link.ignore(self._number)
        request = self._link.number()
        self._link.request(request, close(Kind.CLOSE_CONSUMER, self._number, request), _CLOSE_S)


def _entry_of(answer: Answer) -> RawEntry:
    message_id = answer.fields.get(2)
    numbers = numbers_of(message_id) if isinstance(message_id, bytes) else {}
    return RawEntry(numbers.get(1, -1), numbers.get(2, -1), answer.entry)


class WireReaders:
    """Makes readers for one thread, which also reads their connections."""

    def __init__(self, settings: PulsarSettings) -> None:
        self._settings = settings
        self._brokers = Brokers(settings, BrokerLink)
        self._timeout_s = settings.operation_timeout

    def reader(self, partition: str, ledger: int, entry: int, *, permits: int) -> EntryReader:
        """Read a partition from an entry on; see ``EntryReader``. Raises TransientError, RefusedError or DeniedError."""
        until = time.monotonic() + self._timeout_s
        try:
            link = self._brokers.owner(partition, f"reading {partition}", until)
            return EntryReader(
                link, partition, ledger, entry, permits=permits, timeout_s=max(0.1, until - time.monotonic())
            )
        except DeniedError as e:
            raise with_grant(e, self._settings, partition, "consume") from e

    def read(self, timeout_s: float) -> None:
        """Wait up to ``timeout_s`` for data of the readers, and store it for ``at_hand``: at most a megabyte from each
        connection.
        """
        read_any(self._brokers.connected(), timeout_s)

    def close(self) -> None:
        """Close every connection."""
        self._brokers.close()
