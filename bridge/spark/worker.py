"""Reduces garbage collections in Spark's Python workers."""

from __future__ import annotations

import gc
import os
import sys

__all__ = ["exclude_imports"]

_spared: dict[int, int] = {}
"""Id of the process to the number of its modules. A forked process has another id."""


def exclude_imports() -> None:
    """Exclude imported objects from garbage collections; it repeats that after further imports.

    ``pyspark.daemon`` collects all garbage after each task, before the worker gets the next one. With pyspark, Arrow
    and pydantic that takes 25 to 30 ms of a core, more than a small task.
    """
    if _spared.get(os.getpid()) != len(sys.modules):
        gc.freeze()
        _spared[os.getpid()] = len(sys.modules)
