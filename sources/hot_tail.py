"""The hot tail: the newest entries of a query's partitions, in its planner's memory.

A thread receives them while the query processes earlier entries, and parses their metadata. A batch that is wholly in
the tail needs no Python worker, no connection and no fetch. The end of a partition is known without a request to
Pulsar's admin. The tail is a cache: the tasks read any entries that it lacks. It is bounded in bytes. A full tail is
dropped, because the query is behind. It then costs nothing until the batches fit into it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from bridge.contract import Position
from bridge.errors import PulsebridgeError
from bridge.loggers import get_logger
from bridge.pulsar.wire.entry_reader import EntryReader, WireReaders
from bridge.settings.pulsar import PulsarSettings
from sources.entries import Opened, open_entry
from sources.planning import PartitionView
from sources.reading import ReadTask

__all__ = ["HotTail"]

_log = get_logger("source")
_ENTRY_BYTES: Final = 1024
"""Most memory of an entry in addition to its payload, with parsed metadata."""
_PERMITS: Final = 1000
"""Messages of a partition that a broker may send before it gets further permits."""
_GATHER_S: Final = 0.004
"""Pause between two polls of the connections, to process single messages together."""
_LOOK_S: Final = 0.1
_RECREATE_S: Final = 0.2
_BEGIN_S: Final = 1.0
"""How long a batch waits for its entries if a partition has no reader yet."""
_WAIT_S: Final = 0.25
"""The same if each has one: an existing entry arrives within milliseconds."""
_LATE_WAIT_S: Final = 0.05
"""The same after such a wait for a partition was in vain, until one succeeds."""
_LATE_S: Final = 5.0
"""A reader that is late for so long is re-created."""
_MOST_PAUSE_S: Final = 10.0
_MOST_ENTRIES: Final = 5_000
"""Most entries of a batch: several tasks parse more entries faster."""


@dataclass
class _Followed:
    """The kept entries of one partition."""

    begin: Position
    """The first entry to keep."""
    end: Position
    """The position after the last received entry."""
    entries: deque[Opened] = field(default_factory=deque)
    has_reader: bool = False
    late_since: float | None = None
    """Time since which batches wait for it in vain, seconds of the monotonic clock."""
    next_reader_at: float = 0.0
    """Earliest time for the next reader, seconds of the monotonic clock."""
    pause_s: float = _RECREATE_S
    """Pause before the reader after that, if nothing is received."""


class HotTail:
    """The tail of one query, of at most ``most_bytes``. One thread calls its methods; it has a second thread."""

    def __init__(self, pulsar: PulsarSettings, most_bytes: int) -> None:
        self._pulsar = pulsar
        self._most_bytes = most_bytes
        self._changed = threading.Condition()
        self._followed: dict[str, _Followed] = {}
        self._size = 0
        self._closed = False
        self._thread: threading.Thread | None = None

    def close(self) -> None:
        """End the thread and its connections."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(5.0)

    def grown(self, views: Mapping[str, PartitionView], needed: Iterable[str]) -> dict[str, PartitionView] | None:
        """Return the views extended by all entries received since.

        Returns None if one of ``needed`` is not followed, or if a partition has a new ledger: Pulsar must be asked.
        """
        found = dict(views)
        with self._changed:
            if not self._followed.keys() >= set(needed):
                return None
            for name, followed in self._followed.items():
                if name in views:
                    grown = views[name].grown_to(followed.end)
                    if grown is None:
                        return None
                    found[name] = grown
        return found

    def take(
        self, starts: Mapping[str, Position], stops: Mapping[str, Position], tasks: Sequence[ReadTask]
    ) -> list[list[Opened]] | None:
        """Return all entries of each task, None if the tasks must read them.

        ``starts`` and ``stops`` are those of the batch, of every partition. The tail follows these partitions from now
        on. Waits for entries in transit.
        """
        entries = sum(s.entries for task in tasks for s in task.segments)
        size = sum(task.entry_bytes * s.entries for task in tasks for s in task.segments)
        if entries > _MOST_ENTRIES or size + _ENTRY_BYTES * entries > self._most_bytes // 2:
            _log_read_by_tasks("the batch is too large", entries=entries, bytes=size)
            return None
        with self._changed:
            self._follow(starts)
            wanted = {task.partition: stops[task.partition] for task in tasks}
            if not self._changed.wait_for(lambda: self._reached(wanted), self._patience_s(wanted)):
                self._note_late(wanted)
                return None
            for name in wanted.keys() & self._followed.keys():
                self._followed[name].late_since = None
            found = [of for of in map(self._of, tasks) if of is not None]
            dropped = not self._followed
        if len(found) == len(tasks):
            return found
        _log_read_by_tasks("the tail was dropped" if dropped else "an entry is not a whole message")
        return None

    def forget(self, stops: Mapping[str, Position]) -> None:
        """Drop the entries before ``stops``: the query has committed them."""
        with self._changed:
            for name, end in stops.items():
                followed = self._followed.get(name)
                if followed is None or end < followed.begin:
                    continue
                kept = followed.entries
                while kept and Position(kept[0].ledger, kept[0].entry) < end:
                    self._size -= _size(kept.popleft())
                followed.begin = end

    def _follow(self, starts: Mapping[str, Position]) -> None:
        for name, start in starts.items():
            known = self._followed.get(name)
            if known is None or start < known.begin:
                self._begin(name, start)
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="pulsebridge-hot-tail", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def _begin(self, name: str, position: Position) -> None:
        """Follow a partition from this position on, with a new reader."""
        known = self._followed.get(name)
        if known is not None:
            self._size -= sum(map(_size, known.entries))
        self._followed[name] = _Followed(position, position)

    def _reached(self, stops: Mapping[str, Position]) -> bool:
        """Whether all entries before ``stops`` were received, or the tail was dropped."""
        return not self._followed or all(self._followed[name].end >= end for name, end in stops.items())

    def _patience_s(self, wanted: Iterable[str]) -> float:
        of = [self._followed[name] for name in wanted]
        if any(one.late_since is not None for one in of):
            return _LATE_WAIT_S
        return _WAIT_S if all(one.has_reader for one in of) else _BEGIN_S

    def _note_late(self, wanted: Mapping[str, Position]) -> None:
        """Keep following: late entries serve the next batch, unless the reader receives nothing."""
        now = time.monotonic()
        late: dict[str, object] = {}
        for name, end in wanted.items():
            of = self._followed[name]
            if of.end >= end:
                of.late_since = None
                continue
            of.late_since = now if of.late_since is None else of.late_since
            seconds = now - of.late_since
            late[name] = {"end": of.end, "wanted": end, "reader": of.has_reader, "late_s": round(seconds, 1)}
            if seconds > _LATE_S:
                self._begin(name, end)
        _log_read_by_tasks("entries did not arrive in time", late=late)

    def _of(self, task: ReadTask) -> list[Opened] | None:
        """Return the entries of a task, None if one is missing or is a chunk."""
        followed = self._followed.get(task.partition)
        if followed is None:
            return None
        first, last = task.segments[0], task.segments[-1]
        begin, end = Position(first.ledger, first.first), Position(last.ledger, last.stop)
        found = [of for of in followed.entries if begin <= (of.ledger, of.entry) < end]
        if len(found) != sum(s.entries for s in task.segments) or any(of.chunk is not None for of in found):
            return None
        return found

    def _drop(self) -> None:
        self._followed = {}
        self._size = 0
        self._changed.notify_all()

    # --- the thread ---

    def _run(self) -> None:
        readers = WireReaders(self._pulsar)
        made: dict[str, tuple[_Followed, EntryReader]] = {}
        try:
            while True:
                with self._changed:
                    while not (self._followed or made or self._closed):
                        self._changed.wait()
                    if self._closed:
                        return
                    followed = dict(self._followed)
                self._keep_open(readers, followed, made)
                readers.read(_LOOK_S)
                for name, (of, reader) in list(made.items()):
                    if not self._take_in(name, of, reader):
                        of.has_reader = False
                        del made[name]
                        reader.close()
                time.sleep(_GATHER_S)
        finally:
            readers.close()
            with self._changed:
                self._drop()

    def _keep_open(
        self,
        readers: WireReaders,
        followed: Mapping[str, _Followed],
        made: dict[str, tuple[_Followed, EntryReader]],
    ) -> None:
        """Create a reader for each followed partition, and close the others."""
        for name, (of, reader) in list(made.items()):
            if followed.get(name) is not of:
                del made[name]
                reader.close()
        for name, of in followed.items():
            if name in made or time.monotonic() < of.next_reader_at:
                continue
            of.next_reader_at = time.monotonic() + of.pause_s
            of.pause_s = min(2 * of.pause_s, _MOST_PAUSE_S)
            try:
                reader = readers.reader(name, of.end.ledger, of.end.entry, permits=_PERMITS)
            except PulsebridgeError as e:  # the tasks get and report the same error
                _log.debug("a partition cannot be followed", partition=name, error=str(e))
                continue
            made[name] = (of, reader)
            of.has_reader = True

    def _take_in(self, name: str, of: _Followed, reader: EntryReader) -> bool:
        """Keep the entries received for one partition. Returns False if its reader must be closed."""
        came: list[Opened] = []
        try:
            while (raw := reader.at_hand()) is not None:
                if (
                    raw.ledger,
                    raw.entry,
                ) >= of.end:  # after a loss a new reader may begin with known entries
                    opened = open_entry(raw, name)
                    reader.took(opened.size, _PERMITS)
                    came.append(opened)
        except PulsebridgeError as e:
            _log.debug("a reader of the hot tail ended", partition=name, error=str(e))
            self._keep(name, of, came)
            return False
        self._keep(name, of, came)
        return True

    def _keep(self, name: str, of: _Followed, came: Sequence[Opened]) -> None:
        with self._changed:
            if not came or self._followed.get(name) is not of:
                return
            of.pause_s = _RECREATE_S
            of.entries.extend(came)
            of.end = Position(came[-1].ledger, came[-1].entry + 1)
            self._size += sum(map(_size, came))
            if self._size > self._most_bytes:
                _log.debug("the hot tail is full and is dropped, the query is behind", bytes=self._size)
                self._drop()
            self._changed.notify_all()


def _log_read_by_tasks(why: str, **found: object) -> None:
    _log.debug("a batch is read by the tasks, not from the hot tail", why=why, **found)


def _size(of: Opened) -> int:
    return len(of.body) + _ENTRY_BYTES
