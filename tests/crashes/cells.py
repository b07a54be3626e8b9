"""The cells of the crash matrix: a component that is killed, and the kill point that a commit order has reached."""

from __future__ import annotations

import fnmatch
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

__all__ = ["CELLS", "Cell", "chosen", "missing", "third"]


class Cell(NamedTuple):
    """One kill. A component without code of its own is killed while the process at the point is stopped."""

    order: str
    point: str
    component: str

    @property
    def name(self) -> str:
        """Return the name that ``ONLY`` matches and that a result carries."""
        return f"{self.order}/{self.point}/{self.component}"


_INGEST: Final = ("ingest_before_receipt", "ingest_after_receipt", "ingest_after_puback")
_PUSH: Final = ("after_publish", "after_puback", "after_answer", "after_cursor", "after_receipt", "after_ack")
_HTTP: Final = ("http_before_receipt", "http_after_receipt")
_SOURCE: Final = (
    "source_in_first_offset",
    "source_after_first_offset",
    "source_after_record",
    "source_after_ack",
)
_TASK: Final = ("source_in_task", "source_after_task")
_SINK: Final = ("sink_before_task", "sink_after_task")
_TABLE: Final = ("table.validated", "table.written", "table.quarantined")

_SERVERS: Final = ("mqtt", "pulsar", "bookie")
_SPARK: Final = ("driver", "executor", "python_worker")

_ORDERS: Final[Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "ingest": (_INGEST, ("ingest", *_SERVERS)),
    "push": (_PUSH, ("push", *_SERVERS)),
    "http": (_HTTP, ("ingest", "http_client", "pulsar", "bookie")),
    "source": (_SOURCE, ("planner", "driver", "pulsar", "bookie")),
    "task": (_TASK, (*_SPARK, "pulsar", "bookie")),
    "sink": (_SINK, (*_SPARK, "pulsar", "bookie")),
    "table": (_TABLE, ("driver", "executor", "pulsar", "bookie")),
}

CELLS: Final = tuple(
    Cell(order, point, component)
    for order, (points, components) in _ORDERS.items()
    for point in points
    for component in components
)
"""All cells, by commit order."""


def chosen(cells: Iterable[Cell], pattern: str) -> list[Cell]:
    """Return the cells whose name matches a shell pattern."""
    return [cell for cell in cells if fnmatch.fnmatchcase(cell.name, pattern)]


def missing(cells: Iterable[Cell], results: Sequence[Mapping[str, Any]], commit: str) -> list[Cell]:
    """Return the cells without a result at a commit."""
    done = {result["cell"] for result in results if result["commit"] == commit}
    return [cell for cell in cells if cell.name not in done]


def third(cells: Iterable[Cell], commit: str) -> list[Cell]:
    """Return the third of the cells that the hash of a commit chooses; it differs from commit to commit."""

    def rank(cell: Cell) -> bytes:
        return hashlib.sha256(f"{commit} {cell.name}".encode()).digest()

    ranked = sorted(cells, key=rank)
    return ranked[: -(-len(ranked) // 3)]
