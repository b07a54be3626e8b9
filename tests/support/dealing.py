"""How xdist deals the tests to its processes: file by file, those that share Spark's session to one of them.

What a fixture of a file or of the session starts is started once, and a session of Spark, which takes a JVM of its
own and is slow until it is warm, is warm for all of its tests.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, Final

from xdist.scheduler import LoadScopeScheduling

__all__ = ["ByFile", "next_of", "unit_of"]

TOGETHER: Final = ("tests/integration/security",)
"""Folders whose files go to one process: they share servers of their own."""


def unit_of(nodeid: str) -> str:
    """Return what a test is dealt with: its file, or its folder."""
    file, _, _ = nodeid.partition("::")
    return next((folder for folder in TOGETHER if file.startswith(folder)), file)


@cache
def wants_spark(root: Path, unit: str) -> bool:
    """Whether tests of this file or folder take the session's Spark."""
    where = root / unit
    files = where.rglob("*.py") if where.is_dir() else (where,)
    return any("spark: SparkSession" in file.read_text(encoding="utf-8") for file in files)


def next_of(queue: Iterable[str], root: Path, spark: bool) -> str | None:
    """Return the first unit of the queue of its kind; None when only the other kind is left."""
    return next((unit for unit in queue if wants_spark(root, unit) == spark), None)


class ByFile(LoadScopeScheduling):
    """Deals whole files in their order. The first process takes those of Spark first, the others the others."""

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)

    def _assign_work_unit(self, node: Any) -> None:
        first = next(iter(self.registered_collections)) is node
        unit = next_of(self.workqueue, self.config.rootpath, spark=first)
        if unit is not None:
            self.workqueue.move_to_end(unit, last=False)
        super()._assign_work_unit(node)
