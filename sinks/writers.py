"""What Spark calls for a write, batch and streaming, whatever the format: tasks on executors, their end on the driver.

A format gives a ``Task`` that writes one task's rows; these make Spark's two kinds of writers of it. Nothing is left
to do at a commit, since a task has succeeded only when all it wrote is confirmed; what failed comes again, whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import structlog
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter, WriterCommitMessage

from bridge.errors import ContractError

try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
except ImportError:  # Spark 4.0 gives Arrow to whatever is a DataSourceArrowWriter, a stream's writer too

    class DataSourceStreamArrowWriter(DataSourceStreamWriter, DataSourceArrowWriter):  # type: ignore[no-redef,misc]
        """A stream's writer that takes Arrow record batches."""


if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["BatchWriter", "StreamWriter", "Task", "Written", "appending"]

log = structlog.get_logger("sink")


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
        return self._task.write(iterator)

    def commit(self, messages: Sequence[Any]) -> None:
        """Triggered on the driver when all tasks succeeded. Says how many rows were bad."""
        _say(self._task, messages)


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the tasks of each micro-batch."""

    def __init__(self, task: Task) -> None:
        self._task = task

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Triggered once per task, on an executor. What it raises fails the task, which Spark retries."""
        return self._task.write(iterator)

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


def _say(task: Task, messages: Sequence[Any]) -> None:
    bad = sum(message.bad_rows for message in messages if isinstance(message, Written))
    if bad:
        log.warning("rows could not be written, see why", rows=bad, where=task.dead_letters)
