"""When a message may be acknowledged to the MQTT broker. Pure: events in, actions out.

Two facts are kept apart. ``Lane`` knows what Pulsar has stored: one lane for each producer, in the order of
sending, where a receipt vouches only for what the same producer sent since its previous receipt, and the first
error retires the producer, so that everything since its last good receipt is sent again, in order, before
anything new (H1). ``AckQueue`` knows what the broker waits for: acknowledgements leave in the order of arrival
(MQTT-4.6.0-2), each only on the connection that brought its message (H2).

Neither knows sockets, threads or clocks. Who calls them: the ingest loop's thread alone.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Sequence
from enum import Enum, auto
from typing import Final

__all__ = ["AckQueue", "Entry", "Lane", "Verdict"]

_UNDER_WAY: Final = 2
_GOOD_BATCH: Final = 250
_CROWDED: Final = 12


class Entry:
    """One message between its arrival and its acknowledgement."""

    __slots__ = ("epoch", "mid", "stored")

    def __init__(self, epoch: int, mid: int) -> None:
        self.epoch = epoch
        """The connection that brought it."""
        self.mid = mid
        """Its packet identifier, 0 when it came at QoS 0 and wants no acknowledgement."""
        self.stored = False


class AckQueue:
    """The acknowledgements that the broker waits for, in order of arrival.

    Invariants: an entry leaves as an acknowledgement only when it and every entry that arrived before it on the
    same connection are stored; an entry of an earlier connection never leaves as an acknowledgement.
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
        """Begin a connection: what earlier ones brought is still written, only its acknowledgement is void.

        The broker sends it again when it kept the session; otherwise nobody waits for it any more.
        """
        self._epoch = epoch
        self._queue.clear()

    def arrived(self, entry: Entry) -> None:
        """Append a message. One of another connection than the open one is not queued."""
        if entry.epoch == self._epoch:
            self._queue.append(entry)

    def arrived_all(self, entries: Sequence[Entry]) -> None:
        """Append messages of one connection, in order."""
        if entries and entries[0].epoch == self._epoch:
            self._queue.extend(entries)

    def take(self) -> list[int]:
        """Remove what may be acknowledged now and return the packet identifiers, in order."""
        queue = self._queue
        mids: list[int] = []
        while queue and queue[0].stored:
            entry = queue.popleft()
            if entry.mid:
                mids.append(entry.mid)
        return mids


class Verdict(Enum):
    """What a receipt meant for a lane."""

    STORED = auto()
    """Everything up to the marked message is stored."""
    RETIRED = auto()
    """The producer must be closed, and a successor opened; then ``reopened``."""
    REFUSED = auto()
    """The lane's first message alone was refused for good: dead-letter it, then call ``discard``. Producer as above."""
    LATE = auto()
    """A producer that was retired earlier said something; it counts for nothing."""


class Lane:
    """What one producer was given and what is known to be stored, in order.

    ``most`` bounds what a producer is given without a receipt. It must not be above the producer's own queue: a queue
    that overflows in the middle of a turn refuses without a voice, and the turn's receipt would vouch for it (H1 a).
    ``generation`` numbers the lane's producers. While ``careful``, after a refusal that did not say which message
    it meant, messages are sent one at a time, so that the next refusal names the one it means.
    """

    def __init__(self, most: int = sys.maxsize) -> None:
        self.generation = 0
        self.open = False
        self._most = most
        self._given = 0  # how many stand in ``sent``
        self.waiting: list[Entry] = []
        """Not given to the present producer."""
        self.sent: deque[list[Entry]] = deque()
        """Given to the present producer since its last good receipt, as it was given; the last of each asks for one."""
        self._careful_left = 0

    def __len__(self) -> int:
        """How many messages are not known to be stored."""
        return len(self.waiting) + self._given

    @property
    def careful(self) -> bool:
        """Whether messages go one at a time."""
        return self._careful_left > 0

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
        """Note that a producer is open. Returns its generation, to be told with each of its receipts."""
        self.generation += 1
        self.open = True
        return self.generation

    def to_send(self) -> list[Entry]:
        """Take what the producer is to be given now, in order; the last one must ask for a receipt.

        While two batches are under way a small third one waits for the next receipt: so batches grow with the load,
        and none waits when there is little. When messages come so fast that the last batch grew beyond
        ``_CROWDED``, a second one waits too: Pulsar pays by the batch, and the time goes to the queue anyway.
        """
        room = self._most - self._given if not self._careful_left else 1 - self._given
        if not self.open or not self.waiting or room <= 0:
            return []
        if self.sent and len(self.waiting) < _GOOD_BATCH:
            most = 1 if len(self.sent[-1]) >= _CROWDED else _UNDER_WAY
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
        """Take a good receipt of ``marked``, the last of a batch. Returns what is stored by it, in order.

        A receipt of a retired producer vouches for nothing: it may stand behind messages that were refused.
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
        """Take an error of a producer. All it was given since its last good receipt waits again, in order.

        ``refused`` tells an error that the same message would meet again, as opposed to one that passes;
        ``careful`` one that passes only if less is sent at once.
        """
        if generation != self.generation or not self.open:
            return Verdict.LATE
        given = [entry for batch in self.sent for entry in batch]
        again = len(given)
        alone = self._careful_left > 0 and again == 1
        self.open = False
        self.waiting = given + self.waiting
        self.sent.clear()
        self._given = 0
        if refused and (alone or again == 1):
            return Verdict.REFUSED
        if refused or careful:
            self._careful_left = max(self._careful_left, again)
        return Verdict.RETIRED

    def give_up(self) -> list[Entry]:
        """Remove all that waits, in order: it goes elsewhere."""
        given, self.waiting = self.waiting, []
        self._careful_left = 0
        return given

    def discard(self) -> Entry:
        """Remove the first message after ``REFUSED``: it goes to the dead letters instead."""
        entry = self.waiting.pop(0)
        self._careful_left = max(0, self._careful_left - 1)
        return entry
