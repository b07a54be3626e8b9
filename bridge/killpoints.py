"""Named points at which a test may kill a process as ``kill -9`` would: no handler, no flush, no goodbye.

``PULSEBRIDGE_KILL_AT=after_puback:3`` kills at the third passage: this process, or the one whose id stands in
``PULSEBRIDGE_KILL_PID``, a server that this process talks to; then this one goes on once that one is gone. With
``PULSEBRIDGE_KILL_SIGNAL=STOP`` it stands still there, until somebody lets it go on. Unset, as always outside of tests,
a point costs one comparison.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from typing import Final

__all__ = [
    "GROUP_KILL_POINTS",
    "HTTP_KILL_POINTS",
    "INGEST_KILL_POINTS",
    "KILL_POINTS",
    "REPLAY_KILL_POINTS",
    "RESEND_KILL_POINTS",
    "RESUME_KILL_POINTS",
    "SINK_TASK_KILL_POINTS",
    "SOURCE_KILL_POINTS",
    "SOURCE_TASK_KILL_POINTS",
    "TABLE_KILL_POINTS",
    "UPKEEP_KILL_POINTS",
    "reach",
]

KILL_POINTS: Final = (
    "after_takeover",  # exclusive producer is ours, nothing read or pushed yet
    "after_publish",  # a command was handed to the link
    "after_puback",  # the broker has it, the cursor is not written
    "after_answer",  # the device has answered (confirm: device), the cursor is not written
    "after_cursor",  # Pulsar has the cursor, the receipt row is not written
    "after_segment",  # Pulsar has the ids of parked commands, they are not acknowledged
    "after_copy",  # a command that waits for long is in the other topic, and nothing says so
    "after_move",  # it is said where it is now; where it was may be said as well, and is held
    "after_pull",  # a device is waking: a command that was parked is read again, it is not pushed
    "after_receipt",  # Pulsar has the receipt row, the command is not acknowledged
    "after_ack",
)
"""Of push."""

GROUP_KILL_POINTS: Final = (
    "group_before_entries",  # the command is open, a chunk of its entries is not written
    "group_after_entries",  # Pulsar has a chunk of entries, the roster does not say so
    "group_after_store",  # Pulsar has a record of the roster
    "group_after_receipt",  # all entries and the receipt are there, the roster does not say so
)
"""Of push, where commands to groups are given to their members."""

RESUME_KILL_POINTS: Final = (
    "resume_after_request",  # a device's request was taken, nothing is done
    "resume_after_find",  # what it gets is known, nothing of that is stored
    "resume_after_store",  # Pulsar has it, the device is not told
    "resume_after_answer",  # the MQTT broker has the answer, the request is not acknowledged
)
"""Of push, for devices that hold their own offset."""

INGEST_KILL_POINTS: Final = (
    "ingest_before_receipt",  # messages were given to a producer, none of them is known to be stored
    "ingest_after_receipt",  # Pulsar has them, no PUBACK has left
    "ingest_after_puback",  # the PUBACKs were handed to the socket
    "ingest_in_reconnect",  # CONNACK of a second or later connection came, nothing was read from it yet
)

HTTP_KILL_POINTS: Final = (
    "http_before_receipt",  # a message was taken, it is not known to be stored
    "http_after_receipt",  # Pulsar has it, the request is not answered
)

REPLAY_KILL_POINTS: Final = (
    "replay_before_receipt",  # dead letters were sent to their topics, nothing is known
    "replay_before_mark",  # their topics have them, that they were replayed is not recorded
    "replay_after_mark",
)

RESEND_KILL_POINTS: Final = (
    "resend_after_write",  # Pulsar has the new copy of a command, nobody was told
)

SOURCE_KILL_POINTS: Final = (
    "source_in_first_offset",  # the subscription stands on one partition more, not on all
    "source_after_first_offset",  # it stands on all, Spark has not written where the query begins
    "source_after_record",  # that a batch was committed is recorded, nothing is acknowledged
    "source_after_ack",  # a partition more is acknowledged
)

SOURCE_TASK_KILL_POINTS: Final = (
    "source_in_task",  # rows are ready, Spark has not got them
    "source_after_task",  # Spark has all rows of the task, it does not know that these were all
)
"""Of Spark's Python workers."""

SINK_TASK_KILL_POINTS: Final = (
    "sink_before_task",  # Spark has rows for the task, none is written
    "sink_after_task",  # Pulsar has all rows of the task, Spark does not know that
)
"""Of Spark's Python workers, where commands and alerts are written."""

TABLE_KILL_POINTS: Final = (
    "table.validated",  # a batch of a flow is validated, nothing of it is written
    "table.written",  # its valid rows are in the table
    "table.quarantined",  # the others are in quarantine
    "view.touched",  # the keys that a batch of changes concerns are known
    "view.merged",  # their rows are merged
    "newest.merged",  # the newest rows are merged
)
"""Of the driver, in a batch of a table."""

UPKEEP_KILL_POINTS: Final = (
    "upkeep.taken",  # a request has an owner, nothing is done
    "upkeep.messages",  # which messages a rebuild or a replay concerns is stored
    "upkeep.staged",  # the log of requests says so
    "upkeep.table",  # the table has the new rows
    "upkeep.quarantine",  # quarantine as well
    "upkeep.newest",  # and what keeps the newest of the table's rows
    "upkeep.whole",  # a view was made again
    "upkeep.drained",  # before a deletion, all flows have processed what was there
    "upkeep.deleted",  # one table more is without the device
    "upkeep.vacuumed",  # one table more is without its old files
    "upkeep.done",  # the log of requests says that it is done
)
"""Of the process that carries out a request of ``pulsebridge tables`` or ``pulsebridge quarantine replay``."""

_name, _, _count = os.environ.get("PULSEBRIDGE_KILL_AT", "").partition(":")
_left = int(_count or 1)
_frozen = os.environ.get("PULSEBRIDGE_KILL_SIGNAL") == "STOP"


def reach(point: str) -> None:
    """Pass the point, or die there."""
    global _left
    if point != _name:
        return
    _left -= 1
    if _left == 0 and "PULSEBRIDGE_KILL_PID" in os.environ:
        _kill(int(os.environ["PULSEBRIDGE_KILL_PID"]))
    elif _frozen:
        if _left == 0:
            os.kill(os.getpid(), signal.SIGSTOP)
    elif _left <= 0 and "PULSEBRIDGE_KILL_PID" not in os.environ:
        os.kill(os.getpid(), signal.SIGKILL)


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
        for _ in range(100):  # its sockets close when it is gone or a zombie: go on soon either way
            os.kill(pid, 0)
            time.sleep(0.01)
