"""A query that has nothing to read: it runs no batch, and neither its planner nor the JVM grows, however long it lasts.

What is measured is the slope of memory after a warm-up, in bytes per second: the resident memory of the planner's
process, and what the JVM's heap holds after a collection.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from bridge.pulsar.admin import PulsarAdmin
from bridge.settings import LocalSettings, PulsarSettings
from pulsebridge.local.stack import LocalStack
from sources.options import connection_options
from tests.bench.processes import bench_folder
from tests.bench.results import Figure
from tests.support.memory import slope
from tests.support.spark import build_session, stop_session
from tests.support.waiting import poll_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["measure"]

SECONDS = "BENCH_IDLE_S"
"""Environment variable: how long the query is idle, in seconds, 600 by default."""
WARM_SHARE = 0.2
EVERY_S = 2.0
PARTITIONS = 4


def measure() -> tuple[list[Figure], list[str]]:
    """Return ``source.idle_batches`` and the slopes ``source.idle_planner_slope`` and ``source.idle_heap_slope``."""
    seconds = float(os.environ.get(SECONDS, "600"))
    with LocalStack(LocalSettings(quick_start=False, start_timeout="5m")) as stack, bench_folder() as folder:
        settings = PulsarSettings(service_url=stack.pulsar_url, admin_url=stack.admin_url)
        topic = settings.readings_topic("bench-idle")
        with PulsarAdmin(settings) as admin:
            admin.provision_namespaces()
            admin.create_partitioned(topic, PARTITIONS)
        spark = build_session(folder, {"spark.eventLog.enabled": "false"}, lasting=True)
        try:
            rows = spark.readStream.format("pulsebridge").options(**connection_options(settings), topic=topic)
            query = (
                rows.option("predefinedSubscription", "idle")
                .load()
                .writeStream.format("noop")
                .option("checkpointLocation", str(folder / "idle"))
                .start()
            )
            try:
                # Spark begins each query with a batch, also where there is nothing to read.
                poll_for(lambda: _batches(folder / "idle" / "commits") == 1, 60, "the first batch")
                planner, heap = _memory(spark, query, seconds)
                batches = _batches(folder / "idle" / "offsets") - 1
            finally:
                query.stop()
        finally:
            stop_session(spark)
    warm = WARM_SHARE * seconds
    print(
        f"  planner {planner[-1][1] / 1e6:.1f} MB, heap {heap[-1][1] / 1e6:.1f} MB after {seconds:.0f} s",
        flush=True,
    )
    return [
        Figure("source.idle_batches", float(batches), "batches"),
        Figure("source.idle_planner_slope", slope(planner, after_s=warm), "bytes/s"),
        Figure("source.idle_heap_slope", slope(heap, after_s=warm), "bytes/s"),
    ], []


def _memory(
    spark: SparkSession, query: StreamingQuery, seconds: float
) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
    """Return (time in s, bytes) of the planner's process and of the heap."""
    java: Any = spark.sparkContext._jvm.java.lang  # type: ignore[union-attr]
    begin = time.monotonic()
    planner: list[tuple[float, float]] = []
    heap: list[tuple[float, float]] = []
    process = poll_for(lambda: _planner(spark), 60, "the planner's process")

    def sampled() -> bool:
        if not query.isActive:
            raise RuntimeError(f"the query ended: {query.exception()}")
        now = time.monotonic() - begin
        java.System.gc()
        runtime = java.Runtime.getRuntime()
        planner.append((now, float(process.memory_info().rss)))
        heap.append((now, float(runtime.totalMemory() - runtime.freeMemory())))
        return now >= seconds

    poll_for(sampled, seconds + 60, "the end of the idle time", every=EVERY_S)
    return planner, heap


def _planner(spark: SparkSession) -> psutil.Process | None:
    gateway: Any = spark.sparkContext._gateway
    for process in psutil.Process(gateway.proc.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # Spark starts and ends others meanwhile
            if "python_streaming_source_runner" in " ".join(process.cmdline()):
                held = process.children()  # where a daemon forks it
                return held[0] if held else process
    return None


def _batches(folder: Path) -> int:
    return sum(path.name.isdigit() for path in folder.glob("*"))
