"""A task on its way through Spark: from the planner, which makes it, to the Python worker that reads it.

Kept apart from the readers, of which each Spark has its own, and from ``sources.reading``, which imports Pulsar's
client and Arrow: only where data is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import InputPartition

if TYPE_CHECKING:
    from sources.options import SourceOptions
    from sources.reading import ReadTask

__all__ = ["Range", "ranges", "read"]


class Range(InputPartition):
    """One task's part of a batch."""

    def __init__(self, task: ReadTask) -> None:
        super().__init__(None)
        self.task = task


def ranges(tasks: Sequence[ReadTask], options: SourceOptions) -> Sequence[InputPartition]:
    """Return the tasks as Spark takes them; it wants one at least, which may have nothing to read."""
    return [Range(task) for task in tasks] or [Range(_nothing(options))]


def read(partition: InputPartition) -> Iterator[Any]:
    """Read one task in a Python worker; gives Arrow record batches."""
    from sources.reading import read_range

    assert isinstance(partition, Range)
    return read_range(partition.task)


def _nothing(options: SourceOptions) -> ReadTask:
    from sources.reading import ReadTask

    return ReadTask(
        options.pulsar, "", "", (), options.columns, options.read_idle_timeout_ms, options.fail_on_data_loss
    )
