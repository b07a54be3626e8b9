"""Writes rows to partitions in batches, by ``bridge.pulsar.wire``: Pulsar's client takes 0.1 ms for each message.

A row is stored when Pulsar says so of its batch. After an error the next producer is given again what no receipt vouches
for, in order, so a row may be there twice. All of it runs on its owner's thread, but what opens a producer, which blocks;
the results are posted as events.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from bridge.backoff import backoff_s
from bridge.errors import DeniedError, PulsebridgeError, RefusedError, TerminatedError, TransientError
from bridge.pulsar.acks import Entry, ProducerQueue, Verdict
from bridge.pulsar.client import PulsarClient
from bridge.pulsar.errors import as_our_error, names_a_message
from bridge.pulsar.wire.batches import head_of
from bridge.pulsar.wire.commands import WireError
from bridge.pulsar.wire.producer import BatchProducer, Identity
from bridge.threads import start_thread

__all__ = ["BatchAnswered", "BatchWriter", "ProducerOpened"]

_RETRY_MIN_S: Final = 0.2
_RETRY_MAX_S: Final = 10.0
_GONE_ATTEMPTS: Final = 8
"""Some 20 to 40 seconds; then its owner ends, and the next one looks up the partitions."""


class _Row(Entry):
    """A row on its way."""

    __slots__ = ("event_ms", "head", "payload", "token")

    def __init__(self, key: str, payload: bytes, token: object) -> None:
        super().__init__(0, 0)
        self.head = head_of(key, {})
        self.payload = payload
        self.event_ms = 0
        self.token = token


@dataclass(slots=True, eq=False)
class _Partition:
    """A partition, and its producer."""

    name: str
    unstored: ProducerQueue = field(default_factory=ProducerQueue)
    producer: BatchProducer | None = None
    identity: Identity | None = None
    """Of the next producer."""
    opening: bool = False
    attempts: int = 0
    retry_at: float = 0.0


@dataclass(frozen=True, slots=True)
class BatchAnswered:
    """Pulsar has stored a batch up to ``row``, or its producer has ended with ``error``."""

    partition: _Partition
    generation: int
    row: _Row
    error: WireError | None


@dataclass(frozen=True, slots=True)
class ProducerOpened:
    """A producer is open, or was refused."""

    partition: _Partition
    result: BatchProducer | PulsebridgeError


class BatchWriter:
    """The rows that one owner writes. Other threads call ``post`` for events, ``failed`` for an unexpected error."""

    def __init__(
        self, client: PulsarClient, post: Callable[[object], None], failed: Callable[[Exception], None]
    ) -> None:
        self._client = client
        self._post = post
        self._failed = failed
        self._partitions: dict[str, _Partition] = {}

    @property
    def writing(self) -> bool:
        """Whether Pulsar has not answered for a batch."""
        return any(partition.unstored.sent for partition in self._partitions.values())

    def write(self, partition: str, key: str, payload: bytes, token: object) -> None:
        """Take a row; it leaves with the next ``flush``. ``written`` returns ``token`` once it is stored."""
        known = self._partitions.get(partition)
        if known is None:
            known = self._partitions[partition] = _Partition(partition)
        known.unstored.put(_Row(key, payload, token))

    def flush(self, now: float) -> None:
        """Send what waits. ``now`` is the monotonic clock, in seconds."""
        for partition in self._partitions.values():
            if not partition.unstored.waiting:
                continue
            if partition.producer is None:
                if not partition.opening and now >= partition.retry_at:
                    self._open(partition)
            elif batch := partition.unstored.to_send():
                row = batch[-1]
                assert isinstance(row, _Row)
                receipt = partial(self._answered, partition, partition.unstored.generation, row)
                partition.producer.send(batch, receipt)  # type: ignore[arg-type]

    def written(self, event: BatchAnswered) -> list[object]:
        """Return the tokens of the rows that are stored, in order. Raises PulsebridgeError if Pulsar refuses one for good."""
        partition, unstored = event.partition, event.partition.unstored
        if event.error is None:
            partition.attempts = 0
            return [row.token for row in unstored.receipt(event.generation, event.row) if isinstance(row, _Row)]
        verdict = unstored.failed(event.generation, refused=names_a_message(event.error))
        if verdict is Verdict.REFUSED:
            raise as_our_error(event.error, f"writing to {partition.name}")
        if verdict is Verdict.RETIRED:
            self._open(partition)
        return []

    def opened(self, event: ProducerOpened, now: float) -> None:
        """A producer is open, or was refused. Raises PulsebridgeError for a permanent refusal.

        A missing topic is waited for, because a deleted one is re-created; if its owner ended at once, it would repeat
        what was done just now.
        """
        partition, result = event.partition, event.result
        partition.opening = False
        if not isinstance(result, PulsebridgeError):
            partition.producer = result
            partition.unstored.reopened()
            return
        gone = isinstance(result, RefusedError) and not isinstance(result, (DeniedError, TerminatedError))
        if not isinstance(result, TransientError) and not (gone and partition.attempts < _GONE_ATTEMPTS):
            raise result
        partition.retry_at = now + backoff_s(partition.attempts, _RETRY_MIN_S, _RETRY_MAX_S, 0.5)
        partition.attempts += 1

    def _answered(self, partition: _Partition, generation: int, row: _Row, error: WireError | None) -> None:
        self._post(BatchAnswered(partition, generation, row, error))  # on the connection's thread

    def _open(self, partition: _Partition) -> None:
        former, partition.producer = partition.producer, None
        partition.opening = True

        def opening() -> None:
            result: BatchProducer | PulsebridgeError
            try:
                if former is not None:
                    former.close()
                    partition.identity = former.successor()
                result = self._client.batch_producer(partition.name, partition.identity)
            except PulsebridgeError as e:
                result = e
            self._post(ProducerOpened(partition, result))

        start_thread(f"batch-writer-{partition.name[-4:]}", opening, self._failed)
