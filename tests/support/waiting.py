"""Waiting for a condition instead of sleeping, or for the end of a thread."""

from __future__ import annotations

import faulthandler
import threading
import time
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")
_MOST_S: Final = 0.5
_PATIENCE: Final = 3
"""A limit is there to end a hang. On a machine that others load as well, what a test waits for comes later."""


def patient(seconds: float) -> float:
    """Return the timeout of a step that takes at most ``seconds`` on an idle machine, as ``poll_for`` uses it."""
    return seconds * _PATIENCE


def poll_for(
    condition: Callable[[], T], timeout: float = 30.0, what: str = "the condition", *, every: float = 0.05
) -> T:
    """Call ``condition`` until it returns something true, and return that.

    It is not asked more often than the machine can bear: what takes long to find out is asked again after twice the
    time that it took, at most half a second, else every ``every`` seconds.

    Raises AssertionError that names ``what`` and the last value after ``patient(timeout)`` seconds. Errors of the condition are the test's: they are not caught.
    """
    timeout = patient(timeout)
    deadline = time.monotonic() + timeout
    while True:
        began = time.monotonic()
        value = condition()
        if value:
            return value
        now = time.monotonic()
        if now > deadline:
            raise AssertionError(f"{what} did not come about within {timeout:g} s; last value: {value!r}")
        time.sleep(max(every, min(2 * (now - began), _MOST_S)))


def await_end(thread: threading.Thread, timeout: float = 60.0) -> None:
    """Wait for the end of a thread. If it does not come, all threads print where they are, and AssertionError is raised."""
    thread.join(patient(timeout))
    if thread.is_alive():
        faulthandler.dump_traceback()
        raise AssertionError(f"{thread.name} does not end")
