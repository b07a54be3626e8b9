"""How many commands wait in Pulsar, asked of its admin now and then: what push has taken, it knows by itself.

A cluster that does not let push read statistics shows no lag, and nothing else is amiss.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import structlog

from bridge.contract import COMMANDS_TOPIC, PUSH_SUBSCRIPTION, partition_name
from bridge.errors import PulsebridgeError
from bridge.health import Health
from bridge.pulsar.admin import PulsarAdmin, rest_path
from bridge.pulsar.watch import Watch
from bridge.push.metrics import PartitionMetrics
from bridge.settings import Settings

__all__ = ["backlogs", "watching_lag"]

log = structlog.get_logger("push")

_EVERY_S: Final = 15.0


def backlogs(stats: Mapping[str, Any], topic: str, partitions: int) -> dict[int, int]:
    """Return the commands that are not acknowledged, by partition, from the topic's partitioned statistics. Pure."""
    found = {}
    for number in range(partitions):
        one = (stats.get("partitions") or {}).get(partition_name(topic, number), {})
        subscription = (one.get("subscriptions") or {}).get(PUSH_SUBSCRIPTION)
        if subscription is not None:
            found[number] = int(subscription["msgBacklog"])
    return found


@contextmanager
def watching_lag(settings: Settings, health: Health, partitions: Mapping[int, PartitionMetrics]) -> Iterator[None]:
    """Show the lag of the partitions that are owned here while the block runs, where an endpoint shows it."""
    if settings.metrics.port == 0:
        yield
        return
    topic = settings.pulsar.system_topic(COMMANDS_TOPIC)

    def ask() -> None:
        stats = admin.request("GET", f"/{rest_path(topic)}/partitioned-stats?perPartition=true") or {}
        for number, lag in backlogs(stats, topic, max(partitions, default=-1) + 1).items():
            if number in partitions:
                partitions[number].lag(lag)

    def failed(error: PulsebridgeError) -> None:
        log.debug("the lag is not known", why=error.what)

    with (
        PulsarAdmin(settings.pulsar, timeout_s=5.0) as admin,
        Watch("push-lag", _EVERY_S, ask, over=lambda: health.ending, failed=failed),
    ):
        yield
