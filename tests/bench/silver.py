"""Silver: what validation costs of a batch, how many readings a second pass, and how long one takes from its device.

The share of validation is that of the suite and of quarantine in the time of a batch: the same rows, in turn with the
shipped suite and with an empty one, batch after batch into tables of their own. Latency is that of the whole way, MQTT
broker, ingest, Pulsar, bronze and silver, with push and the alerts running beside it: from when a reading was due, open
loop, to when the commit of Delta that holds it appeared.
"""

from __future__ import annotations

import functools
import json
import statistics
import time
from contextlib import ExitStack
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bridge.local.stack import LocalStack
from bridge.settings import LocalSettings, StreamingSettings
from bridge.settings.loading import conf_path
from pulsebridge.audit.tables import LogTail, read_table
from streaming import silver
from streaming.checkpoints import Checkpoint
from streaming.decoders.settings import load_decoders
from streaming.predicates import Suite, load_suite, parse_suite
from streaming.tables import Tables
from tests.bench.flood import field, paced, publish
from tests.bench.loop import config_of
from tests.bench.processes import bench_folder, pulsebridge, running
from tests.bench.results import Figure, percentile
from tests.support.spark import build_session, stop_session
from tests.support.waiting import poll_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["measure"]

SIZES: Final = {100: (8, 10), 10_000: (4, 8), 1_000_000: (0, 1)}
"""Rows of a batch; and how many batches come first, and how many are timed then."""
DEVICES: Final = 500
BAD_EVERY: Final = 50
WARM_SECONDS: Final = 120
"""At the first pace: the JVM compiles its code for as long."""
PACES: Final = {200: 60, 2_000: 30}
"""Readings per second, and for how many seconds."""
FIRST_PACE: Final = min(PACES)
_READY: Final = {"ingest": "subscribed at the MQTT broker"}
"""What a tier has to say first: what is published while nobody is subscribed is lost."""


def measure() -> tuple[list[Figure], list[str]]:
    """Return ``silver.validation_share``, ``silver.rate``, and ``silver.p50`` and ``.p99`` at two paces."""
    return [*_shares(), *_latencies()], []


def _shares() -> list[Figure]:
    shipped = load_suite(conf_path("expectations/silver.json"))
    suites = {"with": shipped, "without": parse_suite({"name": "none", "expectations": []}, "bench")}
    figures = []
    with bench_folder() as folder:
        spark = build_session(folder, {"spark.eventLog.enabled": "false"})
        try:
            for size, (warm, timed) in SIZES.items():
                rows = _bronze(spark, size, warm + timed, folder / f"bronze-{size}")
                into = {
                    name: _batches(spark, suite, folder / f"{name}-{size}") for name, suite in suites.items()
                }
                seconds: dict[str, list[float]] = {name: [] for name in suites}
                for number in range(warm + timed):
                    for name, batches in into.items():
                        began = time.monotonic()
                        batches(rows.where(f"batch = {number}").drop("batch"), number)
                        seconds[name].append(time.monotonic() - began)
                with_, bare = (statistics.median(seconds[name][warm:]) for name in ("with", "without"))
                print(f"  {size:,} rows: {with_:.2f} s, {bare:.2f} s without a suite", flush=True)
                figures.append(Figure(f"silver.validation_share.{size}", (with_ - bare) / with_, "share"))
                figures.append(
                    Figure(f"silver.batch.{size}", with_ * 1000, "ms", "without a suite", bare * 1000)
                )
            figures.append(Figure("silver.rate", size / with_, "1/s"))
        finally:
            stop_session(spark)
    return figures


