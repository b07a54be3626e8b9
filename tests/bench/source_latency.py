"""How long a message takes from its publish to ``foreachBatch``, open loop, and what a trigger costs without Pulsar.

Messages are due at fixed times, whatever happens behind them, and each tells when it was due; it has arrived when the
function of ``foreachBatch`` has its row. Beside it runs a Python source that does nothing: what its triggers take is
Spark's own part, which no Python source can save.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from bridge.contract import partition_name
from bridge.pulsar_admin import PulsarAdmin
from bridge.pulsar_client import PulsarClient
from bridge.settings import PulsarSettings
from sources.options import connection_options
from tests.bench.results import Figure, percentile
from tests.support.waiting import poll_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["latency"]

PACE = 1000
WARM = 30_000
"""Messages before the measured ones: the JVM compiles what a trigger does in its first hundred triggers."""
SAMPLES = 20_000
EMPTY = 130
"""Triggers of the source that does nothing; as many as those of the warm-up come first."""
KAFKA = "Spark's Kafka source"
KAFKA_P50_MS, KAFKA_P99_MS = 263.0, 401.0
"""Of Spark's own benchmark of micro-batches."""


def latency(spark: SparkSession, settings: PulsarSettings, folder: Path) -> list[Figure]:
    """Return ``source.latency_p50|p99`` and the time of a trigger beside that of a source which does nothing."""
    topic = settings.readings_topic("bench-latency")
    with PulsarAdmin(settings) as admin:
        admin.create_partitioned(topic, 1)
    waits: list[float] = []

    def arrived(batch: DataFrame, _number: int) -> None:
        rows = batch.collect()
        now = time.time()
        waits.extend((now - float(row.value)) * 1000 for row in rows)

    reader = (
        spark.readStream.format("pulsebridge")
        .options(**connection_options(settings), topic=topic)
        .options(predefinedSubscription="bench", startingOffsets="earliest")
        .schema("value binary")
    )
    with _running(reader.load(), arrived, folder / "latency") as query:
        _publish(settings, topic, WARM)
        poll_for(lambda: _failed(query) or len(waits) >= WARM, 120, "the messages of the warm-up")
        waits.clear()
        first = query.lastProgress["batchId"] if query.lastProgress else 0
        _publish(settings, topic, SAMPLES)
        poll_for(lambda: _failed(query) or len(waits) >= SAMPLES, 60, "the messages that are measured")
        ours = _trigger_ms(query, first)
    if len(waits) != SAMPLES:
        raise RuntimeError(f"{len(waits)} rows came of {SAMPLES} messages")
    spark.dataSource.register(EmptySource)
    with _running(
        spark.readStream.format("empty").load(), lambda batch, _: batch.collect(), folder / "empty"
    ) as query:
        poll_for(
            lambda: _failed(query) or _batches(query) >= EMPTY - 1, 120, "the triggers of the empty source"
        )
        empty = _trigger_ms(query, 70)
    return [
        Figure("source.latency_p50", percentile(waits, 0.5), "ms", KAFKA, KAFKA_P50_MS),
        Figure("source.latency_p99", percentile(waits, 0.99), "ms", KAFKA, KAFKA_P99_MS),
        Figure("source.trigger", ours, "ms", "a Python source that does nothing", empty),
    ]


@contextmanager
def _running(rows: DataFrame, act: Any, checkpoint: Path) -> Iterator[StreamingQuery]:
    query = rows.writeStream.foreachBatch(act).option("checkpointLocation", str(checkpoint)).start()
    try:
        yield query
    finally:
        query.stop()


def _failed(query: StreamingQuery) -> bool:
    if not query.isActive:
        raise RuntimeError(f"the query ended: {query.exception()}")
    return False


def _batches(query: StreamingQuery) -> int:
    return 0 if query.lastProgress is None else int(query.lastProgress["batchId"])


def _trigger_ms(query: StreamingQuery, after: int) -> float:
    """Return the median time of the triggers that took something, of the hundred that Spark remembers."""
    told = [json.loads(progress.json) for progress in query.recentProgress]
    taken = [p["durationMs"]["triggerExecution"] for p in told if p["numInputRows"] and p["batchId"] > after]
    return percentile(taken, 0.5)


class _Message(NamedTuple):
    payload: bytes
    head: bytes
    event_ms: int


def _publish(settings: PulsarSettings, topic: str, count: int) -> None:
    """Publish at the pace, whatever happens behind it."""
    lost: list[Any] = []
    answered = threading.Semaphore(0)

    def receipt(error: Any) -> None:
        if error is not None:
            lost.append(error)
        answered.release()

    with PulsarClient(settings) as client:
        producer = client.batch_producer(partition_name(topic, 0))
        begin, sent, calls = time.time(), 0, 0
        while sent < count:
            due = min(count, int((time.time() - begin) * PACE) + 1)
            if due > sent:
                times = [begin + n / PACE for n in range(sent, due)]
                producer.send([_Message(b"%.6f" % at, b"", 0) for at in times], receipt)
                calls += 1
                sent = due
            time.sleep(0.002)
        for _ in range(calls):
            answered.acquire(timeout=30)
    if lost:
        raise RuntimeError(f"a message was not stored: {lost[0]}")


class EmptySource(DataSource):
    """A row for each trigger, from nowhere."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "empty"

    def schema(self) -> str:
        """Return one column, as the query that is compared reads one."""
        return "value binary"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        """Return the reader."""
        return _Empty()


class _Empty(DataSourceStreamReader):
    def __init__(self) -> None:
        self._next = 0

    def initialOffset(self) -> dict[str, Any]:
        return {"n": 0}

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]
        self._next = min(
            self._next + 1, EMPTY
        )  # it ends in peace: Spark may overflow its stack when it is stopped
        return {"n": self._next}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[tuple[bytes]]:
        yield (b"",)
