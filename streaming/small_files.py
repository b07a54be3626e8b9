"""How many small files a table has, told to Delta, which counts those alone that are written while it runs.

Delta merges the small files of a table once it has counted enough of them (``delta.autoOptimize.autoCompact``). It begins
at nothing with each start of a driver: what is there already is merged and never was counted, by which its count falls
to nothing or below, where it forgets that it has merged, and merges again with each commit from then on. So its count is
put right before a query writes. With ``autoCompact.modifiedPartitionsOnly.enabled=false``, as in
``conf/spark-defaults.conf``, it goes by the count alone, whatever others do to the table meanwhile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["put_count_right"]

_CONF: Final = "spark.databricks.delta.autoCompact."


def put_count_right(spark: SparkSession, path: str) -> int | None:
    """Have Delta's count of small files say how many the table at ``path`` has, and return that: exact up to twice as
    many as begin a merge. None where the count is not ours to change: of partitioned tables, and where this Delta has
    another way to count.
    """
    from py4j.protocol import Py4JError

    try:
        return _put_right(spark, path)
    except (
        Py4JError,
        TypeError,
    ):  # of an internal part of Delta: without it all works, and merges more than it needs
        return None


def _put_right(spark: SparkSession, path: str) -> int | None:
    jvm: Any = spark.sparkContext._jvm
    session = spark._jsparkSession
    log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(session, path)
    snapshot = log.unsafeVolatileSnapshot()
    if not snapshot.metadata().partitionColumns().isEmpty():
        return None
    half = int(spark.conf.get(_CONF + "maxFileSize") or 0) // 2
    small = int(spark.conf.get(_CONF + "minFileSize", None) or half)
    enough = 2 * int(spark.conf.get(_CONF + "minNumFiles") or 0)
    there = list(snapshot.allFiles().filter(f"size <= {small}").limit(enough).collectAsList())
    stats = jvm.org.apache.spark.sql.delta.stats.AutoCompactPartitionStats.instance(session)
    counted = int(stats.maxNumFilesInTable(log.unsafeVolatileTableId()))
    collector = stats.createStatsCollector(small, None)
    for file in there[counted:]:
        collector.collectPartitionStatsForAdd(file)
    if there and len(there) < enough:
        for _ in range(counted - len(there)):
            collector.collectPartitionStatsForRemove(there[0].remove())
    collector.finalizeStats(log.unsafeVolatileTableId())
    return len(there)
