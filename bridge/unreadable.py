"""Names and counts records that cannot be read and are left out, in any process and of any topic."""

from __future__ import annotations

import threading
from typing import Final

import structlog

__all__ = ["leave_out", "left_out"]

log = structlog.get_logger("pulsar")

_SHOWN: Final = 200
_lock = threading.Lock()
_count = 0


def leave_out(topic: str, why: str, *, position: str = "", key: str = "") -> None:
    """Count a record of ``topic`` that is left out, and name it, at most once a minute for each topic."""
    global _count
    with _lock:
        _count += 1
    log.warning(
        "a record cannot be read and is left out. Action: see which client, or which other release of Pulsebridge, writes "
        "to this topic",
        topic=topic,
        position=position,
        key=repr(key)[:_SHOWN],
        why=why[:_SHOWN],
        shown=1,
    )


def left_out() -> int:
    """Return how many records this process has left out."""
    return _count
