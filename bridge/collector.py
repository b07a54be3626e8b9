"""What a process does about its memory: Python's collector of cycles, for many objects and few cycles, and glibc's arenas."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

__all__ = ["exclude_imports", "excluded_objects", "let_go", "reduce_arenas", "reduce_collections"]

_M_ARENA_MAX: Final = -8
"""As in ``malloc.h`` of glibc."""


_spared: dict[int, int] = {}
"""Id of the process to the number of its modules. A forked process has another id."""
_reduced = False
"""Whether ``reduce_collections`` was called. Python 3.12 itself excludes some objects when it starts."""


def reduce_collections() -> None:
    """Exclude all existing objects from collections, and make collections rare.

    Imported modules stay for the life of the process. Thousands of messages come and go without cycles. With a small
    threshold the collector would only walk over them, and over all parked commands. Collections of young objects stay
    short, because all threads wait for them.
    """
    global _reduced
    gc.freeze()
    gc.set_threshold(20_000, 5, 200)
    _reduced = True


def reduce_arenas() -> None:
    """Have the threads share two of glibc's arenas: each arena keeps what its threads have freed. Call it before there are any.

    A push process has a dozen threads of Pulsar's client. With an arena each it takes 20 to 30 MB more after a takeover.
    """
    with suppress(AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 2)


@contextmanager
def excluded_objects() -> Iterator[None]:
    """Exclude the objects of the block from collections.

    Such objects are all parked commands of a partition. A walk over the state of 100,000 devices takes 0.4 s, and
    blocks all threads. Does nothing in a process that has not called ``reduce_collections``.
    """
    if _reduced:
        gc.collect()  # otherwise the present garbage stays, too
    yield
    if _reduced:
        gc.freeze()


def let_go() -> None:
    """Collect excluded objects that are not used any more, and exclude the others.

    Does nothing in a process that has not called ``reduce_collections``.
    """
    if _reduced:
        gc.unfreeze()
        gc.collect()
        gc.freeze()


def exclude_imports() -> None:
    """Exclude imported objects from garbage collections; it repeats that after further imports.

    ``pyspark.daemon`` collects all garbage after each task, before the worker gets the next one. With pyspark, Arrow
    and pydantic that takes 25 to 30 ms of a core, more than a small task.
    """
    if _spared.get(os.getpid()) != len(sys.modules):
        gc.freeze()
        _spared[os.getpid()] = len(sys.modules)
