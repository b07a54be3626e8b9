"""A query into Delta on a Pulsar cluster whose parts die, hang and move: each message is in the table once."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from pulsebridge.local.cluster import LocalCluster
from pulsebridge.local.stack import LocalStack
from tests.chaos.source_world import SourceWorld, Writer, source_world
from tests.support.cluster import frozen, killed, owner_of, unload
from tests.support.pulsar_topics import TestTopic, topic_of
from tests.support.stack import provisioned
from tests.support.waiting import poll_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.stack, pytest.mark.spark, pytest.mark.thorough, pytest.mark.timeout(1500)]

_HANGS_S: Final = 14.0
_RATE: Final = 60
"""Messages per second: eight JVMs share the machine with the query, and a batch must not take their time."""


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
        writer = Writer(topic, _RATE)
        try:
            poll_for(lambda: one.batches() > 1, 120, "the first batches")
            for _ in range(3):
                owner = owner_of(cluster, topic.admin, topic.partition(0))
                for name, failure in (
                    ("killed", killed(cluster, owner)),
                    ("hangs", _hung(cluster, owner)),
                    ("bookie", killed(cluster, "bookie-1")),
                    ("moved", _moved(topic)),
                ):
                    with failure:
                        _goes_on(one, writer, f"{name} {owner}")
        finally:
            writer.end()
        one.finish(spark)
        found = one.account(spark, writer.receipts)
        print(f"{writer.sent} messages, {found.rows} rows, {one.failures()} queries failed")
        assert found.faults() == ""
        assert found.rows >= writer.sent


def _goes_on(one: SourceWorld, writer: Writer, failure: str) -> None:
    """Wait for two batches: the second one was planned after the failure."""
    before = one.batches()
    try:
        poll_for(lambda: one.batches() >= before + 2, 90, f"batches while {failure}")
    except AssertionError as e:
        stored = Counter[int]()
        for partition, *_ in list(writer.receipts):
            stored[partition] += 1
        pytest.fail(
            f"{e}; {one.batches() - before} batches came, {one.failures()} queries failed; {writer.sent} sent, receipts "
            f"by partition {dict(stored)}; the driver printed at last: {one.log()[-1500:]}"
        )


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
