"""Spark's batch and streaming writers of all formats: tasks on executors, commits on the driver.

A format provides a ``Task`` that writes one task's rows; the writers run it. A commit writes nothing, because a task
succeeds only if all that it wrote is confirmed. Spark retries a failed task as a whole.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import structlog
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter, WriterCommitMessage

from bridge.collector import exclude_imports
from bridge.errors import ContractError
from bridge.killpoints import reach

try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
except ImportError:  # Spark 4.0 gives Arrow to every DataSourceArrowWriter, also to a stream's writer

    class DataSourceStreamArrowWriter(DataSourceStreamWriter, DataSourceArrowWriter):  # type: ignore[no-redef,misc]
        """A stream's writer of Arrow record batches."""


if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["BatchWriter", "StreamWriter", "Task", "Written", "appending", "prepare"]

log = structlog.get_logger("sink")
_PREPARED_S: Final = 30.0
_prepared: dict[Hashable, float] = {}
"""Writes that were prepared in this process for a stream, and when, in seconds of the monotonic clock."""


@dataclass
class Written(WriterCommitMessage):
    """Numbers of a task's stored messages, and of its bad rows stored as dead letters."""

    messages: int
    bad_rows: int


class Task(Protocol):
    """Writes the rows of one task. It is pickled to the executors, so it has no connection."""

    @property
    def dead_letters(self) -> str:
        """Location of the dead letters, for the log."""

    def write(self, batches: Iterator[pa.RecordBatch]) -> Written:
        """Write all rows, and return when they are confirmed. An exception fails the task."""


class BatchWriter(DataSourceArrowWriter):
    """Writes the tasks of one batch write."""

    def __init__(self, task: Task) -> None:
        self._task = task

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Called once per task, on an executor. An exception fails the task, which Spark retries."""
        return _write(self._task, iterator)

    def commit(self, messages: Sequence[Any]) -> None:
        """Called on the driver when all tasks succeeded. Logs the number of bad rows."""
        _log_bad_rows(self._task, messages)


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the tasks of each micro-batch."""

    def __init__(self, task: Task) -> None:
        exclude_imports()  # Spark creates one for each micro-batch, in two processes that it reuses
        self._task = task

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Called once per task, on an executor. An exception fails the task, which Spark retries."""
        return _write(self._task, iterator)

    def commit(self, messages: Sequence[Any], batchId: int) -> None:
        """Called on the driver when all tasks of a micro-batch succeeded. Logs the number of bad rows."""
        reach("sink_in_commit")
        _log_bad_rows(self._task, messages)

    def abort(self, messages: Sequence[Any], batchId: int) -> None:
        """Called on the driver when a task finally failed. Stored rows stay, and a retry repeats them."""


def appending(name: str, overwrite: bool, make: Callable[[], Task]) -> Task:
    """Return the task of a write that appends. Raises ContractError for a write that overwrites."""
    if overwrite:
        raise ContractError(
            f"{name} cannot be overwritten: sent rows stay sent",
            remedy="use .mode('append'), for a stream .outputMode('append') or 'update'",
        )
    return make()


def prepare(what: Hashable, act: Callable[[], None], *, stream: bool) -> None:
    """Prepare a write with ``act``, which calls Pulsar's admin. For a stream this runs at most every 30 s.

    Spark creates a stream's writer twice for each micro-batch, in a process that it reuses. If a topic disappears in
    between, the tasks find out.
    """
    now = time.monotonic()
    if stream and now - _prepared.get(what, -_PREPARED_S) < _PREPARED_S:
        return
    act()
    _prepared[what] = now


def _write(task: Task, iterator: Iterator[pa.RecordBatch]) -> Written:
    found = task.write(iterator)
    exclude_imports()
    return found


def _log_bad_rows(task: Task, messages: Sequence[Any]) -> None:
    bad = sum(message.bad_rows for message in messages if isinstance(message, Written))
    if bad:
        log.warning("rows were not written. Action: read their dead letters", rows=bad, where=task.dead_letters)
