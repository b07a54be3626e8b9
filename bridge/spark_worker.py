"""What this project's code does in Spark's Python workers beside its task."""

from __future__ import annotations

import gc
import os
import sys

__all__ = ["spare_collections"]

_spared: dict[int, int] = {}
"""Id of the process to the number of its modules: a forked process is another one."""


def spare_collections() -> None:
    """Keep what is imported out of garbage collections; does so again when more was imported since.

    ``pyspark.daemon`` collects all garbage after each task, before its worker takes the next one. With pyspark, Arrow and
    pydantic imported that takes 25 to 30 ms of a core, more than a small task.
    """
    if _spared.get(os.getpid()) != len(sys.modules):
        gc.freeze()
        _spared[os.getpid()] = len(sys.modules)
