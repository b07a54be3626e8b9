"""How xdist deals the tests to its processes: file by file, those that share Spark's session to one of them.

What a fixture of a file or of the session starts is started once, and a session of Spark, which takes a JVM of its
own and is slow until it is warm, is warm for all of its tests.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from xdist.scheduler import LoadScopeScheduling

__all__ = ["ByFile", "next_of", "unit_of"]

TOGETHER: Final = ("tests/integration/security", "tests/integration/cluster")
"""Folders whose files go to one process: they share servers of their own."""
_FIRST: Final = "tests/integration/cluster"
"""It takes longest: all else runs beside it."""


def unit_of(nodeid: str) -> str:
    """Return what a test is dealt with: its file, or its folder."""
    file, _, _ = nodeid.partition("::")
    return next((folder for folder in TOGETHER if file.startswith(folder)), file)


@cache
def _wants_spark(file: Path) -> bool:
    return "spark: SparkSession" in file.read_text(encoding="utf-8")


def next_of(queue: Mapping[str, Iterable[str]], root: Path, spark: bool) -> str | None:
    """Return the first unit of the queue, which has the tests of each, in which a file takes the session's Spark, or none does.

    None when only the other kind is left.
    """
    for unit in sorted(queue, key=lambda one: one != _FIRST):
        files = {root / nodeid.partition("::")[0] for nodeid in queue[unit]}
        if any(map(_wants_spark, files)) == spark:
            return unit
    return None


class ByFile(LoadScopeScheduling):
    """Deals whole files in their order. The first process takes those of Spark, then what is left; the others the others."""

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)

    def _is_first(self, node: Any) -> bool:
        return next(iter(self.registered_collections)) is node

    def _unit_for(self, node: Any) -> str | None:
        return next_of(self.workqueue, self.config.rootpath, spark=self._is_first(node))

    def _reschedule(self, node: Any) -> None:
        if len(self.nodes) > 1 and not self._is_first(node) and self._unit_for(node) is None:
            node.shutdown()  # to warm a second Spark would take longer than to wait for the first
        else:
            super()._reschedule(node)

    def _assign_work_unit(self, node: Any) -> None:
        unit = self._unit_for(node)
        if unit is not None:
            self.workqueue.move_to_end(unit, last=False)
        super()._assign_work_unit(node)
