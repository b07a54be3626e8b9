"""Decides when a message may be acknowledged to the MQTT broker: events in, actions out.

``ProducerQueue`` records which messages of one producer Pulsar has stored, in the order of sending. A receipt confirms only
the messages that the same producer sent since its previous receipt. The first error retires the producer: every
message since its last good receipt is resent, in order, before any new one (H1). ``AckQueue`` records the
acknowledgements that the broker waits for. They are sent in the order of arrival (MQTT-4.6.0-2), each only on the
connection of its message (H2).

Neither uses sockets, threads or clocks. Only the ingest loop's thread calls them.
"""

from __future__ import annotations

import sys
from collections import deque
from enum import Enum, auto
from typing import Final

__all__ = ["AckQueue", "Entry", "ProducerQueue", "Verdict"]

_IN_FLIGHT: Final = 2
_GOOD_BATCH: Final = 250
_CROWDED: Final = 12


class Entry:
    """One message between its arrival and its acknowledgement."""

    __slots__ = ("epoch", "mid", "stored")

    def __init__(self, epoch: int, mid: int) -> None:
        self.epoch = epoch
        """The connection on which it arrived."""
        self.mid = mid
        """Its packet identifier; 0 at QoS 0, which has no acknowledgement."""
        self.stored = False


class AckQueue:
    """The acknowledgements that the broker waits for, in order of arrival.

    Invariants: an entry is acknowledged only if it and every earlier entry of the same connection are stored. An
    entry of an earlier connection is never acknowledged.
    """

    def __init__(self) -> None:
        self._queue: deque[Entry] = deque()
        self._epoch = 0

    def __len__(self) -> int:
        """How many messages of the open connection are not acknowledged."""
        return len(self._queue)

    @property
    def oldest(self) -> Entry | None:
        """The entry that the next acknowledgement waits for."""
        return self._queue[0] if self._queue else None

    def connected(self, epoch: int) -> None:
        """Begin a connection. Messages of earlier ones are still written, but their acknowledgements are void.

        The broker resends these messages if it kept the session; else it no longer waits for acknowledgements.
        """
        self._epoch = epoch
        self._queue.clear()

    def arrived(self, *entries: Entry) -> None:
        """Append messages of one connection, in order, unless it is not the open one."""
        if entries and entries[0].epoch == self._epoch:
            self._queue.extend(entries)

    def take(self) -> list[int]:
        """Remove the entries that may be acknowledged now. Returns their packet identifiers, in order."""
        queue = self._queue
        mids: list[int] = []
        while queue and queue[0].stored:
            entry = queue.popleft()
            if entry.mid:
                mids.append(entry.mid)
        return mids


class Verdict(Enum):
    """The effect of a producer's answer on its ``ProducerQueue``."""

    RETIRED = auto()
    """The producer must be closed, and a successor opened; then call ``reopened``."""
    REFUSED = auto()
    """Pulsar permanently refused the first message alone: dead-letter it, call ``discard``. Producer as above."""
    LATE = auto()
    """The answer is of a producer that was retired earlier; it has no effect."""


class ProducerQueue:
    """The messages given to one producer, in order, and which of them Pulsar has stored.

    ``most`` bounds the messages given to a producer without a receipt. It must not exceed the producer's own queue. A
    queue that overflows within a batch refuses messages without an error, and the batch's receipt would confirm them
    (H1 a). ``generation`` numbers the producers. A refusal that does not identify its message starts the ``careful``
    mode: messages are sent one at a time, so that the next refusal identifies its message.
    """

    def __init__(self, most: int = sys.maxsize) -> None:
        self.generation = 0
        self.open = False
        self._most = most
        self._given = 0  # entries in ``sent``
        self.waiting: list[Entry] = []
        """Not given to the current producer."""
        self.sent: deque[list[Entry]] = deque()
        """Batches given to the current producer since its last good receipt; the last entry of each asks for one."""
        self._careful_left = 0

    def __len__(self) -> int:
        """How many messages are not known to be stored."""
        return len(self.waiting) + self._given

    @property
    def oldest(self) -> Entry | None:
        """The first message that is not known to be stored."""
        if self.sent:
            return self.sent[0][0]
        return self.waiting[0] if self.waiting else None

    def put(self, entry: Entry) -> None:
        """Append a message."""
        self.waiting.append(entry)

    def reopened(self) -> int:
        """Note that a producer is open. Returns its generation, to be passed with each of its receipts."""
        self.generation += 1
        self.open = True
        return self.generation

    def to_send(self) -> list[Entry]:
        """Take the messages to give to the producer now, in order; the last one must ask for a receipt.

        While two batches are in flight, a small third one waits for the next receipt. So batches grow with the load,
        and none waits at a low load. If the last batch grew beyond ``_CROWDED``, a second one waits too. Pulsar's cost
        is per batch, and the messages would wait in the queue anyway.
        """
        room = self._most - self._given if not self._careful_left else 1 - self._given
        if not self.open or not self.waiting or room <= 0:
            return []
        if self.sent and len(self.waiting) < _GOOD_BATCH:
            most = 1 if len(self.sent[-1]) >= _CROWDED else _IN_FLIGHT
            if len(self.sent) >= most:
                return []
        batch, self.waiting = self.waiting, []
        if len(batch) > room:
            self.waiting = batch[room:]
            del batch[room:]
        self._given += len(batch)
        self.sent.append(batch)
        return batch

    def receipt(self, generation: int, marked: Entry) -> list[Entry]:
        """Process a good receipt of ``marked``, the last of a batch. Returns the entries that it confirms, in order.

        A receipt of a retired producer confirms nothing, because it may follow messages that were refused.
        """
        if generation != self.generation or not self.open or marked.stored:
            return []
        stored: list[Entry] = []
        while self.sent:
            batch = self.sent.popleft()
            stored += batch
            if batch[-1] is marked:
                break
        for entry in stored:
            entry.stored = True
        self._given -= len(stored)
        self._careful_left = max(0, self._careful_left - len(stored))
        return stored

    def failed(self, generation: int, *, refused: bool, careful: bool = False) -> Verdict:
        """Process an error of a producer. Its entries since the last good receipt return to ``waiting``, in order.

        ``refused``: the same message would get this error on each attempt. ``careful``: the error passes only if less
        is sent at once.
        """
        if generation != self.generation or not self.open:
            return Verdict.LATE
        given = [entry for batch in self.sent for entry in batch]
        count = len(given)
        alone = self._careful_left > 0 and count == 1
        self.open = False
        self.waiting = given + self.waiting
        self.sent.clear()
        self._given = 0
        if refused and (alone or count == 1):
            return Verdict.REFUSED
        if refused or careful:
            self._careful_left = max(self._careful_left, count)
        return Verdict.RETIRED

    def give_up(self) -> list[Entry]:
        """Remove and return all waiting entries, in order; the caller writes them elsewhere."""
        given, self.waiting = self.waiting, []
        self._careful_left = 0
        return given

    def discard(self) -> Entry:
        """Remove and return the first message after ``REFUSED``, for the dead letters."""
        entry = self.waiting.pop(0)
        self._careful_left = max(0, self._careful_left - 1)
        return entry
