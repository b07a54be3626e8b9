"""The task: reads one range of a partition, proves its completeness, yields Arrow batches.

Runs in Spark's Python workers. It reads entries, not messages (``bridge.pulsar.wire``), so it gets each entry of the
range, chunks included, and converts them to columns. The worker connects itself, once for each process and thread,
never before a fork. The planner decided which entries are in the range. ``sources.proof`` classifies a missing entry
by the admin's answer, before later rows follow, so that rows keep their order. Every wait is bounded (H15).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from bridge.contract import Position
from bridge.errors import ContractError, DataLossError, TransientError
from bridge.killpoints import reach
from bridge.loggers import get_logger
from bridge.pulsar.wire.entry_reader import EntryReader, WireReaders
from bridge.settings.pulsar import PulsarSettings
from sources.chunks import part_of
from sources.columns import arrow_schema, record_batch
from sources.decoding import Decoder, Decoding
from sources.entries import Opened, Opener, joined, open_entry
from sources.planning import Segment
from sources.proof import RangeProof, Verdict, classify
from sources.value_types import TopicSchema

if TYPE_CHECKING:
    from bridge.pulsar.admin import PulsarAdmin

__all__ = ["ReadTask", "read_kept", "read_range"]

_BATCH_ROWS: Final = 5_000
_BATCH_BYTES: Final = 32 * 1024 * 1024
_QUEUE_BYTES: Final = 64 * 1024 * 1024
_MOST_MESSAGES: Final = 100_000
"""Messages that the broker may send before further permits. The queue is also bounded in bytes."""
_CHUNKED: Final = 10
"""How many chunked messages may be incomplete at once, as in Pulsar's own clients."""
_RETRY_S: Final = 0.2
_ASK_MS: Final = 500
"""Silence before the admin is asked about remaining entries. Entries that are not messages never arrive."""
_ASK_ENTRIES: Final = 100
"""Most entries to ask about before the idle timeout has passed."""


@dataclass(frozen=True)
class ReadTask:
    """The entries that one task reads: existing ones of one partition, in order. Is pickled."""

    pulsar: PulsarSettings
    topic: str
    partition: str
    segments: tuple[Segment, ...]
    columns: tuple[str, ...]
    idle_timeout_ms: int
    fail_on_data_loss: bool
    entry_bytes: int = 1024
    """Average size of an entry, which bounds the receiver queue."""
    before: tuple[Segment, ...] = ()
    """Entries before the range, in which a message of the range may begin (H14)."""
    keys: str = "text"
    """``text``, ``bytes`` or ``base64``, as in ``sources.columns``."""
    decoding: Decoding | None = None
    """How payloads are decoded, None if no column of the task needs it."""


_connected: dict[tuple[int, int, PulsarSettings], WireReaders] = {}
_rows_per_entry: dict[str, float] = {}
_schemas: dict[tuple[str, str, int], TopicSchema] = {}
"""Schema versions by admin URL, topic and number: they never change."""


def _readers(settings: PulsarSettings) -> WireReaders:
    key = (os.getpid(), threading.get_ident(), settings)
    if key not in _connected:
        _connected[key] = WireReaders(settings)
    return _connected[key]


def _admin(settings: PulsarSettings) -> PulsarAdmin:
    from bridge.pulsar.admin import PulsarAdmin  # an HTTP client, needed only for missing entries

    return PulsarAdmin(settings)


def read_range(task: ReadTask) -> Iterator[Any]:
    """Yield the rows of the task's entries as Arrow record batches, in order.

    Raises DataLossError if entries are gone and the query fails on loss. Raises TransientError if an entry exists and
    did not arrive, or cannot be classified: Spark then retries the task.
    """
    if task.segments:
        yield from _Range(task).batches()


def read_kept(task: ReadTask, entries: Iterable[Opened]) -> list[Any]:
    """Return the same record batches as ``read_range``, from entries in memory.

    ``entries`` are all entries of the task, in order, without chunks. Raises the errors of ``read_range``.
    """
    return list(_Kept(task, entries).batches())


