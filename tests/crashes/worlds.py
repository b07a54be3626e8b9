"""The worlds of all commit orders on one stack: what runs a cell."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final

from pulsebridge.local.stack import LocalStack
from tests.crashes.bridge_worlds import http, ingest, push
from tests.crashes.cells import Cell
from tests.crashes.spark_world import SparkWorld
from tests.crashes.strike import Outcome

__all__ = ["Worlds"]

_OF_BRIDGE: Final[Mapping[str, Callable[[Cell, LocalStack, Path, random.Random], Outcome]]] = {
    "ingest": ingest,
    "push": push,
    "parked": push,
    "http": http,
}


class Worlds:
    """Runs cells on a stack whose Pulsar is a cluster, with files below ``folder``. The orders of Spark share a driver."""

    def __init__(self, stack: LocalStack, folder: Path) -> None:
        self._stack = stack
        self._folder = folder
        self._spark = SparkWorld(stack, folder)
        self._count = 0

    def __enter__(self) -> Worlds:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._spark.close()

    def run(self, cell: Cell, seed: int) -> Outcome:
        """Run a cell. Raises AssertionError if its step was not reached, or if something did not end in time."""
        chance = random.Random(f"{seed} {cell.name}")
        if cell.order not in _OF_BRIDGE:
            return self._spark.run(cell, chance)
        self._count += 1
        own = self._folder / f"cell-{self._count}"
        own.mkdir()
        return _OF_BRIDGE[cell.order](cell, self._stack, own, chance)
