"""Files of the tables over many small batches: bounded by the tables' own properties, unseen by the streams.

``PULSEBRIDGE_SMALL_FILES=1000`` for a thousand batches with the shipped settings; half an hour, figures printed.
"""

from __future__ import annotations

import os
import re
import time
from itertools import count, islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from streaming.small_files import put_count_right

from streaming import silver
from tests.support.bronze_rows import reading
from tests.support.lakehouse import Lakehouse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(7200), pytest.mark.long]

LONG = int(os.environ.get("PULSEBRIDGE_SMALL_FILES", "0"))
BATCHES = LONG or 6
LEAST = "spark.databricks.delta.autoCompact.minNumFiles"
TABLES = ("bronze", "silver", "quarantine")
_OF_A_BATCH = 2
"""Files that a batch adds to a table at most: as many as there are shuffle partitions."""


def files_of(house: Lakehouse) -> tuple[int, ...]:
    details = [
        house.spark.sql(f"DESCRIBE DETAIL {house.tables.named()[name].sql}").first() for name in TABLES
    ]
    return tuple(int(detail["numFiles"]) for detail in details if detail is not None)


def kept(spark: SparkSession) -> tuple[int, float]:
    """Return how many frames are cached, and what the JVM holds after a collection, in MB."""
    jvm: Any = spark.sparkContext._jvm
    jvm.System.gc()
    runtime = jvm.Runtime.getRuntime()
    cached: int = spark.sparkContext._jsc.sc().getPersistentRDDs().size()
    return cached, (runtime.totalMemory() - runtime.freeMemory()) / 1e6


def merges_of(house: Lakehouse) -> int:
    history = house.spark.sql(f"DESCRIBE HISTORY {house.tables.bronze.sql}")
    return history.where("operation = 'OPTIMIZE'").count()


def test_a_driver_that_starts_again_counts_the_files_that_are_there(
    spark: SparkSession, tmp_path: Path
) -> None:
    jvm: Any = spark.sparkContext._jvm
    counts = jvm.org.apache.spark.sql.delta.stats.AutoCompactPartitionStats.instance(spark._jsparkSession)
    shipped = spark.conf.get(LEAST)
    spark.conf.set(LEAST, "6")
    try:
        house, numbers = Lakehouse(spark, tmp_path), count()

        def arrive(batches: int) -> None:
            for n in islice(numbers, batches):
                house.arrive(reading(n, "a", n, 100))

        path = house.tables.bronze.path(spark)
        assert put_count_right(spark, path) == 0
        arrive(4)
        assert put_count_right(spark, path) == 4
        counts.resetTestOnly()  # what a new driver knows
        assert put_count_right(spark, path) == 4
        arrive(1)
        assert merges_of(house) == 0
        arrive(1)
        assert (merges_of(house), files_of(house)[0]) == (1, 1)
        counts.resetTestOnly()  # and nobody puts it right: by what is there it merges once, and not with each commit
        arrive(6)
        assert (merges_of(house), files_of(house)[0]) == (2, 1)
        arrive(5)
        assert (merges_of(house), files_of(house)[0]) == (2, 6)
        spark.sql(f"OPTIMIZE {house.tables.bronze.sql}")  # as somebody else does it
        assert put_count_right(spark, path) == 1
        arrive(4)
        assert (merges_of(house), files_of(house)[0]) == (3, 5)
    finally:
        spark.conf.set(LEAST, str(shipped))


def test_the_tables_compact_themselves_and_their_streams_give_each_row_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    shipped = spark.conf.get(LEAST)
    assert shipped is not None
    least = int(shipped) if LONG else 3
    spark.conf.set(LEAST, str(least))
    house = Lakehouse(spark, tmp_path)
    counts: list[tuple[int, ...]] = []
    seconds: list[float] = []
    held: list[tuple[int, float]] = []
    query = house.silver(processingTime="0 seconds")
    try:
        for n in range(BATCHES):
            began = time.monotonic()
            house.arrive(reading(2 * n, "a", 2 * n, 100), reading(2 * n + 1, "a", 2 * n + 1, 5))
            query.processAllAvailable()
            seconds.append(time.monotonic() - began)
            if not LONG or n % 10 == 9:
                counts.append(files_of(house))
            if not LONG or n % 50 == 49:
                held.append(kept(spark))
    finally:
        query.stop()
        spark.conf.set(LEAST, shipped)
    most = [max(column) for column in zip(*counts, strict=True)]
    if LONG:
        part = len(seconds) // 4
        print(f"\nfiles at most {dict(zip(TABLES, most, strict=True))}, last {counts[-1]}")
        print(f"a batch: {sum(seconds[part : 2 * part]) / part:.2f} s in the second quarter of the batches, "
              f"{sum(seconds[-part:]) / part:.2f} s in the last")  # fmt: skip
        quarters = [held[at * len(held) // 4 : (at + 1) * len(held) // 4] for at in (1, 3)]
        heaps = [sum(mb for _, mb in quarter) / len(quarter) for quarter in quarters]
        print(f"heap {heaps[0]:.1f} MB in the second quarter, {heaps[1]:.1f} MB in the last")
    first, *later = (cached for cached, _ in held[1:])
    assert all(cached <= first for cached in later), (
        held
    )  # less where other tests' frames are collected meanwhile
    assert all(n < least + _OF_A_BATCH for n in most), counts
    assert any(b < a for (a, *_), (b, *_) in pairwise(counts)), "nothing was compacted"

    seen: list[str] = []

    def keep(rows: DataFrame, batch: int) -> None:
        seen.extend(row[0] for row in rows.select("reading_id").collect())

    stream = silver.judged_by_the_query(spark, house.tables).writeStream.foreachBatch(keep)
    stream = stream.option("checkpointLocation", str(tmp_path / "reader"))
    stream.trigger(availableNow=True).start().awaitTermination()
    assert sorted(seen) == house.ids("silver") == sorted(f"a-{2 * n}" for n in range(BATCHES))

    session = spark.newSession()  # what is set there is gone with it
    guide = Path(__file__).resolve().parents[3] / "streaming" / "TABLES.md"
    (sql,) = re.findall(r"```sql\n(.*?)```", guide.read_text(encoding="utf-8"), re.DOTALL)
    for statement in sql.replace("build/lakehouse", house.tables.root).split(";"):
        if statement.strip():
            session.sql(statement)
    assert files_of(house)[:2] == (1, 1)
