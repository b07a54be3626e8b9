"""Reads the entries of one partition as Pulsar keeps them: whole, in order, batches and chunks not yet opened."""

from __future__ import annotations

import secrets
from typing import Final, NamedTuple

from bridge.errors import TransientError
from bridge.pulsar_errors import as_our_error
from bridge.pulsar_wire.commands import Answer, Kind, WireError, close_consumer, flow, subscribe_reader
from bridge.pulsar_wire.link import BrokerLink
from bridge.pulsar_wire.protobuf import numbers_of

__all__ = ["EntryReader", "RawEntry"]

_CLOSE_S: Final = 5.0


class RawEntry(NamedTuple):
    """An entry: its place, and metadata and payload as they were sent."""

    ledger: int
    entry: int
    data: bytes


class EntryReader:
    """The entries of ``partition`` from (``ledger``, ``entry``) on.

    ``permits`` is how many messages the broker may send at first. Nothing is left in Pulsar when it is closed.
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
        """Return the next entry, None when none comes within the time.

        Raises TransientError when the connection was lost or the topic went to another broker.
        """
        return self._entry(self._link.heard_for(self._number, timeout_s))

    def at_hand(self) -> RawEntry | None:
        """Return the next entry of those that ``WireReaders.read`` kept, None when there is none. Raises as ``receive``."""
        return self._entry(self._link.at_hand_for(self._number))

    def _entry(self, heard: Answer | WireError | None) -> RawEntry | None:
        if heard is None:
            return None
        if isinstance(heard, WireError):
            raise as_our_error(heard, f"reading {self.partition}")
        if heard.kind == Kind.CLOSE_CONSUMER:
            raise TransientError(f"reading {self.partition}: the broker gave the topic up")
        return _entry_of(heard)

    def took(self, messages: int, wanted: int) -> None:
        """Say how many messages an entry held, and about how many more may be on their way.

        When half of that is used the broker may send more, but not much beyond it.
        """
        self._left -= messages
        most = max(1, wanted)
        if self._left * 2 <= most:
            self._link.write(flow(self._number, most - self._left))
            self._left = most

    def close(self) -> None:
        """Have the broker forget this reader; what it still sends is dropped."""
        self._link.ignore(self._number)
        request = self._link.number()
        self._link.request(request, close_consumer(self._number, request), _CLOSE_S)


def _entry_of(answer: Answer) -> RawEntry:
    place = answer.fields.get(2)
    numbers = numbers_of(place) if isinstance(place, bytes) else {}
    return RawEntry(numbers.get(1, -1), numbers.get(2, -1), answer.entry)
