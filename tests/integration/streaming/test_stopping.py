"""Queries that are asked to pause or to end while they are behind, so that no moment lies between two batches."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from streaming.stopping import stop_between_batches

from tests.support.waiting import poll_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

pytestmark = pytest.mark.spark

BATCH_MS = 500


def test_queries_that_are_always_behind_stop_with_the_batch_that_runs(
    spark: SparkSession, tmp_path: Path
) -> None:
    sleeping: Any = spark.sparkContext._jvm
    begun, ended = Counter[str](), Counter[str]()

    def behind(name: str) -> StreamingQuery:
        def batch(rows: DataFrame, number: int) -> None:
            begun[name] += 1
            sleeping.java.lang.Thread.sleep(BATCH_MS)  # which a stop would interrupt
            ended[name] += 1

        source = spark.readStream.format("rate").option("rowsPerSecond", 100).load()
        writer = source.writeStream.foreachBatch(batch).option("checkpointLocation", str(tmp_path / name))
        return writer.trigger(processingTime=f"{BATCH_MS // 10} milliseconds").start()

    queries = [behind(f"query {number}") for number in range(3)]
    try:
        poll_for(lambda: min(ended[f"query {n}"] for n in range(3)) >= 2, 60, "queries that are behind")
        before = Counter(begun)
        stop_between_batches(queries)
        assert not any(query.isActive for query in queries)
        assert [query.exception() for query in queries] == [None] * 3
        assert max((begun - before).values(), default=0) <= 2, "one by one, or for want of a quiet moment"
    finally:
        for query in queries:
            query.stop()
