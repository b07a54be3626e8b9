"""The messages of one partition on their way to Pulsar, with the producer that sends them."""

from __future__ import annotations

from collections import deque
from typing import Literal, TypeAlias

from bridge.intake.stalls import Stall
from bridge.pulsar.acks import Entry, ProducerQueue
from bridge.pulsar.client import ChunkingProducer
from bridge.pulsar.wire.producer import BatchProducer, Identity

__all__ = ["Flow", "Phase", "Producer"]

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
