"""The cells of the crash matrix: a component that is killed, and the step that a commit order has reached."""

from __future__ import annotations

import fnmatch
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

__all__ = ["CELLS", "SERVERS", "STEPS", "Cell", "chosen", "missing", "third"]


class Cell(NamedTuple):
    """One kill: the process that reaches the point stops there, and then the component is killed."""

    order: str
    point: str
    component: str

    @property
    def name(self) -> str:
        """Return the name that ``ONLY`` matches and that a result carries."""
        return f"{self.order}/{self.point}/{self.component}"


SERVERS: Final = ("mqtt", "pulsar", "bookie")
"""Components that are servers: the MQTT broker, the owner of the partition, a bookie that has its ledger."""
_SPARK: Final = ("driver", "executor", "python_worker", "pulsar", "bookie")

STEPS: Final[Mapping[str, tuple[tuple[str, ...], Mapping[str, str]]]] = {
    "ingest": (
        ("ingest", *SERVERS),
        {
            "ingest_after_read": "ingest has the messages, no producer has them",
            "ingest_before_receipt": "a producer has them, Pulsar has not confirmed them",
            "ingest_after_receipt": "Pulsar has confirmed them, no PUBACK is sent",
            "ingest_after_puback": "the socket has the PUBACKs",
        },
    ),
    "push": (
        ("push", *SERVERS),
        {
            "after_read": "push has the command, it is not published",
            "after_publish": "the connection has the command",
            "after_puback": "the MQTT broker has confirmed it, the cursor is not written",
            "after_answer": "the device has answered, the cursor is not written",
            "after_cursor": "Pulsar has the cursor, the receipt is not written",
            "after_receipt": "Pulsar has the receipt, the command is not acknowledged",
            "after_ack": "the command is acknowledged",
        },
    ),
    "parked": (
        ("push", *SERVERS),
        {
            "after_segment": "the ids of the commands of an offline device are stored, they are not acknowledged",
            "after_pull": "the device is online: a command is read by its id, it is not published",
            "after_answer": "the device has answered, the receipt is not written",
            "after_receipt": "Pulsar has the receipt, the cursor is not written",
            "after_cursor": "Pulsar has the cursor, the ids are still stored",
        },
    ),
    "http": (
        ("ingest", "http_client", "pulsar", "bookie"),
        {
            "http_after_request": "ingest has the message, no producer has it",
            "http_before_receipt": "a producer has it, Pulsar has not confirmed it",
            "http_after_receipt": "Pulsar has confirmed it, the request is not answered",
        },
    ),
    "source": (
        ("planner", "driver", "pulsar", "bookie"),
        {
            "source_in_first_offset": "a part of the partitions has the subscription",
            "source_after_first_offset": "all have it, Spark has not stored the start of the query",
            "source_after_plan": "a batch is planned, Spark has not stored its offsets",
            "source_after_record": "the sink has the batch, its commit is recorded, nothing is acknowledged",
            "source_after_ack": "a part of the partitions is acknowledged",
        },
    ),
    "task": (
        _SPARK,
        {
            "source_in_task": "a task has read rows, Spark does not have them",
            "source_after_task": "Spark has all rows of the task, the task has not ended",
        },
    ),
    "table": (
        ("driver", "executor", "pulsar", "bookie"),
        {
            "table.validated": "the batch is validated, no row is written",
            "table.written": "the table has the valid rows",
            "table.quarantined": "quarantine has the others, Spark has not committed the batch",
        },
    ),
    "sink": (
        _SPARK,
        {
            "sink_before_task": "a task has rows, none is written",
            "sink_after_task": "Pulsar has all rows of the task, the task has not ended",
            "sink_in_commit": "all tasks have ended, Spark has not committed the batch",
        },
    ),
}
"""By commit order: the components that are killed, and the kill points in the order of the steps, with their states."""

CELLS: Final = tuple(
    Cell(order, point, component)
    for order, (components, points) in STEPS.items()
    for point in points
    for component in components
)
"""All cells, by commit order."""


def chosen(cells: Iterable[Cell], pattern: str) -> list[Cell]:
    """Return the cells whose name matches a shell pattern, or begins with its text."""
    return [cell for cell in cells if fnmatch.fnmatchcase(cell.name, pattern) or cell.name.startswith(pattern)]


def missing(cells: Iterable[Cell], results: Sequence[Mapping[str, Any]], commit: str) -> list[Cell]:
    """Return the cells without a good result at a commit."""
    done = {one["cell"] for one in results if one["commit"] == commit and one["result"] == "ok"}
    return [cell for cell in cells if cell.name not in done]


def third(cells: Iterable[Cell], commit: str) -> list[Cell]:
    """Return the third of the cells that the hash of a commit chooses; it differs from commit to commit."""

    def rank(cell: Cell) -> bytes:
        return hashlib.sha256(f"{commit} {cell.name}".encode()).digest()

    chosen = set(sorted(cells := list(cells), key=rank)[: -(-len(cells) // 3)])
    return [cell for cell in cells if cell in chosen]
