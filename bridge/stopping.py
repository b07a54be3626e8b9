"""Stops a tier at a signal, within ``drain_s`` and ``CLOSE_S``, also if a call blocks.

The first signal drains, the second kills. Python runs a signal's handler only between two steps of the main thread.
That thread may block in a call of Pulsar's client, or own the lock of the event that the handler would set. So a
separate thread reads the signal from a socket, to which the C level of Python writes. It requests the stop, and kills
the process after the time limit. Unacknowledged messages are then resent.
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
"""Time after ``drain_s`` to close producers, connections and threads, in seconds."""

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def stopping_on_signals(tier: str, stop: Callable[[], None], patience_s: float) -> Iterator[None]:
    """Call ``stop`` at the first signal, on a separate thread; kill the process with code 0 ``patience_s`` seconds
    later.

    ``tier`` is the name in the log. The time limit applies also after the block, until the process has ended.
    """

    def handle(_number: int, _frame: FrameType | None) -> None:
        for one in _SIGNALS:
            signal.signal(one, signal.SIG_DFL)

    reader, writer = socket.socketpair()
    writer.setblocking(False)
    arguments = (reader, tier, stop, patience_s)
    threading.Thread(target=_end, args=arguments, name=f"{tier}-patience", daemon=True).start()
    signal.set_wakeup_fd(writer.fileno())  # before the handlers: otherwise a signal in between is lost
    before = {one: signal.signal(one, handle) for one in _SIGNALS}
    try:
        yield
    finally:
        signal.set_wakeup_fd(-1)
        writer.close()
        for one, handler in before.items():
            signal.signal(one, handler)


def _end(reader: socket.socket, tier: str, stop: Callable[[], None], patience_s: float) -> None:
    with reader:
        while signals := reader.recv(1):
            if signals[0] in _SIGNALS:
                break
        else:
            return  # the block has ended without a signal
        stop()
        time.sleep(patience_s)
        structlog.get_logger(tier).warning(
            f"{tier} did not stop in time and is killed; unacknowledged messages are resent. "
            "Action: find the server that does not answer",
            after_s=round(patience_s, 1),
        )
        sys.stdout.flush()
        os._exit(0)
