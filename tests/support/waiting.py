"""Waiting for a condition instead of sleeping."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def poll_for(
    condition: Callable[[], T], timeout: float = 30.0, what: str = "the condition", *, every: float = 0.05
) -> T:
    """Call ``condition`` until it returns something true, and return that.

    Raises AssertionError that names ``what`` and the last value after ``timeout`` seconds. Errors of the condition
    are the test's: they are not caught.
    """
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come about within {timeout:g} s; last value: {value!r}")
        time.sleep(every)
