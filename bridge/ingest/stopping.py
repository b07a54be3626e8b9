"""Signals that stop ingest, and the end of patience: a stop ends within ``ingest.drain_s`` and ``CLOSE_S``, whatever blocks.

One signal drains, the second kills. Python runs a signal's handler only between two steps of the main thread, which may
stand in a call of Pulsar's client at that time; so a thread of its own reads the signal from a socket that the C level
of Python writes to, and ends the process when the time is over. What was not acknowledged until then comes again.
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

log = structlog.get_logger("ingest")

CLOSE_S: Final = 5.0
"""How long a stop may take after ``ingest.drain_s``, in seconds: producers, connections, threads."""

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def stopping_on_signals(stop: Callable[[], None], patience_s: float) -> Iterator[None]:
    """Call ``stop`` at the first signal, on the main thread; end the process with code 0 ``patience_s`` seconds later.

    The end of patience holds beyond the block, until the process has ended.
    """

    def handle(_number: int, _frame: FrameType | None) -> None:
        for one in _SIGNALS:
            signal.signal(one, signal.SIG_DFL)
        stop()

    told, tells = socket.socketpair()
    tells.setblocking(False)
    threading.Thread(target=_end_late, args=(told, patience_s), name="ingest-patience", daemon=True).start()
    before = {one: signal.signal(one, handle) for one in _SIGNALS}
    signal.set_wakeup_fd(tells.fileno())
    try:
        yield
    finally:
        signal.set_wakeup_fd(-1)
        tells.close()
        for one, handler in before.items():
            signal.signal(one, handler)


def _end_late(told: socket.socket, patience_s: float) -> None:
    with told:
        while signals := told.recv(1):
            if signals[0] in _SIGNALS:
                break
        else:
            return  # it ended by itself
        time.sleep(patience_s)
        log.warning(
            "ingest did not end in time and is ended, what it had not acknowledged comes again; see what does not answer",
            after_s=round(patience_s, 1),
        )
        sys.stdout.flush()
        os._exit(0)
