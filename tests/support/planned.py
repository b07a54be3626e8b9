"""Reads the batches that a planner plans, as Spark does: from the hot tail where they lie there, else by the tasks."""

from __future__ import annotations

from typing import Any

from sources.offsets import Offset
from sources.reading import ReadTask, read_range
from sources.stream import StreamPlanner

__all__ = ["read_batch", "values_of"]


def read_batch(
    planner: StreamPlanner, start: Offset, end: Offset, *, hot: bool | None = None
) -> list[tuple[ReadTask, list[Any]]]:
    """Return each task with its Arrow record batches. What the hot tail gives is compared with what the task reads.

    ``hot`` says whether it must lie in the tail, None that it may.
    """
    tasks = planner.tasks(start, end)
    kept = planner.rows_at_hand(start, end, tasks)
    assert hot is None or hot == (kept is not None)
    found = []
    for number, task in enumerate(tasks):
        read = list(read_range(task))
        assert kept is None or _rows(kept[number]) == _rows(read)
        found.append((task, read))
    return found


def values_of(planner: StreamPlanner, start: Offset, end: Offset, *, hot: bool | None = None) -> list[bytes]:
    """Return the values of the batch's rows, in the order of the tasks."""
    batches = read_batch(planner, start, end, hot=hot)
    return [v for _, read in batches for batch in read for v in batch.column("value").to_pylist()]


def _rows(batches: list[Any]) -> tuple[list[Any], list[Any]]:
    return [batch.schema for batch in batches[:1]], [row for batch in batches for row in batch.to_pylist()]
