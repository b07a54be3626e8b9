"""Python's collector of cycles, for processes that hold much and make few cycles."""

from __future__ import annotations

import gc

__all__ = ["look_seldom"]


def look_seldom() -> None:
    """Have the collector leave alone what is there now, and look seldom at what comes.

    What is imported stays: it need not be looked at again. Messages come and go by the thousand without cycles, so a
    small threshold would only have the collector walk over them, and over all that is parked.
    """
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
