"""The named kill points of each part; ``bridge.killpoints`` kills a process there."""

from __future__ import annotations

from typing import Final

KILL_POINTS: Final = (
    "after_takeover",  # this process has the exclusive producer, it has not read or pushed
    "after_read",  # this process has the command, it is not pushed
    "after_publish",  # the link has the command
    "after_puback",  # the broker has the command, the cursor is not written
    "after_answer",  # the device has answered (confirm: device), the cursor is not written
    "after_cursor",  # Pulsar has the cursor, the receipt row is not written
    "after_segment",  # Pulsar has the ids of parked commands, they are not acknowledged
    "after_copy",  # a relocated command is in the other topic, no segment names the copy
    "after_move",  # a segment names the copy; the replaced segment may exist, the original is retained
    "after_pull",  # a device is waking: a parked command is read, it is not pushed
    "after_receipt",  # Pulsar has the receipt row, the command is not acknowledged
    "after_ack",
)
"""Of push."""

GROUP_KILL_POINTS: Final = (
    "group_before_entries",  # the command is open, a chunk of its entries is not written
    "group_after_entries",  # Pulsar has a chunk of entries, the roster does not record it
    "group_after_store",  # Pulsar has a record of the roster
    "group_after_receipt",  # Pulsar has all entries and the receipt, the roster does not record it
)
"""Of push, in the expansion of group commands."""

RESUME_KILL_POINTS: Final = (
    "resume_after_request",  # push has the request of a device, it has not processed it
    "resume_after_find",  # push knows the commands of the device, it has not stored them
    "resume_after_store",  # Pulsar has them, the device has no answer
    "resume_after_answer",  # the MQTT broker has the answer, the request is not acknowledged
)
"""Of push, for devices that keep their own offset."""

INGEST_KILL_POINTS: Final = (
    "ingest_after_read",  # this process has the messages, no producer has them
    "ingest_before_receipt",  # a producer has the messages, it has no receipt
    "ingest_after_receipt",  # Pulsar has them, no PUBACK is sent
    "ingest_after_puback",  # the socket has the PUBACKs
    "ingest_in_reconnect",  # a second or later connection has its CONNACK, no message is read from it
)

HTTP_KILL_POINTS: Final = (
    "http_after_request",  # this process has the message, no producer has it
    "http_before_receipt",  # a producer has the message, it has no receipt
    "http_after_receipt",  # Pulsar has the message, the request is not answered
)

FETCH_KILL_POINTS: Final = (
    "fetch_before_give",  # the MQTT broker has sent a command, its device does not have it
    "fetch_before_answer",  # the device has confirmed it, nothing of that is published
    "fetch_before_puback",  # the MQTT broker has the device's answer, it has no PUBACK for the command
)
"""Of ingest, for devices that fetch their commands."""

REPLAY_KILL_POINTS: Final = (
    "replay_before_receipt",  # a producer has the dead letters, it has no receipt
    "replay_before_mark",  # their topics have them, the replay is not recorded
    "replay_after_mark",
)

RESEND_KILL_POINTS: Final = (
    "resend_after_write",  # Pulsar has the new copy of a command, the caller has no result
)

MOVE_KILL_POINTS: Final = (
    "move_in_copies",  # the new cluster has some of the commands
    "move_after_copies",  # it has all of a partition, its cursors are not written
    "move_after_cursors",  # it has the cursors of a partition, the partition is not done
)

SOURCE_KILL_POINTS: Final = (
    "source_in_first_offset",  # one more partition has the subscription, not all of them
    "source_after_first_offset",  # all have it, Spark has not written the start of the query
    "source_after_plan",  # the next batch is planned, Spark's offset log does not have it
    "source_after_record",  # the commit of a batch is recorded, nothing is acknowledged
    "source_after_ack",  # one more partition is acknowledged
)

SOURCE_TASK_KILL_POINTS: Final = (
    "source_in_task",  # rows are ready, Spark does not have them
    "source_after_task",  # Spark has all rows of the task, the task has not ended
)
"""Of Spark's Python workers."""

SINK_TASK_KILL_POINTS: Final = (
    "sink_before_task",  # Spark has rows for the task, none is written
    "sink_after_task",  # Pulsar has all rows of the task, the task has not ended
    "sink_in_commit",  # all tasks have ended, Spark has not committed the batch
)
"""Of Spark's Python workers that write commands and alerts; the last of the driver's."""

TABLE_KILL_POINTS: Final = (
    "table.validated",  # a batch of a flow is validated, none of its rows is written
    "table.written",  # its valid rows are in the table
    "table.quarantined",  # the others are in quarantine
    "view.touched",  # the keys of a batch of changes are known
    "view.merged",  # their rows are merged
    "newest.merged",  # the newest rows are merged
)
"""Of the driver, in a batch of a table."""

UPKEEP_KILL_POINTS: Final = (
    "upkeep.taken",  # a request has an owner, its execution has not begun
    "upkeep.messages",  # the messages of a rebuild or a replay are stored
    "upkeep.staged",  # the log of requests records it
    "upkeep.table",  # the table has the new rows
    "upkeep.quarantine",  # quarantine as well
    "upkeep.newest",  # and the table of the newest rows
    "upkeep.whole",  # a view was rebuilt
    "upkeep.drained",  # before a deletion, all flows have processed the existing messages
    "upkeep.deleted",  # one more table is without the device
    "upkeep.vacuumed",  # one more table is without its old files
    "upkeep.done",  # the log of requests records the end
)
"""Of the process that executes a request of ``pulsebridge tables`` or ``pulsebridge quarantine replay``."""
