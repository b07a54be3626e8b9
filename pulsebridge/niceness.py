"""Lowers the scheduling priority of this process and of its later child processes."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

__all__ = ["lower_priority"]


def lower_priority(nice: int) -> None:
    """Increase the niceness by 0 to 19.

    By default Linux first divides the processors between sessions, and applies niceness only within one session
    (sched(7), autogroup). So a session without a terminal, which is that of a service, gets the niceness as a whole.
    """
    if not nice:
        return
    os.nice(nice)
    with suppress(OSError):
        os.close(os.open("/dev/tty", os.O_RDONLY))
        return
    with suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(nice), encoding="ascii")
