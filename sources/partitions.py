"""Passes a task through Spark, from the planner to the Python worker that reads it.

Separate from the readers, which differ by Spark version. Separate from ``sources.reading``, so that only reading
processes import Pulsar's client and Arrow.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import InputPartition

from bridge.collector import exclude_imports

if TYPE_CHECKING:
    from sources.reading import ReadTask

__all__ = ["Ranges", "ranges", "read"]


class Ranges(InputPartition):
    """The ranges that one of Spark's tasks reads in order; often one."""

    def __init__(self, tasks: Sequence[ReadTask]) -> None:
        super().__init__(None)
        self.tasks = tuple(tasks)


def ranges(tasks: Sequence[ReadTask], *, together: bool = False) -> Sequence[InputPartition]:
    """Return the tasks in Spark's form: one partition for each, or one for all.

    Spark needs at least one partition, which may be empty.
    """
    if together or not tasks:
        return [Ranges(tasks)]
    return [Ranges((task,)) for task in tasks]


def read(partition: InputPartition) -> Iterator[Any]:
    """Read in a Python worker; yields Arrow record batches."""
    from sources.reading import read_range

    assert isinstance(partition, Ranges)
    for task in partition.tasks:
        yield from read_range(task)
    exclude_imports()
