"""The backlog of a query is in its progress, in the log and in the metrics of its driver."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import structlog
from prometheus_client import CollectorRegistry

from sources.progress import SourceProgress
from tests.support.pulsar_topics import TestTopic
from tests.support.spark_features import needs_limits
from tests.support.waiting import poll_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.stack, pytest.mark.spark]


def run(spark: SparkSession, topic: TestTopic, folder: Path) -> list[Any]:
    """Run a query of 4 entries a batch to the end; return its sources' progress, batch by batch."""
    options = topic.options(predefinedSubscription="q", startingOffsets="earliest", maxEntriesPerTrigger="4")
    frame = spark.readStream.format("pulsebridge").options(**options).load()
    writer = frame.writeStream.queryName("lagging").format("noop")
    query = writer.option("checkpointLocation", str(folder)).trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(90), "the query did not end"
        return [json.loads(p.json)["sources"][0] for p in query.recentProgress if p.numInputRows]
    finally:
        query.stop()


@needs_limits
def test_entries_bytes_and_seconds_behind_are_in_the_progress_and_in_the_metrics(
    spark: SparkSession, topic: TestTopic, tmp_path: Path
) -> None:
    topic.publish([bytes(1000)] * 7, "unbatched")
    topic.publish([bytes(1000)], "unbatched", 1)
    registry = CollectorRegistry()
    listener = SourceProgress(registry)

    def metric(name: str) -> float | None:
        return registry.get_sample_value(f"pulsebridge_source_{name}", {"query": "lagging"})

    spark.streams.addListener(listener)
    try:
        with structlog.testing.capture_logs() as logs:
            first, second = run(spark, topic, tmp_path)
            poll_for(lambda: metric("batches_total") == 2, 60, "both batches to be counted")
            # Spark notifies its listeners that a query has ended after all of its batches.
            poll_for(lambda: metric("behind_entries") is None, 60, "the lag of an ended query to be gone")
    finally:
        spark.streams.removeListener(listener)
    left = first["latestOffset"]["behind"][topic.partition(0)]
    assert left["entries"] == 4
    assert 4000 <= left["bytes"] <= 5000
    assert left["seconds"] > 0
    assert first["latestOffset"]["behind"][topic.partition(1)] == {"entries": 0, "bytes": 0, "seconds": 0.0}
    assert {of["entries"] for of in second["latestOffset"]["behind"].values()} == {0}
    assert metric("rows_total") == 8
    (line,) = [line for line in logs if line["event"] == "lag of the query" and line["log_level"] == "info"]
    assert (line["query"], line["entries"], line["partitions"]) == ("lagging", 4, 1)
    assert list(line["most"]) == [topic.partition(0)], "the log names the partition"


@needs_limits
def test_few_rows_wait_in_spark_until_there_are_enough_but_not_with_available_now(
    spark: SparkSession, topic: TestTopic, tmp_path: Path
) -> None:
    options = topic.options(
        predefinedSubscription="q", startingOffsets="earliest", minRowsPerTrigger="5", maxTriggerDelay="1h"
    )
    frame = spark.readStream.format("pulsebridge").options(**options, columns="value").load()
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path))
    topic.publish([b"first"], "unbatched")
    query = writer.start()

    def rows() -> list[int]:
        return [p.numInputRows for p in query.recentProgress if p.numInputRows]

    try:
        poll_for(lambda: rows() == [1], 90, "the first batch, which waits for no minimum")
        topic.publish([b"1", b"2"], "unbatched")
        # The rest comes later: were the two a batch of their own, there would be three batches.
        poll_for(lambda: query.status["message"] == "Waiting for data to arrive", 30, "the query to wait")
        topic.publish([b"3", b"4", b"5"], "unbatched", 1)
        poll_for(lambda: sum(rows()) == 6, 90, "the second batch")
        assert rows() == [1, 5]
    finally:
        query.stop()
    topic.publish([b"last"], "unbatched")
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(90)
    assert rows() == [1]
