"""A message on its way to Pulsar, and a partition with its messages, its producer and its stalls.

A partition is blocked if it stores nothing while Pulsar stores other messages. Time in which Pulsar is unreachable does
not count, because every partition needs a moment after an outage. So the owner asks Pulsar repeatedly while a partition
makes no progress. Only good answers over the whole time make it blocked.
"""

from __future__ import annotations

from collections import deque
from typing import Final, Literal, NamedTuple, TypeAlias

from bridge.pulsar.acks import Entry, ProducerQueue
from bridge.pulsar.client import ChunkingProducer
from bridge.pulsar.wire.producer import BatchProducer, Identity

__all__ = ["Flow", "Phase", "Producer", "Reading", "Stall", "Stalled"]

_NONE: Final[dict[str, str]] = {}


class Reading(Entry):
    """A message to store in Pulsar."""

    __slots__ = ("arrived", "event_ms", "head", "key", "payload", "properties", "size", "topic")

    def __init__(
        self,
        epoch: int,
        mid: int,
        arrived: float,
        payload: bytes = b"",
        topic: str = "",
        key: str = "",
        properties: dict[str, str] = _NONE,
        size: int = 0,
        event_ms: int = 0,
        head: bytes = b"",
    ) -> None:
        self.epoch = epoch
        self.mid = mid
        self.stored = False
        self.arrived = arrived
        """Monotonic time of arrival, in seconds."""
        self.payload = payload
        self.topic = topic
        """Full name of its Pulsar topic."""
        self.key = key
        self.properties = properties
        """Never mutated, because messages of one topic may share them."""
        self.size = size
        """Bytes that count against Pulsar's limit."""
        self.event_ms = event_ms
        self.head = head
        """Key and properties, encoded for ``bridge.pulsar.wire``."""


class Stalled(NamedTuple):
    """A topic or partition with messages that are not stored."""

    name: str
    waiting: int
    oldest: float
    """Arrival of the first of them, in seconds of the monotonic clock."""
    why: str
    """The known cause, empty if none is known."""


class Stall:
    """How long one partition has made no progress. Times are seconds of a monotonic clock; 0.0 means never."""

    def __init__(self) -> None:
        self.since = 0.0
        """Since when messages wait and none was stored."""
        self.why = ""
        """Pulsar's last answer about the partition."""
        self._good_since = 0.0
        self._asked = 0.0
        self._asking = False

    def progressed(self) -> None:
        """Note that a message was stored."""
        self.since = self._good_since = 0.0
        self.why = ""

    def looked(self, now: float, *, waiting: bool) -> None:
        """Note whether messages wait."""
        if not waiting:
            self.progressed()
        elif not self.since:
            self.since = now

    def ask_due(self, now: float, every_s: float) -> bool:
        """Whether to ask Pulsar now; if so, the caller passes the answer to ``answered``."""
        if not self.since or self._asking or now - max(self.since, self._asked) < every_s:
            return False
        self._asking = True
        return True

    def answered(self, now: float, *, good: bool, why: str) -> None:
        """Process an answer. ``good``: the partition's broker has answered; ``why``: the reason that it states."""
        self._asking = False
        self._asked = now
        if not self.since:
            return
        self.why = why
        if not good:
            self._good_since = 0.0
        elif not self._good_since:
            self._good_since = now

    def restart(self) -> None:
        """Restart the count, because Pulsar stored nothing else either."""
        self._good_since = 0.0

    def blocked(self, now: float, after_s: float) -> bool:
        """Whether it made no progress for ``after_s`` in which Pulsar answered each time."""
        return bool(self.since and self._good_since) and now - self._good_since >= after_s


Phase = Literal["open", "terminated", "blocking", "blocked", "releasing", "drained"]
"""Messages of ``terminated`` and ``blocked`` partitions go to the dead letters. ``releasing`` and ``drained`` partitions
keep theirs until a replay ends the block. A ``blocking`` partition is about to be blocked."""

Producer: TypeAlias = BatchProducer | ChunkingProducer
"""The producer of a partition: the first type for readings, the second for dead letters."""


class Flow:
    """The messages of a partition, its producer, and the state of its retries."""

    def __init__(self, partition: str, *, most: int, dead_letters: bool) -> None:
        self.partition = partition
        self.dead_letters = dead_letters
        self.unstored = ProducerQueue(most)
        self.producer: Producer | None = None
        self.identity: Identity | None = None
        """The identity of its next producer."""
        self.opening = False
        self.resting = False
        """Closed because no messages came; the next message opens a producer."""
        self.used = 0.0
        self.attempts = 0
        self.retry_at = 0.0
        self.phase: Phase = "open"
        self.diverted = ""
        """The reason why its messages go to the dead letters."""
        self.diverting: deque[Entry] = deque()
        """Messages for the dead letters that may not be stored yet."""
        self.stall = Stall()
        self.trouble = ""
        """The last error of its producer, empty after the next stored message."""

    def forget_stored(self) -> None:
        """Remove the stored messages from the head of ``diverting``."""
        while self.diverting and self.diverting[0].stored:
            self.diverting.popleft()
