"""Lets this process, and those that it starts from now on, stand back for others on the machine."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

__all__ = ["stand_back"]


def stand_back(nice: int) -> None:
    """Be nicer by so much, 0 to 19.

    By default Linux shares the processors out between sessions first, and looks at the niceness of processes within one
    session alone (sched(7), autogroup). So a session without a terminal, which is a service's own, stands back as a whole.
    """
    if not nice:
        return
    os.nice(nice)
    with suppress(OSError):
        os.close(os.open("/dev/tty", os.O_RDONLY))
        return
    with suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(nice), encoding="ascii")
