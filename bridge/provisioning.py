"""What must exist in Pulsar before the first message: namespaces, the system topics and the holds on them.

It decides the order: policies, then topics, then the push tier's durable subscription, so that no command is ever
written to a topic that holds nothing (H11, H24). Each step is idempotent; several processes may run it at once.
"""

from __future__ import annotations

from bridge.contract import (
    COMMANDS_TOPIC,
    CURSORS_TOPIC,
    DEAD_LETTERS_TOPIC,
    PUSH_SUBSCRIPTION,
    RECEIPTS_TOPIC,
    partition_name,
)
from bridge.errors import ContractError, RefusedError
from bridge.pulsar_admin import PulsarAdmin, rest_path

__all__ = [
    "COMPACTION_THRESHOLD_BYTES",
    "CURSOR_HOLD",
    "commands_ready",
    "provision_commands",
]

COMPACTION_THRESHOLD_BYTES = 4 * 1024 * 1024
"""Backlog of a cursors partition at which Pulsar compacts it by itself; 0 would mean never (H24)."""

CURSOR_HOLD = "pulsebridge-cursors"
"""Durable subscription at earliest on each cursors partition: nothing takes it forward but compaction's horizon,
so that neither the topic nor its compacted view can vanish while no push worker runs (H24)."""

_COMPACTION = "__compaction"  # Pulsar's own subscription; its position is the horizon of the compacted view


def provision_commands(admin: PulsarAdmin, commands_topic: str | None = None) -> int:
    """Create what commands need and return the number of partitions of the commands topic.

    1. Both namespaces with retention, no time-to-live, producers held at quota.
    2. Receipts and dead letters; cursors with a compaction threshold, their own hold, and compaction tried once.
    3. Commands, and on each partition the push tier's subscription at earliest.

    Raises TransientError when Pulsar's admin cannot be reached, RefusedError when it does not allow a step,
    ContractError when commands and cursors have unequal numbers of partitions.
    """
    settings = admin.settings
    commands = commands_topic or settings.system_topic(COMMANDS_TOPIC)
    cursors = settings.system_topic(CURSORS_TOPIC)
    admin.provision_namespaces()
    for local in (RECEIPTS_TOPIC, DEAD_LETTERS_TOPIC):
        admin.create_partitioned(settings.system_topic(local), settings.command_partitions)
    cursor_partitions = admin.create_partitioned(cursors, settings.command_partitions)
    # Of this topic alone: the namespace's policy would compact the commands, which are no state.
    admin.request("POST", f"/{rest_path(cursors)}/compactionThreshold", body=COMPACTION_THRESHOLD_BYTES)
    for partition in range(cursor_partitions):
        name = partition_name(cursors, partition)
        admin.create_subscription(name, CURSOR_HOLD, "earliest")
        _move_hold(admin, name)
        compact(admin, name)
    partitions = admin.create_partitioned(commands, settings.command_partitions)
    if partitions != cursor_partitions:
        raise ContractError(
            f"{commands} has {partitions} partitions and {cursors} has {cursor_partitions}",
            remedy="a cursor stands in the partition of its device: delete the one that is wrong, or use another "
            "pulsar.system_namespace",
        )
    for partition in range(partitions):
        admin.create_subscription(partition_name(commands, partition), PUSH_SUBSCRIPTION, "earliest")
    return partitions


def commands_ready(admin: PulsarAdmin, commands_topic: str | None = None) -> int:
    """Return the number of partitions when all of `provision_commands` is there already, else 0.

    Provisioning ends with the subscription of the last partition, so two requests tell.
    """
    commands = commands_topic or admin.settings.system_topic(COMMANDS_TOPIC)
    partitions = admin.partition_count(commands)
    if not partitions:
        return 0
    last = partition_name(commands, partitions - 1)
    names = admin.request("GET", f"/{rest_path(last)}/subscriptions", accept=(404,)) or []
    return partitions if PUSH_SUBSCRIPTION in names else 0


def _move_hold(admin: PulsarAdmin, partition: str) -> None:
    """Move the hold of a cursors partition to the horizon of the last compaction, or nothing would ever be trimmed."""
    cursors = admin.internal_stats(partition)["cursors"]
    if _COMPACTION not in cursors or CURSOR_HOLD not in cursors:
        return
    horizon = _place(cursors[_COMPACTION]["markDeletePosition"])
    if horizon > _place(cursors[CURSOR_HOLD]["markDeletePosition"]) and horizon[1] >= 0:
        admin.request(
            "POST",
            f"/{rest_path(partition)}/subscription/{CURSOR_HOLD}/resetcursor",
            body={"ledgerId": horizon[0], "entryId": horizon[1], "partitionIndex": -1},
        )


def _place(text: str) -> tuple[int, int]:
    ledger, _, entry = text.partition(":")
    return int(ledger), int(entry)


def compact(admin: PulsarAdmin, partition: str) -> None:
    """Ask Pulsar to compact one partition now. One that is being compacted already is left alone."""
    try:
        admin.request("PUT", f"/{rest_path(partition)}/compaction", accept=(409,))
    except RefusedError as e:
        if " 409" not in e.what:
            raise