def _bronze(spark: SparkSession, size: int, count: int, folder: Path) -> DataFrame:
    """Return the stored messages of so many batches, of many devices; every fiftieth fails a rule."""
    from pyspark.sql import functions as F

    at = F.timestamp_seconds(F.lit(1_767_225_600) + F.col("id") * 5)
    value = F.when(F.col("id") % BAD_EVERY == 0, 5000.0).otherwise(80.0 + F.col("id") % 100)
    device = F.format_string("bench-%03d", F.col("id") % DEVICES)
    body = F.to_json(
        F.struct(
            F.format_string("r-%d", "id").alias("id"),
            F.date_format(at, "yyyy-MM-dd'T'HH:mm:ss'Z'").alias("ts"),
            value.alias("glucose"),
            (F.unix_micros(at) + 1000).alias("sent_us"),
        )
    )
    rows = spark.range(size * count).select(
        F.floor(F.col("id") / size).cast("int").alias("batch"),
        F.lit("persistent://public/bench/wearables").alias("__topic"),
        at.alias("__publishTime"),
        F.lit(None).cast("map<string,string>").alias("__messageProperties"),
        F.lit(0).alias("partition"),
        F.lit(1).cast("bigint").alias("ledger_id"),
        F.col("id").alias("entry_id"),
        F.lit(0).alias("batch_index"),
        F.concat(F.lit("wearables/"), device, F.lit("/glucose")).alias("mqtt_topic"),
        device.alias("device"),
        F.encode(body, "UTF-8").alias("payload"),
        F.lit(False).alias("retained"),
        at.alias("arrival_time"),
        F.lit(None).cast("string").alias("command_topic"),
    )
    rows.coalesce(2).write.format("delta").partitionBy("batch").save(str(folder))
    return spark.read.format("delta").load(str(folder))


def _batches(spark: SparkSession, suite: Suite, root: Path) -> silver.SilverBatches:
    """Return what writes the micro-batches, into new tables."""
    tables = Tables.of(StreamingSettings(root=str(root)))
    silver.create_tables(spark, tables)
    recipe = silver.recipe_of(load_decoders(conf_path("rules.yaml")), suite, 600.0)
    return silver.SilverBatches(tables, Checkpoint(spark, tables.checkpoint("silver")), recipe)


def _latencies() -> list[Figure]:
    with (
        bench_folder() as folder,
        LocalStack(LocalSettings(quick_start=False, start_timeout_s=300)) as stack,
        ExitStack() as run,
    ):
        config = config_of(stack, folder)
        for part in ("ingest", "push", "stream"):
            command = pulsebridge(part, "--config", str(config))
            log = folder / f"{part}.log"
            ready = functools.partial(_says, log, _READY.get(part, ""))
            run.enter_context(running(command, log, ready=ready))
        fleet = _Fleet(stack, folder / "lakehouse")
        fleet.send(FIRST_PACE, WARM_SECONDS)
        fleet.wait(240)
        sent = {}
        for pace, seconds in PACES.items():
            sent[pace] = fleet.send(pace, seconds)
            fleet.wait(300)  # or the last readings of a pace share their batch with the next one's
        visible = fleet.visible()
    figures = []
    for pace, due in sent.items():
        late = [visible[name] / 1000 - at * 1000 for name, at in due.items()]
        print(f"  {pace:,}/s: at most {max(late):,.0f} ms", flush=True)
        figures.append(Figure(f"silver.p50.{pace}", percentile(late, 0.50), "ms"))
        figures.append(Figure(f"silver.p99.{pace}", percentile(late, 0.99), "ms"))
    return figures


def _says(log: Path, words: str) -> bool:
    return words in log.read_text(errors="replace")


class _Fleet:
    """Devices behind one connection, whose readings are due at fixed times, and where these become visible."""

    def __init__(self, stack: LocalStack, root: Path) -> None:
        self._stack = stack
        self._root = root
        self._tail = LogTail(root / "silver")
        self._sent = 0
        self._epoch = datetime.now(timezone.utc) - timedelta(days=365)

    def send(self, pace: int, seconds: int) -> dict[str, float]:
        """Publish at the pace. Returns when each reading was due, in seconds since the epoch."""
        numbers = range(self._sent, self._sent + pace * seconds)
        packets = [self._packet(n) for n in numbers]
        begin = paced(self._stack.mqtt_host, self._stack.mqtt_port, packets, pace)
        self._sent = numbers.stop
        return {f"r-{n}": begin + (n - numbers.start) / pace for n in numbers}

    def _packet(self, number: int) -> bytes:
        round_, device = divmod(number, DEVICES)
        ts = (self._epoch + timedelta(minutes=5 * round_)).isoformat()
        body = json.dumps({"id": f"r-{number}", "ts": ts, "glucose": 110.0}).encode()
        topic = field(b"wearables/bench-%03d/glucose" % device)
        return publish(topic, number % 60_000 + 1, body)

    def wait(self, seconds: float) -> None:
        """Wait until silver has all that was sent."""
        poll_for(lambda: self._tail.advance() >= self._sent, seconds, f"{self._sent} readings in silver")

    def visible(self) -> dict[str, int]:
        """Return when each reading became visible, µs since the epoch."""
        return {row.id: row.us for row in read_table(self._root / "silver")}
