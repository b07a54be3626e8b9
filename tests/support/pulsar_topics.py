"""Topics for tests of the source: written by the bare client, rolled over, trimmed and re-created by the admin."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pulsar

from bridge.contract import partition_name
from bridge.pulsar.admin import PulsarAdmin, rest_path, subscription_path
from bridge.settings.pulsar import PulsarSettings
from tests.support.reading_back import quiet
from tests.support.waiting import poll_for

__all__ = ["TestTopic", "topic_of"]

KINDS: dict[str, dict[str, Any]] = {
    "batched": {"batching_enabled": True, "batching_max_publish_delay_ms": 20},
    "unbatched": {"batching_enabled": False},
    "compressed": {"batching_enabled": True, "compression_type": pulsar.CompressionType.ZSTD},
    "lz4": {"batching_enabled": True, "compression_type": pulsar.CompressionType.LZ4},
    "zlib": {"batching_enabled": False, "compression_type": pulsar.CompressionType.ZLib},
    "snappy": {"batching_enabled": True, "compression_type": pulsar.CompressionType.SNAPPY},
    "chunked": {"batching_enabled": False, "chunking_enabled": True},
}


class TestTopic:
    """One topic in namespaces of its own, with the bare client beside it."""

    __test__ = False

    def __init__(
        self, settings: PulsarSettings, client: pulsar.Client, admin: PulsarAdmin, partitions: int, name: str
    ) -> None:
        self.settings = settings
        self.admin = admin
        self.client = client
        self.name = settings.readings_topic(name or f"t{uuid.uuid4().hex[:8]}")
        self.count = partitions
        self.usual: dict[str, str] = {}
        """Options of each query."""
        self.create()

    def create(self) -> None:
        self.admin.create_partitioned(self.name, self.count)

    def partition(self, number: int = 0) -> str:
        return partition_name(self.name, number)

    def publish(
        self, payloads: Iterable[bytes | None], kind: str = "batched", partition: int = 0, **fields: Any
    ) -> None:
        producer = self.client.create_producer(self.partition(partition), send_timeout_millis=30_000, **KINDS[kind])
        failed: list[Any] = []
        for payload in payloads:
            producer.send_async(payload, lambda r, _: failed.append(r) if r != pulsar.Result.Ok else None, **fields)
        producer.flush()
        producer.close()
        assert not failed, failed

    def roll_over(self, partition: int = 0) -> None:
        """Close the open ledger and begin another."""
        before = self.ledgers(partition)
        self.unload(partition)
        poll_for(lambda: self.ledgers(partition) != before, 30, "a new ledger")

    def unload(self, partition: int = 0) -> None:
        """Unload a partition at the broker, with its caches; the broker loads it again on request."""
        self.admin.request("PUT", f"/{rest_path(self.partition(partition))}/unload")

    def ledgers(self, partition: int = 0) -> list[int]:
        stats = self.admin.internal_stats(self.partition(partition))
        return [int(ledger["ledgerId"]) for ledger in stats["ledgers"]]

    def trim(self, partition: int = 0, left: int = 1) -> None:
        """Trim every closed ledger without an unread message of a subscription, until so many ledgers are left."""
        s = self.settings
        self.admin.request(
            "POST", f"/namespaces/{s.tenant}/{s.namespace}/retention",
            body={"retentionTimeInMinutes": 0, "retentionSizeInMB": 0},
        )  # fmt: skip

        def trimmed() -> bool:
            self.admin.request("POST", f"/{rest_path(self.partition(partition))}/trim")
            return len(self.ledgers(partition)) == left

        poll_for(trimmed, 30, "the closed ledgers to be trimmed")

    def compact(self, partition: int = 0) -> None:
        """Run a compaction to its end."""
        path = f"/{rest_path(self.partition(partition))}/compaction"
        self.admin.request("PUT", path)
        poll_for(lambda: self.admin.request("GET", path)["status"] == "SUCCESS", 30, "the compaction")

    def expire(self, subscription: str, partition: int = 0) -> None:
        """Acknowledge all unread messages of the subscription, as a message TTL does."""
        path = f"{subscription_path(self.partition(partition), subscription)}/expireMessages/1"
        last = self.admin.internal_stats(self.partition(partition))["lastConfirmedEntry"]

        def expired() -> bool:
            self.admin.request("POST", path, accept=(409, 412))
            return self.hold(subscription, partition) == last

        poll_for(expired, 30, "the messages to expire")

    def delete(self) -> None:
        self.admin.request("DELETE", f"/{rest_path(self.name)}/partitions?force=true")

    def hold(self, subscription: str, partition: int = 0) -> str:
        """Return the mark-delete position of a subscription, as Pulsar writes it."""
        cursors = self.admin.internal_stats(self.partition(partition))["cursors"]
        return str(cursors[subscription]["markDeletePosition"])

    def holds(self, subscription: str, partition: int = 0) -> bool:
        return subscription in self.admin.internal_stats(self.partition(partition))["cursors"]

    def drop(self, subscription: str, partition: int = 0) -> None:
        path = subscription_path(self.partition(partition), subscription)
        self.admin.request("DELETE", f"{path}?force=true")

    def options(self, **more: str) -> dict[str, str]:
        s = self.settings
        connection = {"service.url": s.service_url, "admin.url": s.admin_url}
        return {**connection, "topic": self.name, **self.usual, **more}


@contextmanager
def topic_of(settings: PulsarSettings, partitions: int = 1, name: str = "") -> Iterator[TestTopic]:
    """Make a topic, of a name of its own unless one is given, in the readings namespace of these settings."""
    logger = quiet()
    client = pulsar.Client(settings.service_url, logger=logger, operation_timeout_seconds=30)
    try:
        with PulsarAdmin(settings, timeout_s=30) as admin:
            yield TestTopic(settings, client, admin, partitions, name)
    finally:
        client.close()
