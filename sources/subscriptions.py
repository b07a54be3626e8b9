"""The subscriptions that queries left in Pulsar: found by the mark that the hold gives them, deleted on request.

A subscription outlives its query and keeps everything that was not read, so one that nobody continues fills the disk.
Only those that this source made are listed or deleted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from bridge.contract import base_topic, partition_names
from bridge.errors import ConfigError, FencedError, RefusedError
from bridge.pulsar_admin import PulsarAdmin, rest_path, subscription_path
from sources.hold import HoldRecord

__all__ = ["HeldTopic", "delete", "held_topics"]


@dataclass(frozen=True)
class HeldTopic:
    """What one query's subscription holds of one topic."""

    subscription: str
    topic: str
    partitions: tuple[str, ...]
    in_use: bool
    """Whether a query is connected."""
    committed: bool
    """Whether its query has committed a batch: then the place to go on from is in the query's checkpoint."""
    starting: str
    """startingOffsets, as the query gave it."""
    entries: int
    """Messages that it keeps, as Pulsar counts them: a batch by its entries, acknowledged ones left out."""
    size: int
    """Bytes that it keeps."""

    def as_json(self) -> dict[str, Any]:
        """Return the figures, for programs."""
        return {
            "subscription": self.subscription,
            "topic": self.topic,
            "partitions": len(self.partitions),
            "in_use": self.in_use,
            "committed": self.committed,
            "startingOffsets": self.starting,
            "backlog": self.entries,
            "backlog_bytes": self.size,
        }


def held_topics(admin: PulsarAdmin, topics: Iterable[str], name: str | None = None) -> list[HeldTopic]:
    """Return the subscriptions that this source made on the topics, all or those of one name.

    Raises TransientError when Pulsar's admin cannot be reached, DeniedError when it does not let us look.
    """
    found = []
    for topic in topics:
        count = admin.partition_count(topic)
        partitions = partition_names(topic, count)
        by_name: dict[str, list[tuple[str, HoldRecord, dict[str, Any]]]] = {}
        for partition in partitions:
            path = f"/{rest_path(partition)}/stats?getPreciseBacklog=true&subscriptionBacklogSize=true"
            stats = admin.request("GET", path, accept=(404,)) or {}
            for subscription, of in stats.get("subscriptions", {}).items():
                record = HoldRecord.decode(of.get("subscriptionProperties") or {})
                if record is not None and name in (None, subscription):
                    by_name.setdefault(subscription, []).append((partition, record, of))
        for subscription, held in sorted(by_name.items()):
            found.append(
                HeldTopic(
                    subscription,
                    base_topic(topic),
                    tuple(partition for partition, _, _ in held),
                    any(of.get("consumers") for _, _, of in held),
                    any(record.committed for _, record, _ in held),
                    held[0][1].starting,
                    sum(int(of.get("msgBacklog", 0)) for _, _, of in held),
                    sum(max(0, int(of.get("backlogSize", 0))) for _, _, of in held),
                )
            )
    return found


def delete(admin: PulsarAdmin, held: Iterable[HeldTopic]) -> None:
    """Delete subscriptions: Pulsar may then delete what only they kept.

    Raises FencedError, before anything is deleted, when a query uses one; ConfigError when there is none.
    """
    found = list(held)
    if not found:
        raise ConfigError("there is no such subscription of a query", remedy="see pulsebridge subscriptions list")
    for of in found:
        if of.in_use:
            raise FencedError(
                f"subscription {of.subscription!r} on {of.topic} is in use by a query that runs",
                remedy="stop the query first",
            )
    for of in found:
        for partition in of.partitions:
            path = subscription_path(partition, of.subscription)
            try:
                admin.request("DELETE", path, accept=(404,))
            except RefusedError as e:
                if " 412" not in e.what:
                    raise
                raise FencedError(
                    f"subscription {of.subscription!r} on {partition} came into use meanwhile",
                    remedy="stop the query first",
                ) from e
