"""A query into Delta on a Pulsar cluster whose parts die, hang and move: each message is in the table once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from pulsebridge.local.cluster import LocalCluster
from pulsebridge.local.stack import LocalStack
from tests.chaos.source_world import Writer, source_world
from tests.support.cluster import frozen, killed, owner_of, unload
from tests.support.pulsar_topics import TestTopic, topic_of
from tests.support.stack import provisioned
from tests.support.waiting import poll_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.stack, pytest.mark.spark, pytest.mark.thorough, pytest.mark.timeout(900)]

_HANGS_S: Final = 14.0


def test_h18_a_query_over_three_failures_of_each_kind(
    cluster_stack: LocalStack, tmp_path: Path, spark: SparkSession
) -> None:
    cluster = cluster_stack.cluster
    assert cluster is not None
    with (
        topic_of(provisioned(cluster_stack), partitions=4) as topic,
        source_world(cluster_stack, topic, tmp_path, hot=True) as one,
    ):
        one.start()
        writer = Writer(topic, 300)
        try:
            poll_for(lambda: one.batches() > 1, 120, "the first batches")
            for _ in range(3):
                owner = owner_of(cluster, topic.admin, topic.partition(0))
                for what in (
                    killed(cluster, owner),
                    _hung(cluster, owner),
                    killed(cluster, "bookie-1"),
                    _moved(topic),
                ):
                    with what:
                        before = one.batches()
                        poll_for(lambda least=before + 3: one.batches() >= least, 90, "batches")  # type: ignore[misc]
        finally:
            writer.end()
        one.finish(spark)
        found = one.account(spark, writer.receipts)
        print(f"{writer.sent} messages, {found.rows} rows, {one.failures()} queries failed")
        assert found.faults() == ""
        assert found.rows >= writer.sent


@contextmanager
def _hung(cluster: LocalCluster, broker: str) -> Iterator[None]:
    """So long that the topics move. The writer, Pulsar's own client, stands still for as long as the broker hangs."""
    with frozen(cluster, broker):
        threading.Event().wait(_HANGS_S)
    yield


@contextmanager
def _moved(topic: TestTopic) -> Iterator[None]:
    unload(topic.admin, topic.name, topic.count)
    yield
