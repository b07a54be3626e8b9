"""A task on its way through Spark: from the planner, which makes it, to the Python worker that reads it.

Kept apart from the readers, of which each Spark has its own, and from ``sources.reading``, which imports Pulsar's
client and Arrow: only where data is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import InputPartition

from bridge.spark_worker import spare_collections

if TYPE_CHECKING:
    from sources.reading import ReadTask

__all__ = ["Ranges", "ranges", "read"]


class Ranges(InputPartition):
    """What one of Spark's tasks reads, one range after the other; often one."""

    def __init__(self, tasks: Sequence[ReadTask]) -> None:
        super().__init__(None)
        self.tasks = tuple(tasks)


def ranges(tasks: Sequence[ReadTask], *, together: bool = False) -> Sequence[InputPartition]:
    """Return the tasks as Spark takes them: each by itself, or all in one.

    Spark wants one at least, which may have nothing to read.
    """
    if together or not tasks:
        return [Ranges(tasks)]
    return [Ranges((task,)) for task in tasks]


def read(partition: InputPartition) -> Iterator[Any]:
    """Read in a Python worker; gives Arrow record batches."""
    from sources.reading import read_range

    assert isinstance(partition, Ranges)
    for task in partition.tasks:
        yield from read_range(task)
    spare_collections()
