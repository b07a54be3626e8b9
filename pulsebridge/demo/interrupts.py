"""Signals of a long command: the first asks it to end in order, the second ends it at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["EXIT_INTERRUPTED", "stop_on_signals"]

EXIT_INTERRUPTED = 130


@contextmanager
def stop_on_signals(stop: threading.Event, on_second: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Set ``stop`` when SIGINT or SIGTERM comes. A second signal calls ``on_second`` and ends the process.

    For the main thread only: Python delivers signals nowhere else.
    """

    def handle(_number: int, _frame: object) -> None:
        if stop.is_set():
            on_second()
            os._exit(EXIT_INTERRUPTED)
        stop.set()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
