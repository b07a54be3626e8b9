"""What Spark calls for a write, batch and streaming, whatever the format: tasks on executors, their end on the driver.

A format gives a ``Task`` that writes one task's rows; these make Spark's two kinds of writers of it. Nothing is left
to do at a commit, since a task has succeeded only when all it wrote is confirmed; what failed comes again, whole.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import structlog
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter, WriterCommitMessage

from bridge.errors import ContractError
from bridge.spark_worker import spare_collections

try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
except ImportError:  # Spark 4.0 gives Arrow to whatever is a DataSourceArrowWriter, a stream's writer too

    class DataSourceStreamArrowWriter(DataSourceStreamWriter, DataSourceArrowWriter):  # type: ignore[no-redef,misc]
        """A stream's writer that takes Arrow record batches."""


if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["BatchWriter", "StreamWriter", "Task", "Written", "appending", "prepare"]

log = structlog.get_logger("sink")
_LATELY_S: Final = 30.0
_prepared: dict[Hashable, float] = {}
"""What was prepared in this process for a stream, and when, seconds of the monotonic clock."""


@dataclass
class Written(WriterCommitMessage):
    """What one task stored: messages, and bad rows as dead letters."""

    messages: int
    bad_rows: int


class Task(Protocol):
    """Writes the rows of one task. It travels to the executors by pickle, so it holds no connection."""

    @property
    def dead_letters(self) -> str:
        """Where bad rows go and how to see them."""

    def write(self, batches: Iterator[pa.RecordBatch]) -> Written:
        """Write all rows, and return when they are confirmed. What it raises fails the task."""


class BatchWriter(DataSourceArrowWriter):
    """Writes the tasks of one batch write."""

    def __init__(self, task: Task) -> None:
        self._task = task

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Triggered once per task, on an executor. What it raises fails the task, which Spark retries."""
        return _write(self._task, iterator)

    def commit(self, messages: Sequence[Any]) -> None:
        """Triggered on the driver when all tasks succeeded. Says how many rows were bad."""
        _say(self._task, messages)


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the tasks of each micro-batch."""

    def __init__(self, task: Task) -> None:
        spare_collections()  # Spark makes one for each micro-batch, in two processes that it keeps
        self._task = task

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Triggered once per task, on an executor. What it raises fails the task, which Spark retries."""
        return _write(self._task, iterator)

    def commit(self, messages: Sequence[Any], batchId: int) -> None:
        """Triggered on the driver when all tasks of a micro-batch succeeded. Says how many rows were bad."""
        _say(self._task, messages)

    def abort(self, messages: Sequence[Any], batchId: int) -> None:
        """Triggered on the driver when a task failed for good. What was stored stays, and comes again."""


def appending(name: str, overwrite: bool, make: Callable[[], Task]) -> Task:
    """Return the task of a write that appends. Raises ContractError for one that would replace what is there."""
    if overwrite:
        raise ContractError(
            f"{name} cannot be overwritten: what was sent stays sent",
            remedy="use .mode('append'), for a stream .outputMode('append') or 'update'",
        )
    return make()


def prepare(what: Hashable, act: Callable[[], None], *, stream: bool) -> None:
    """Prepare a write by ``act``, which asks Pulsar's admin; for a stream once in half a minute.

    Spark makes a stream's writer twice for each micro-batch, in a process that it keeps. A topic that goes away
    meanwhile is met by the tasks.
    """
    now = time.monotonic()
    if stream and now - _prepared.get(what, -_LATELY_S) < _LATELY_S:
        return
    act()
    _prepared[what] = now


def _write(task: Task, iterator: Iterator[pa.RecordBatch]) -> Written:
    found = task.write(iterator)
    spare_collections()
    return found


def _say(task: Task, messages: Sequence[Any]) -> None:
    bad = sum(message.bad_rows for message in messages if isinstance(message, Written))
    if bad:
        log.warning("rows could not be written, see why", rows=bad, where=task.dead_letters)