class _Range:
    """The state of one read."""

    def __init__(self, task: ReadTask) -> None:
        self.task = task
        self.proof = RangeProof(task.segments)
        self.decoder = None if task.decoding is None else Decoder(task.decoding, task.topic, self._version)
        types = {} if self.decoder is None else self.decoder.arrow
        self.schema = arrow_schema(task.columns, task.keys, types)
        self.opener = Opener()
        self.reader: EntryReader | None = None
        self.left = sum(segment.stop - segment.first for segment in task.segments)
        """Number of unread entries."""
        self.chunks: dict[str, list[Opened]] = {}
        """Chunks of incomplete messages, by message id."""
        self.lost: list[Position] = []
        self.trouble: tuple[int, float] | None = None
        """Number of unread entries when the connection began to fail, and that time."""

    def batches(self) -> Iterator[Any]:
        try:
            while not self.proof.complete:
                self._step()
                if len(self.opener.rows) >= _BATCH_ROWS or self.opener.rows.size >= _BATCH_BYTES:
                    yield self._flush()
        finally:
            self._leave()
        if len(self.opener.rows):
            yield self._flush()
        reach("source_after_task")
        self._report_loss()

    def _reader(self, position: Position, entries: int) -> EntryReader:
        rows = _rows_per_entry.get(self.task.partition, 1.0)
        permits = max(16, min(int(entries * rows), self._permits(rows)))
        readers = _readers(self.task.pulsar)
        return readers.reader(self.task.partition, position.ledger, position.entry, permits=permits)

    def _permits(self, per_entry: float) -> int:
        # Permits count messages, but the bound is in bytes.
        return max(16, min(_MOST_MESSAGES, int(_QUEUE_BYTES * per_entry / self.task.entry_bytes)))

    def _leave(self) -> None:
        reader, self.reader = self.reader, None
        if reader is not None:
            reader.close()

    def _receive(self, timeout_ms: int) -> Opened | None:
        """Return the next entry, None if nothing arrives in time.

        If the connection is lost or the topic moves to another broker, a new reader continues there. After the idle
        timeout without progress, the TransientError is raised.
        """
        while True:
            try:
                if self.reader is None:
                    self.reader = self._reader(next(self.proof.pending()), self.left)
                found = self.reader.receive(timeout_ms / 1000)
                break
            except TransientError:
                self._leave()
                now = time.monotonic()
                if self.trouble is None or self.trouble[0] != self.left:
                    self.trouble = (self.left, now)
                if now - self.trouble[1] >= self.task.idle_timeout_ms / 1000:
                    raise
                time.sleep(_RETRY_S)
        return None if found is None else open_entry(found, self.task.partition)

    def _step(self) -> None:
        """Read the next entry, or classify missing ones."""
        found = self._receive(min(_ASK_MS, self.task.idle_timeout_ms))
        if found is None and not self._rest_cannot_come():
            found = self._receive(max(1, self.task.idle_timeout_ms - _ASK_MS))
        if found is None:
            self.proof.give_up()
            self._settle()
            return
        counts = self.proof.saw(found.ledger, found.entry)
        self._settle()
        self.left -= counts
        if self.reader is not None:
            rows = self.opener.rows
            per_entry = len(rows) / len(rows.entries) if rows.entries else found.size
            wanted = int(self.left * max(1.0, per_entry))
            # A new worker does not know the rows per entry: it would wait for each entry.
            self.reader.took(found.size, min(wanted, self._permits(max(1.0, per_entry))))
        if counts:
            self._take(found)

    def _take(self, opened: Opened) -> None:
        if opened.marker:
            return
        chunk = opened.chunk
        if chunk is None:
            self._add(opened)
            return
        parts = self.chunks.pop(chunk.uuid, [])
        if chunk.number == 0:
            parts = []  # its producer may have restarted the message
        if chunk.number == len(parts):
            parts.append(opened)
        if len(parts) == chunk.total:
            self._add(joined(parts))
        elif chunk.number == chunk.total - 1:
            self._read_chunked(opened)
        else:
            self.chunks[chunk.uuid] = parts
            if len(self.chunks) > _CHUNKED:
                del self.chunks[next(iter(self.chunks))]  # if its last chunk arrives, it is reread

    def _add(self, opened: Opened) -> None:
        """Add the rows of an entry. An unreadable one counts as lost, because a retry would read the same bytes."""
        try:
            self.opener.add(opened)
        except ContractError as e:
            self._lose(Position(opened.ledger, opened.entry), e.what)

    def _flush(self) -> Any:
        rows = self.opener.flush()
        _rows_per_entry[self.task.partition] = len(rows) / len(rows.entries)
        task = self.task
        reach("source_in_task")
        decoded = {} if self.decoder is None else self.decoder.arrays(list(rows.stored_payloads()))
        return record_batch(self.schema, task.topic, task.partition, rows, keys=task.keys, decoded=decoded)

    def _version(self, number: int) -> TopicSchema:
        key = (self.task.pulsar.admin_url, self.task.topic, number)
        if key not in _schemas:
            from sources.topic_schemas import schema_version

            with _admin(self.task.pulsar) as admin:
                _schemas[key] = schema_version(admin, self.task.topic, number)
        return _schemas[key]

    # --- missing entries ---

    def _rest_cannot_come(self) -> bool:
        """Whether no remaining entry can arrive (not messages, or gone), so that waiting is useless."""
        rest = list(islice(self.proof.pending(), _ASK_ENTRIES + 1))
        if len(rest) > _ASK_ENTRIES:
            return False
        try:
            with _admin(self.task.pulsar) as admin:
                return not any(self._verdict(admin, position).may_come for position in rest)
        except TransientError:  # the admin is unreachable: the reader waits for the rest of the timeout
            return False

    def _verdict(self, admin: PulsarAdmin, position: Position) -> Verdict:
        status, headers = admin.entry_headers(self.task.partition, position.ledger, position.entry)
        return classify(status, headers)

    def _settle(self) -> None:
        """Ask the admin about each entry passed over, and act on the verdict. No entry counts as read without it."""
        if not self.proof.missing:
            return
        missing, self.proof.missing = self.proof.missing, []
        with _admin(self.task.pulsar) as admin:
            for position in missing:
                verdict = self._verdict(admin, position)
                if verdict is Verdict.LOST:
                    self._lose(position)
                elif not verdict.settled:
                    raise TransientError(
                        f"{self.task.partition}: entry {position.ledger}:{position.entry} exists ({verdict.value}) "
                        f"and did not arrive within {self.task.idle_timeout_ms} ms"
                    )

    def _read_chunked(self, last: Opened) -> None:
        """Read a message from its first chunk on, which is before the reader's start (H14)."""
        assert last.chunk is not None
        end = Position(last.ledger, last.entry)
        first = self._first_chunk(end, last.chunk.uuid)
        if first is None:
            self._lose(end)
            return
        parts: list[Opened] = []
        reader = self._reader(first, last.chunk.total)
        try:
            while len(parts) < last.chunk.total - 1:
                found = reader.receive(self.task.idle_timeout_ms / 1000)
                if found is None or Position(found.ledger, found.entry) >= end:
                    raise TransientError(
                        f"{self.task.partition}: the chunked message that ends at {end} did not arrive"
                    )
                opened = open_entry(found, self.task.partition)
                reader.took(opened.size, min(last.chunk.total, self._permits(1.0)))
                if opened.chunk is not None and opened.chunk.uuid == last.chunk.uuid:
                    parts.append(opened)
        finally:
            reader.close()
        self._add(joined([*parts, last]))

    def _first_chunk(self, last: Position, uuid: str) -> Position | None:
        with _admin(self.task.pulsar) as admin:
            for position in self._backwards(last):
                part = part_of(admin.entry_headers(self.task.partition, position.ledger, position.entry)[1])
                if part is not None and (part.uuid, part.number) == (uuid, 0):
                    return position
        return None

    def _backwards(self, last: Position) -> Iterator[Position]:
        known = [*self.task.before, *self.task.segments]
        for segment in reversed(known):
            for entry in range(segment.stop - 1, segment.first - 1, -1):
                if (position := Position(segment.ledger, entry)) < last:
                    yield position

    def _lose(self, position: Position, unreadable: str = "") -> None:
        self.lost.append(position)
        if not self.task.fail_on_data_loss:
            return
        if unreadable:
            raise DataLossError(
                f"{self.task.partition}: entry {position.ledger}:{position.entry} cannot be read: {unreadable}",
                remedy="find the program that wrote it; failOnDataLoss=false skips it and continues",
            )
        raise DataLossError(
            f"{self.task.partition}: entry {position.ledger}:{position.entry}, which the query still has to read, "
            "is no longer in Pulsar",
            remedy="keep message TTL and eviction off and retention longer than a query may be down; "
            "failOnDataLoss=false continues with the remaining data",
        )

    def _report_loss(self) -> None:
        if self.lost:
            get_logger("source").warning(
                "entries are gone or cannot be read, and failOnDataLoss is off. Action: check TTL, eviction and "
                "retention of the topic, and the programs that write to it",
                partition=self.task.partition,
                entries=len(self.lost),
                first=list(self.lost[0]),
            )


class _Kept(_Range):
    """A read of entries in memory."""

    def __init__(self, task: ReadTask, entries: Iterable[Opened]) -> None:
        super().__init__(task)
        self._entries = iter(entries)

    def _receive(self, timeout_ms: int) -> Opened | None:
        return next(self._entries, None)
