"""The world of each commit order: what runs one of its cells."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pulsebridge.local.stack import LocalStack
from tests.crashes.bridge_worlds import http, ingest, push
from tests.crashes.cells import Cell
from tests.crashes.spark_world import SparkWorld
from tests.crashes.strike import Outcome

__all__ = ["Runner", "world_of"]

Runner = Callable[[Cell, random.Random], Outcome]
"""Runs a cell. Raises AssertionError if a step was not reached, or if a message did not arrive in time."""

_OF_BRIDGE: Final[Mapping[str, Callable[[Cell, LocalStack, Path, random.Random], Outcome]]] = {
    "ingest": ingest,
    "push": push,
    "http": http,
}


@contextmanager
def world_of(order: str, stack: LocalStack, folder: Path) -> Iterator[Runner]:
    """Give what runs the cells of an order; the stack's Pulsar is a cluster."""
    if order not in _OF_BRIDGE:
        spark = SparkWorld(stack, folder)
        try:
            yield spark.run
        finally:
            spark.close()
        return
    count = 0

    def run(cell: Cell, chance: random.Random) -> Outcome:
        nonlocal count
        count += 1
        own = folder / f"{count}"
        own.mkdir()
        return _OF_BRIDGE[order](cell, stack, own, chance)

    yield run
