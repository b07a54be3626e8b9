"""Python's collector of cycles, for processes that hold much and make few cycles."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["let_go", "look_seldom", "what_stays"]


def look_seldom() -> None:
    """Have the collector leave alone what is there now, and look seldom at what comes.

    What is imported stays: it need not be looked at again. Messages come and go by the thousand without cycles, so a
    small threshold would only have the collector walk over them, and over all that is parked. A walk over what came
    lately is short, for everything waits for it.
    """
    gc.freeze()
    gc.set_threshold(20_000, 5, 200)


@contextmanager
def what_stays() -> Iterator[None]:
    """Make much that stays, such as all that is parked in a partition: the collector need not look at that either. To walk
    over what 100,000 devices left takes it 0.4 s, in which nothing else is done.

    Does nothing in a process that has not called ``look_seldom``.
    """
    if gc.get_freeze_count():
        gc.collect()  # what is garbage now would stay, too
    yield
    if gc.get_freeze_count():
        gc.freeze()


def let_go() -> None:
    """Much of what was to stay is not needed any more: collect it, once, and leave alone what is left.

    Does nothing in a process that has not called ``look_seldom``.
    """
    if gc.get_freeze_count():
        gc.unfreeze()
        gc.collect()
        gc.freeze()
