"""State of push for ``pulsebridge status``: owner, backlog and parked devices of each partition.

It has a time limit of a few seconds. If it cannot read all cursors in that time, the parked counts are too small.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Final

from bridge.contract import COMMANDS_TOPIC, CURSORS_TOPIC, PUSH_SUBSCRIPTION, partition_name
from bridge.errors import PulsebridgeError
from bridge.inspect.devices.reading import Owner, PushTopics
from bridge.inspect.devices.view import PartitionView
from bridge.pulsar.admin import PulsarAdmin, rest_path
from bridge.pulsar.client import PulsarClient
from bridge.settings import Settings

__all__ = ["PartitionStatus", "PushStatus", "look_at_push"]

_PATIENCE_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """One partition of the commands."""

    partition: int
    owner: Owner
    backlog: int
    """Unacknowledged entries; Pulsar counts a batch of commands as one entry."""
    oldest_us: int
    """Publish time of the oldest of them, 0 if there is none."""
    parked_devices: int
    parked: int
    whole: bool
    """Whether all cursors were read; else the parked counts are too small."""

    @property
    def unserved(self) -> bool:
        """Whether commands wait here and no process pushes them."""
        return not self.owner.serves and (self.backlog > 0 or self.parked > 0)


@dataclass(frozen=True, slots=True)
class PushStatus:
    """State of all partitions; empty without a commands topic."""

    partitions: list[PartitionStatus] = field(default_factory=list)
    problem: str = ""
    """Reason for missing data, empty if the data is complete."""


def look_at_push(settings: Settings) -> PushStatus:
    """Read the state of every partition of the commands; ``problem`` contains an error."""
    pulsar = settings.pulsar.model_copy(update={"operation_timeout": _PATIENCE_S})
    found: list[PartitionStatus] = []
    try:
        with PulsarAdmin(pulsar, timeout_s=_PATIENCE_S) as admin:
            if not admin.partition_count(pulsar.system_topic(COMMANDS_TOPIC)):
                return PushStatus()
            with PulsarClient(pulsar) as client:
                topics = PushTopics(client, admin)
                end = time.monotonic() + _PATIENCE_S
                for partition in range(topics.partitions):
                    found.append(_look(topics, admin, partition, end))
    except PulsebridgeError as e:
        return PushStatus(found, e.what)
    return PushStatus(found)


def _look(topics: PushTopics, admin: PulsarAdmin, partition: int, end: float) -> PartitionStatus:
    view, whole = PartitionView(partition), True
    for key, payload in topics.keyed(CURSORS_TOPIC, partition):
        view.take_record(key, payload)
        if time.monotonic() > end:
            whole = False
            break
    parked = [one.parked for one in view.devices() if one.parked]
    backlog, oldest_us = _backlog(admin, partition_name(topics.commands, partition))
    return PartitionStatus(partition, topics.owner(view), backlog, oldest_us, len(parked), sum(parked), whole)


def _backlog(admin: PulsarAdmin, partition: str) -> tuple[int, int]:
    stats = admin.request("GET", f"/{rest_path(partition)}/stats?getEarliestTimeInBacklog=true") or {}
    subscription = (stats.get("subscriptions") or {}).get(PUSH_SUBSCRIPTION) or {}
    count = int(subscription.get("msgBacklog", 0))
    earliest_ms = int(subscription.get("earliestMsgPublishTimeInBacklog", 0))
    return count, earliest_ms * 1000 if count and earliest_ms > 0 else 0
