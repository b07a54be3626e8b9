"""Named points at which a test kills a process as ``kill -9`` does.

``PULSEBRIDGE_KILL_AT=after_puback:3`` kills this process at the third passage. ``PULSEBRIDGE_KILL_PID`` selects
another process, such as a server of this one; this process continues when that one is dead. With
``PULSEBRIDGE_KILL_SIGNAL=STOP`` this process stops there until SIGCONT. Outside of tests the variables are unset, and
a point costs one comparison. ``tests/support/kill_points.py`` lists the points of each part.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import suppress

__all__ = ["reach"]

_name, _, _count = os.environ.get("PULSEBRIDGE_KILL_AT", "").partition(":")
_left = int(_count or 1)
_frozen = os.environ.get("PULSEBRIDGE_KILL_SIGNAL") == "STOP"


def reach(point: str) -> None:
    """Pass the point, or kill or stop a process there as the environment specifies."""
    global _left
    if point != _name:
        return
    _left -= 1
    if _left == 0 and "PULSEBRIDGE_KILL_PID" in os.environ:
        _kill(int(os.environ["PULSEBRIDGE_KILL_PID"]))
    elif _frozen:
        if _left == 0:
            # To this thread: of a signal to the process another thread may take notice while this one passes the point.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
    elif _left <= 0 and "PULSEBRIDGE_KILL_PID" not in os.environ:
        os.kill(os.getpid(), signal.SIGKILL)


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
        for _ in range(100):  # its sockets close when it is dead or a zombie, so continue soon in both cases
            os.kill(pid, 0)
            time.sleep(0.01)
