"""Streams beside Spark's Kafka source, in turn: latency at a steady pace, and the time to read all that is there.

Each is measured with the settings that Spark ships (``stock``) and with those of this project (``ours``). The latency is
that from the moment a message was due, open loop, to the function of ``foreachBatch``.
"""

from __future__ import annotations

import itertools
import json
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from tests.bench.results import Figure, percentile
from tests.bench.source_peers import Side
from tests.support.waiting import poll_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["available_now", "batches", "latency"]

PEER: Final = "Spark's Kafka source"
ROUNDS: Final = 3
PACE: Final = 1000
WARM: Final = 30_000
"""Messages of a first round, which is not counted: the JVM compiles what a trigger does for a minute or more."""
WARM_AGAIN: Final = 5_000
SAMPLES: Final = 15_000
ROWS: Final = 1_000_000
FEW_ROWS: Final = 50_000


def latency(spark: SparkSession, sides: Sequence[Side], folder: Path, settings: str) -> list[Figure]:
    """Return ``source.latency_p50`` and ``_p99`` with these settings."""
    found: dict[tuple[str, float], list[float]] = defaultdict(list)
    for number, side in itertools.product(range(ROUNDS + 1), sides):
        waits, durations = _waits(
            spark, side, folder / f"{settings}-{side.name}-{number}", WARM_AGAIN if number else WARM
        )
        if number:
            for share in (0.5, 0.99):
                found[side.name, share].append(percentile(waits, share))
        shown = ", ".join(f"{name} {of:.0f}" for name, of in durations.items())
        print(
            f"  {settings}, {side.name}: p50 {percentile(waits, 0.5):.0f} ms, p99 {percentile(waits, 0.99):.0f} ms; {shown}",
            flush=True,
        )
    return [
        _beside(f"source.latency_p{share * 100:.0f}.{settings}", "ms", found, share, sides) for share in (0.5, 0.99)
    ]


def available_now(spark: SparkSession, sides: Sequence[Side], folder: Path) -> list[Figure]:
    """Return rows per second of a million, over one and four partitions, and the time for fifty thousand."""
    figures = []
    spots = itertools.count()
    for partitions in (1, 4):
        topics = {side.name: side.fill(partitions, ROWS) for side in sides}
        for columns in ("pruned", "all"):
            found: dict[tuple[str, float], list[float]] = defaultdict(list)
            for number, side in itertools.product(range(ROUNDS + 1), sides):
                seconds = _read_all(side.stream(spark, topics[side.name], columns), folder / f"now-{next(spots)}")
                if number:  # the first makes workers and connections, and compiles
                    found[side.name, 0].append(ROWS / seconds)
            figures.append(_beside(f"source.available_now.p{partitions}.{columns}", "1/s", found, 0, sides))
    few: dict[tuple[str, float], list[float]] = defaultdict(list)
    topics = {side.name: side.fill(1, FEW_ROWS) for side in sides}
    for _, side in itertools.product(range(ROUNDS), sides):
        seconds = _read_all(side.stream(spark, topics[side.name], "pruned"), folder / f"now-{next(spots)}")
        few[side.name, 0].append(seconds * 1000)
    return [*figures, _beside("source.available_now.few", "ms", few, 0, sides)]


def batches(spark: SparkSession, sides: Sequence[Side]) -> list[Figure]:
    """Return rows per second of batch reads of one partition, as they are and with ``minPartitions=4``, and of four."""
    figures = []
    for partitions, tasks in ((1, None), (1, 4), (4, None)):
        topics = {side.name: side.fill(partitions, ROWS) for side in sides}
        found: dict[tuple[str, float], list[float]] = defaultdict(list)
        for number, side in itertools.product(range(ROUNDS + 1), sides):
            frame = side.batch(spark, topics[side.name], "pruned", tasks)
            seconds = _timed(lambda frame=frame: frame.write.format("noop").mode("overwrite").save())
            if number:
                found[side.name, 0].append(ROWS / seconds)
        split = "" if tasks is None else f".split{tasks}"
        figures.append(_beside(f"source.batch.p{partitions}{split}", "1/s", found, 0, sides))
    return figures


def _beside(
    name: str, unit: str, found: dict[tuple[str, float], list[float]], share: float, sides: Sequence[Side]
) -> Figure:
    middle = {side.name: median(found[side.name, share]) for side in sides}
    ours, *peers = middle.values()
    print(f"  {name}: " + ", ".join(f"{of} {value:,.0f}" for of, value in middle.items()), flush=True)
    return Figure(name, ours, unit, PEER, peers[0]) if peers else Figure(name, ours, unit)


def _waits(spark: SparkSession, side: Side, place: Path, warm: int) -> tuple[list[float], dict[str, float]]:
    """Return the latencies in ms, and the median of each part of a trigger."""
    topic = side.fill(1, 0)
    waits: list[float] = []

    def arrived(batch: DataFrame, _number: int) -> None:
        rows = batch.collect()
        now = time.time()
        waits.extend((now - float(row.value)) * 1000 for row in rows)

    query = _start(side.stream(spark, topic, "value"), place, arrived)
    try:
        for count in (warm, SAMPLES):
            waits.clear()
            side.paced(topic, count, PACE)
            poll_for(lambda count=count: _failed(query) or len(waits) >= count, 120, "the messages")
        durations = _durations(query)
    finally:
        query.stop()
    if len(waits) != SAMPLES:
        raise RuntimeError(f"{len(waits)} rows came of {SAMPLES} messages")
    return waits, durations


def _start(rows: DataFrame, place: Path, act: Any) -> StreamingQuery:
    return rows.writeStream.foreachBatch(act).option("checkpointLocation", str(place)).start()


def _read_all(rows: DataFrame, place: Path) -> float:
    """Return the seconds that a query takes from its start to its end."""

    def run() -> None:
        writer = rows.writeStream.format("noop").option("checkpointLocation", str(place))
        query = writer.trigger(availableNow=True).start()
        if not query.awaitTermination(300):
            query.stop()
            raise RuntimeError("a query did not end within five minutes")

    return _timed(run)


def _timed(act: Callable[[], None]) -> float:
    started = time.monotonic()
    act()
    return time.monotonic() - started


def _failed(query: StreamingQuery) -> bool:
    if not query.isActive:
        raise RuntimeError(f"the query ended: {query.exception()}")
    return False


def _durations(query: StreamingQuery) -> dict[str, float]:
    reports = [json.loads(progress.json) for progress in query.recentProgress]
    parts: dict[str, list[float]] = defaultdict(list)
    for progress in reports:
        if progress["numInputRows"]:
            for name, value in progress["durationMs"].items():
                parts[name].append(value)
    return {name: median(values) for name, values in sorted(parts.items())}
