"""Signals that stop a tier, and the end of patience: a stop ends within its ``drain_s`` and ``CLOSE_S``, whatever blocks.

One signal drains, the second kills. Python runs a signal's handler only between two steps of the main thread, which may
stand in a call of Pulsar's client at that time, or hold the lock of the very event that a handler would set; so a thread
of its own reads the signal from a socket that the C level of Python writes to, asks for the stop, and ends the process
when the time is over. What was not acknowledged until then comes again.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

import structlog

__all__ = ["CLOSE_S", "stopping_on_signals"]

CLOSE_S: Final = 5.0
"""How long a stop may take after ``drain_s``, in seconds: producers, connections, threads."""

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def stopping_on_signals(tier: str, stop: Callable[[], None], patience_s: float) -> Iterator[None]:
    """Call ``stop`` at the first signal, on a thread of its own; end the process with code 0 ``patience_s`` seconds later.

    ``tier`` is named in the log. The end of patience holds beyond the block, until the process has ended.
    """

    def handle(_number: int, _frame: FrameType | None) -> None:
        for one in _SIGNALS:
            signal.signal(one, signal.SIG_DFL)

    told, tells = socket.socketpair()
    tells.setblocking(False)
    given = (told, tier, stop, patience_s)
    threading.Thread(target=_end, args=given, name=f"{tier}-patience", daemon=True).start()
    signal.set_wakeup_fd(tells.fileno())  # first: a signal that is handled and not told would be lost
    before = {one: signal.signal(one, handle) for one in _SIGNALS}
    try:
        yield
    finally:
        signal.set_wakeup_fd(-1)
        tells.close()
        for one, handler in before.items():
            signal.signal(one, handler)


def _end(told: socket.socket, tier: str, stop: Callable[[], None], patience_s: float) -> None:
    with told:
        while signals := told.recv(1):
            if signals[0] in _SIGNALS:
                break
        else:
            return  # it ended by itself
        stop()
        time.sleep(patience_s)
        structlog.get_logger(tier).warning(
            f"{tier} did not end in time and is ended, what it had not acknowledged comes again; see what does not answer",
            after_s=round(patience_s, 1),
        )
        sys.stdout.flush()
        os._exit(0)
