"""Named points at which a test may kill the process as ``kill -9`` would: no handler, no flush, no goodbye.

``PULSEBRIDGE_KILL_AT=after_puback:3`` kills at the third passage. Unset, as always outside of tests, a point costs
one comparison.
"""

from __future__ import annotations

import os
import signal
from typing import Final

__all__ = ["KILL_POINTS", "reach"]

KILL_POINTS: Final = (
    "after_takeover",  # exclusive producer is ours, nothing read or pushed yet
    "after_publish",  # a command was handed to the link
    "after_puback",  # the broker has it, the cursor is not written
    "after_cursor",  # Pulsar has the cursor, the receipt row is not written
    "after_receipt",  # Pulsar has the receipt row, the command is not acknowledged
    "after_ack",
)

_name, _, _count = os.environ.get("PULSEBRIDGE_KILL_AT", "").partition(":")
_left = int(_count or 1)


def reach(point: str) -> None:
    """Pass the point, or die there."""
    global _left
    if point != _name:
        return
    _left -= 1
    if _left <= 0:
        os.kill(os.getpid(), signal.SIGKILL)
