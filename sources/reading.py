"""The task: read one range of one partition, prove that nothing of it is missing, give Arrow batches.

Runs in Spark's Python workers. The client is made in the worker that uses it, once for each process and never before
a fork. Which entries the range holds was decided by the planner; what a missing entry is, is decided by
``sources.proof`` from what the admin says of it, in the place where it is missing, so that rows keep their order.
Nothing waits without bound (H15).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from bridge.contract import Position
from bridge.errors import DataLossError, TransientError
from bridge.pulsar_client import MessageId, PulsarClient, ReceiveTimeout, our_errors
from bridge.settings.pulsar import PulsarSettings
from sources.columns import Entry, arrow_schema, record_batch
from sources.decoding import Decoder, Decoding
from sources.planning import Segment
from sources.proof import RangeProof, Verdict, batch_size, classify
from sources.value_types import TopicSchema

if TYPE_CHECKING:
    from bridge.pulsar_admin import PulsarAdmin

__all__ = ["ReadTask", "read_range"]

_BATCH_ROWS: Final = 10_000
_BATCH_BYTES: Final = 32 * 1024 * 1024
_QUEUE_BYTES: Final = 64 * 1024 * 1024
_ASK_MS: Final = 500
"""Silence after which the rest of a range is asked for. It may end in what is no message: then nothing comes."""
_ASK_ENTRIES: Final = 100
"""How many entries are asked for before the idle timeout is over."""


@dataclass(frozen=True)
class ReadTask:
    """What one task reads: existing entries of one partition, in order. Travels by pickle."""

    pulsar: PulsarSettings
    topic: str
    partition: str
    segments: tuple[Segment, ...]
    columns: tuple[str, ...]
    idle_timeout_ms: int
    fail_on_data_loss: bool
    entry_bytes: int = 1024
    """Average size of an entry, by which the receiver queue is bounded."""
    before: tuple[Segment, ...] = ()
    """Entries before the range, where the first chunk of a message that ends in it may be (H14)."""
    keys: str = "text"
    """``text``, ``bytes`` or ``base64``, as ``sources.columns`` takes it."""
    decoding: Decoding | None = None
    """How payloads are decoded, None where no column of the task needs it."""


_clients: dict[tuple[int, PulsarSettings], PulsarClient] = {}
_rows_per_entry: dict[str, float] = {}
_schemas: dict[tuple[str, str, int], TopicSchema] = {}
"""Versions of schemas by admin, topic and number: they never change."""


def _client(settings: PulsarSettings) -> PulsarClient:
    key = (os.getpid(), settings)
    if key not in _clients:
        _clients[key] = PulsarClient(settings)
    return _clients[key]


def _admin(settings: PulsarSettings) -> PulsarAdmin:
    from bridge.pulsar_admin import PulsarAdmin  # an HTTP client: only where something is missing

    return PulsarAdmin(settings)


def read_range(task: ReadTask) -> Iterator[Any]:
    """Yield the rows of the task's entries as Arrow record batches, in order.

    Raises DataLossError when entries are gone and the query fails on loss, TransientError when an entry is there
    and did not come, or cannot be classified: Spark then tries the task again.
    """
    if task.segments:
        yield from _Range(task).batches()


class _Range:
    """The state of one read."""

    def __init__(self, task: ReadTask) -> None:
        self.task = task
        self.proof = RangeProof(task.segments)
        self.decoder = None if task.decoding is None else Decoder(task.decoding, task.topic, self._version)
        types = {} if self.decoder is None else self.decoder.arrow
        self.schema = arrow_schema(task.columns, task.keys, types)
        self.entries: list[Entry] = []
        self.messages: list[Any] = []
        self.bytes = 0
        self.lost: list[Position] = []

    def batches(self) -> Iterator[Any]:
        first = self.task.segments[0]
        with our_errors(f"reading {self.task.partition}"):
            reader = self._reader(Position(first.ledger, first.first))
            try:
                while not self.proof.complete:
                    self._step(reader)
                    if len(self.messages) >= _BATCH_ROWS or self.bytes >= _BATCH_BYTES:
                        yield self._flush()
            finally:
                reader.close()
        if self.messages:
            yield self._flush()
        self._report_loss()

    def _reader(self, place: Position) -> Any:
        # The queue counts messages, the bound is in bytes: what an entry holds is known from the range before.
        rows = _rows_per_entry.get(self.task.partition, 1.0)
        queue = max(16, min(10_000, int(_QUEUE_BYTES * rows / self.task.entry_bytes)))
        start = MessageId(-1, place.ledger, place.entry, -1)
        return _client(self.task.pulsar).reader(self.task.partition, start, queue=queue)

    def _step(self, reader: Any) -> None:
        """Take the next entry, or settle what did not come."""
        found = self._receive(reader, min(_ASK_MS, self.task.idle_timeout_ms))
        if found is None and not self._rest_cannot_come():
            found = self._receive(reader, max(1, self.task.idle_timeout_ms - _ASK_MS))
        if found is None:
            self.proof.give_up()
            self._settle()
            return
        entry, messages = found
        counts = self.proof.saw(entry.ledger, entry.entry)
        self._settle()
        if counts:
            self._take(entry, messages)

    def _receive(self, reader: Any, timeout_ms: int) -> tuple[Entry, list[Any]] | None:
        """Receive all messages of the next entry, None when nothing comes within the timeout."""
        receive = reader._reader.read_next  # below the wrapper: half of the cost of a message
        try:
            message = receive(timeout_ms)
        except ReceiveTimeout:
            return None
        of = message.message_id()
        ledger, number, index = of.ledger_id(), of.entry_id(), of.batch_index()
        serialized = of.serialize()
        if index < 0:
            return Entry(ledger, number, 1, serialized, False), [message]
        size = batch_size(serialized)
        messages = [message]
        name = f"{self.task.partition}: entry {ledger}:{number}"
        if index != 0:
            raise TransientError(f"{name} came from its message {index} on, the first of {size} is missing")
        try:
            for _ in range(size - 1):
                messages.append(receive(self.task.idle_timeout_ms))
        except ReceiveTimeout as e:
            raise TransientError(f"{name}: only {len(messages)} of its {size} messages came") from e
        last = messages[-1].message_id()
        if (last.ledger_id(), last.entry_id(), last.batch_index()) != (ledger, number, size - 1):
            raise TransientError(f"{name} came mixed with others: its last message is not where it must be")
        return Entry(ledger, number, size, serialized, True), messages

    def _take(self, entry: Entry, messages: list[Any]) -> None:
        self.entries.append(entry)
        self.messages.extend(messages)
        self.bytes += len(messages[0].data()) * entry.size

    def _flush(self) -> Any:
        task = self.task
        decoded = {} if self.decoder is None else self.decoder.arrays(self.messages)
        batch = record_batch(
            self.schema,
            task.topic,
            task.partition,
            self.entries,
            self.messages,
            keys=task.keys,
            decoded=decoded,
        )
        _rows_per_entry[self.task.partition] = len(self.messages) / len(self.entries)
        self.entries, self.messages, self.bytes = [], [], 0
        return batch

    def _version(self, number: int) -> TopicSchema:
        key = (self.task.pulsar.admin_url, self.task.topic, number)
        if key not in _schemas:
            from sources.topic_schemas import schema_version

            with _admin(self.task.pulsar) as admin:
                _schemas[key] = schema_version(admin, self.task.topic, number)
        return _schemas[key]

    # --- what did not come ---

    def _rest_cannot_come(self) -> bool:
        """Whether all that is left is known not to come: no messages, or gone. Then waiting is in vain."""
        rest = list(islice(self.proof.pending(), _ASK_ENTRIES + 1))
        if len(rest) > _ASK_ENTRIES:
            return False
        try:
            with _admin(self.task.pulsar) as admin:
                return not any(self._verdict(admin, place).may_come for place in rest)
        except TransientError:  # the broker is away: the reader waits for it, as long as the timeout allows
            return False

    def _verdict(self, admin: PulsarAdmin, place: Position) -> Verdict:
        status, headers = admin.entry_headers(self.task.partition, place.ledger, place.entry)
        return classify(status, headers)

    def _settle(self) -> None:
        """Ask for each entry that was passed over and act on what it is; never count it as seen unasked."""
        if not self.proof.missing:
            return
        missing, self.proof.missing = self.proof.missing, []
        with _admin(self.task.pulsar) as admin:
            for place in missing:
                verdict = self._verdict(admin, place)
                if verdict is Verdict.LOST:
                    self._lose(place)
                elif verdict is Verdict.LAST_CHUNK:
                    self._read_chunked(admin, place)
                elif not verdict.settled:
                    raise TransientError(
                        f"{self.task.partition}: entry {place.ledger}:{place.entry} is there ({verdict.value}) "
                        f"and did not come within {self.task.idle_timeout_ms} ms"
                    )

    def _read_chunked(self, admin: PulsarAdmin, last: Position) -> None:
        """Read a message whose first chunk lies before where the reader began, from that chunk on (H14)."""
        wanted = admin.entry_headers(self.task.partition, last.ledger, last.entry)[1].get("x-pulsar-uuid")
        for place in self._backwards(last):
            headers = admin.entry_headers(self.task.partition, place.ledger, place.entry)[1]
            if headers.get("x-pulsar-uuid") == wanted and headers.get("x-pulsar-chunk-id") == "0":
                break
        else:
            self._lose(last)
            return
        reader = self._reader(place)
        try:
            while (found := self._receive(reader, self.task.idle_timeout_ms)) is not None:
                at = Position(found[0].ledger, found[0].entry)
                if at >= last:
                    if at == last:
                        self._take(*found)
                        return
                    break
        finally:
            reader.close()
        raise TransientError(f"{self.task.partition}: the chunked message that ends at {last} did not come")

    def _backwards(self, last: Position) -> Iterator[Position]:
        known = [*self.task.before, *self.task.segments]
        for segment in reversed(known):
            for entry in range(segment.stop - 1, segment.first - 1, -1):
                if (place := Position(segment.ledger, entry)) < last:
                    yield place

    def _lose(self, place: Position) -> None:
        self.lost.append(place)
        if not self.task.fail_on_data_loss:
            return
        raise DataLossError(
            f"{self.task.partition}: entry {place.ledger}:{place.entry}, which the query still has to read, "
            "is no longer in Pulsar",
            remedy="keep message TTL and eviction off and retention longer than a query may be down; "
            "failOnDataLoss=false goes on with what is left",
        )

    def _report_loss(self) -> None:
        if self.lost:
            import structlog

            structlog.get_logger("source").warning(
                "entries are gone and failOnDataLoss is off: check TTL, eviction and retention of the topic",
                partition=self.task.partition,
                entries=len(self.lost),
                first=list(self.lost[0]),
            )
