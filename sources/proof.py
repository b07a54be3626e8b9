"""The proof that a task saw every entry of its range, and the verdict on those that it did not see.

Pure: entries seen go in, what is missing comes out, and what the admin says about one missing entry becomes a
verdict. ``sources.reading`` does the asking. An entry is never counted as seen because it did not come (H15).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum

from bridge.contract import Position
from bridge.errors import TransientError
from sources.planning import Segment

__all__ = ["RangeProof", "Verdict", "classify"]


class RangeProof:
    """Which entries of a range have been seen, in order. Memory grows by gaps, not by entries."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        self._segments = list(segments)
        self._at = 0
        self._next = self._segments[0].first if self._segments else 0
        self.missing: list[Position] = []
        """Entries passed over: something after them arrived, or nothing more came."""

    @property
    def complete(self) -> bool:
        """Whether every entry of the range was seen or is in ``missing``."""
        return self._at >= len(self._segments)

    def saw(self, ledger: int, entry: int) -> bool:
        """Note an entry. Returns False when it lies outside the range or was seen before: then its rows do not count.

        Raises TransientError when the reader goes backwards into what it already gave.
        """
        while self._at < len(self._segments):
            segment = self._segments[self._at]
            if ledger < segment.ledger or (ledger == segment.ledger and entry < self._next):
                return False
            if ledger == segment.ledger and entry < segment.stop:
                self._miss(segment.ledger, self._next, entry)
                self._next = entry + 1
                if self._next == segment.stop:
                    self._step()
                return True
            self._miss(segment.ledger, self._next, segment.stop)
            self._step()
        return False

    def give_up(self) -> None:
        """Count everything that has not come as missing."""
        while self._at < len(self._segments):
            segment = self._segments[self._at]
            self._miss(segment.ledger, self._next, segment.stop)
            self._step()

    def pending(self) -> Iterator[Position]:
        """Iterate over the entries that have not come yet."""
        for index in range(self._at, len(self._segments)):
            segment = self._segments[index]
            first = self._next if index == self._at else segment.first
            for entry in range(first, segment.stop):
                yield Position(segment.ledger, entry)

    def _miss(self, ledger: int, first: int, stop: int) -> None:
        self.missing.extend(Position(ledger, entry) for entry in range(first, stop))

    def _step(self) -> None:
        self._at += 1
        if self._at < len(self._segments):
            self._next = self._segments[self._at].first


class Verdict(Enum):
    """What an entry is that did not come."""

    LOST = "lost"
    """No longer in Pulsar: trimmed, expired or evicted."""
    MARKER = "marker"
    """A marker of Pulsar's own (transactions, replicated subscriptions): never a message."""
    ABORTED = "aborted"
    """Part of an aborted transaction: never a message to readers."""
    OPEN = "open transaction"
    """Not decided yet: the task has to be tried again."""
    PRESENT = "present"
    """A message that is there and was not delivered: the task has to be tried again."""

    @property
    def settled(self) -> bool:
        """Whether the entry is no message of this range, so that its not coming is right."""
        return self in (Verdict.MARKER, Verdict.ABORTED)

    @property
    def may_come(self) -> bool:
        """Whether waiting for the entry makes sense."""
        return self in (Verdict.PRESENT, Verdict.OPEN)


def classify(status: int, headers: Mapping[str, str]) -> Verdict:
    """Return what the admin's answer to a request for one entry says (``headers`` by lower-case name).

    Raises TransientError when it says nothing about the entry.
    """
    if status == 404:
        return Verdict.LOST
    if status != 200:
        raise TransientError(
            f"Pulsar's admin answered {status} when asked for a missing entry",
            remedy="see that Pulsar can read the topic whole: its bookies, and the storage that it offloads to",
        )
    if "x-pulsar-marker-type" in headers:
        return Verdict.MARKER
    if headers.get("x-pulsar-txn-aborted") == "true":
        return Verdict.ABORTED
    if headers.get("x-pulsar-txn-uncommitted") == "true":
        return Verdict.OPEN
    return Verdict.PRESENT
