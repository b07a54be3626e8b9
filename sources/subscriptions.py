"""Lists the subscriptions of queries in Pulsar by their property, and deletes them on request.

A subscription outlives its query and retains all unread messages, so an abandoned one fills the disk. Only
subscriptions made by this source are listed or deleted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from bridge.contract import base_topic, partition_names
from bridge.errors import ConfigError, FencedError, RefusedError
from bridge.pulsar.admin import PulsarAdmin, rest_path, subscription_path
from sources.retention import SubscriptionRecord

__all__ = ["RetainedTopic", "delete", "retained_topics"]


@dataclass(frozen=True)
class RetainedTopic:
    """The data of one topic that one query's subscription retains."""

    subscription: str
    topic: str
    partitions: tuple[str, ...]
    in_use: bool
    """Whether a query is connected."""
    committed: bool
    """Whether its query has committed a batch: then the query's checkpoint has its position."""
    starting: str
    """startingOffsets, as the query gave it."""
    entries: int
    """Retained messages, as Pulsar counts them: a batch by its entries, without acknowledged ones."""
    size: int
    """Retained bytes."""

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


def retained_topics(admin: PulsarAdmin, topics: Iterable[str], name: str | None = None) -> list[RetainedTopic]:
    """Return this source's subscriptions on the topics, all or those of one name.

    Raises TransientError if Pulsar's admin is unreachable, DeniedError if it denies access.
    """
    found = []
    for topic in topics:
        count = admin.partition_count(topic)
        partitions = partition_names(topic, count)
        by_name: dict[str, list[tuple[str, SubscriptionRecord, dict[str, Any]]]] = {}
        for partition in partitions:
            path = f"/{rest_path(partition)}/stats?getPreciseBacklog=true&subscriptionBacklogSize=true"
            stats = admin.request("GET", path, accept=(404,)) or {}
            for subscription, of in stats.get("subscriptions", {}).items():
                record = SubscriptionRecord.decode(of.get("subscriptionProperties") or {})
                if record is not None and name in (None, subscription):
                    by_name.setdefault(subscription, []).append((partition, record, of))
        for subscription, parts in sorted(by_name.items()):
            found.append(
                RetainedTopic(
                    subscription,
                    base_topic(topic),
                    tuple(partition for partition, _, _ in parts),
                    any(of.get("consumers") for _, _, of in parts),
                    any(record.committed for _, record, _ in parts),
                    parts[0][1].starting,
                    sum(int(of.get("msgBacklog", 0)) for _, _, of in parts),
                    sum(max(0, int(of.get("backlogSize", 0))) for _, _, of in parts),
                )
            )
    return found


def delete(admin: PulsarAdmin, subscriptions: Iterable[RetainedTopic]) -> None:
    """Delete subscriptions: Pulsar may then delete the data that only they retained.

    Raises FencedError, before anything is deleted, if a query uses one; ConfigError if none is given.
    """
    found = list(subscriptions)
    if not found:
        raise ConfigError("no such subscription of a query exists", remedy="see pulsebridge subscriptions list")
    for of in found:
        if of.in_use:
            raise FencedError(
                f"subscription {of.subscription!r} on {of.topic} is in use by a running query",
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
