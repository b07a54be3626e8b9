"""The proof that a task read its whole range, and the classification of missing entries.

``RangeProof`` computes missing entries. ``classify`` decides about one of them by the admin's answer, which
``sources.reading`` requests. An entry that did not arrive never counts as read (H15).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum

from bridge.contract import Position
from bridge.errors import TransientError
from sources.planning import Segment

__all__ = ["RangeProof", "Verdict", "classify"]


class RangeProof:
    """The entries of a range read so far, in order. Memory grows by gaps, not by entries."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        self._segments = list(segments)
        self._at = 0
        self._next = self._segments[0].first if self._segments else 0
        self.missing: list[Position] = []
        """Entries passed over: a later one arrived, or no more arrived."""

    @property
    def complete(self) -> bool:
        """Whether every entry of the range was read or is in ``missing``."""
        return self._at >= len(self._segments)

    def saw(self, ledger: int, entry: int) -> bool:
        """Note an entry. Returns False if it is outside the range or a repeat: then its rows do not count.

        Raises TransientError if the reader goes back to entries that it already returned.
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
        """Count all pending entries as missing."""
        while self._at < len(self._segments):
            segment = self._segments[self._at]
            self._miss(segment.ledger, self._next, segment.stop)
            self._step()

    def pending(self) -> Iterator[Position]:
        """Iterate over the entries that have not arrived."""
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
    """The state of an entry that did not arrive."""

    LOST = "lost"
    """No longer in Pulsar: trimmed, expired or evicted."""
    MARKER = "marker"
    """A marker of Pulsar (transactions, replicated subscriptions): never a message."""
    ABORTED = "aborted"
    """Part of an aborted transaction: never a message to readers."""
    OPEN = "open transaction"
    """Not decided yet: Spark must retry the task."""
    PRESENT = "present"
    """An existing message that was not delivered: Spark must retry the task."""

    @property
    def settled(self) -> bool:
        """Whether the entry is not a message, so that its absence is correct."""
        return self in (Verdict.MARKER, Verdict.ABORTED)

    @property
    def may_come(self) -> bool:
        """Whether waiting for the entry makes sense."""
        return self in (Verdict.PRESENT, Verdict.OPEN)


def classify(status: int, headers: Mapping[str, str]) -> Verdict:
    """Return the verdict from the admin's answer for one entry (``headers`` by lower-case name).

    Raises TransientError if the answer does not describe the entry.
    """
    if status == 404:
        return Verdict.LOST
    if status != 200:
        raise TransientError(
            f"Pulsar's admin answered {status} when asked for a missing entry",
            remedy="check that Pulsar can read the whole topic: its bookies, and the storage that it offloads to",
        )
    if "x-pulsar-marker-type" in headers:
        return Verdict.MARKER
    if headers.get("x-pulsar-txn-aborted") == "true":
        return Verdict.ABORTED
    if headers.get("x-pulsar-txn-uncommitted") == "true":
        return Verdict.OPEN
    return Verdict.PRESENT
