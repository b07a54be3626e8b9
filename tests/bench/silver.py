"""Topic to typed table with ten rules and a quarantine, beside the same written by hand (``by_hand.py``); and the latency.

Both read one Pulsar topic through this project's source, in batches of a given size. The product is a declared table with
a suite of Great Expectations, without keys and with keys (each id once). The time is that of a batch, from its planning to
its commits, as Spark reports it; the first batches of a session, in which the JVM compiles, do not count.

Latency is that of the whole way: MQTT broker, ingest, Pulsar, typed table, with bronze, push and the alerts beside it. It
counts from when a reading was due, open loop, to when the Delta commit with its row appeared.
"""

from __future__ import annotations

import functools
import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final, cast

from bridge.contract import P_INGEST, P_TOPIC, encode_ingest
from bridge.pulsar.admin import PulsarAdmin
from bridge.pulsar.wire.batches import head_of
from bridge.settings import LocalSettings, PulsarSettings, Settings
from bridge.settings.streaming import Profile
from pulsebridge.audit.tables import LogTail, read_table
from pulsebridge.downloads.spark_jars import delta_jars
from pulsebridge.local.stack import LocalStack
from pulsebridge.spark_session import JAVA_OPTIONS
from sources.options import connection_options
from streaming.job import Job
from streaming.loading import pipeline_of
from streaming.session import spark_defaults, spark_settings
from tests.bench.by_hand import by_hand
from tests.bench.flood import field, paced, publish
from tests.bench.loop import config_of
from tests.bench.processes import bench_folder, pulsebridge, running, with_logs_of
from tests.bench.results import Figure, percentile
from tests.bench.source_peers import Message, OurSide
from tests.bench.stock import stock_session
from tests.support.spark import build_session, stop_session
from tests.support.waiting import poll_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

__all__ = ["batches_of", "filled_topics", "measure", "product", "reference", "seconds_of"]

SIZES: Final = {100: (4, 3), 20_000: (1, 2), 1_000_000: (0, 1)}
"""Rows of a batch; and how many batches come first, and how many are timed then."""
PROFILES: Final[Mapping[Profile, tuple[int, ...]]] = {"latency": (100, 20_000), "throughput": (20_000, 1_000_000)}
"""Of which sizes a profile is measured; of the second size for the JVM to be warm at the third."""
DEVICES: Final = 500
BAD_EVERY: Final = 50
PARTITIONS: Final = 4
_COLUMNS: Final = "payload,device,mqtt_topic,arrival_time,__publishTime,partition,ledger_id,entry_id"
"""What the reference needs of a message."""
_DELTA: Final = ("spark.sql.extensions", "spark.sql.catalog.spark_catalog")
PACE: Final = 200
"""Readings per second of which the latency is taken."""
WARM_SECONDS: Final = 40
SECONDS: Final = 30
_READY: Final = {"ingest": "subscribed at the MQTT broker"}
"""The line that a tier prints first: messages published without a subscriber are lost."""
_MORE: Final = {"stream": ("--only", "measurements")}
"""More words for a tier."""


def measure() -> tuple[list[Figure], list[str]]:
    """Return ``silver.by_hand`` at three sizes, beside the reference without and with removal of duplicates;
    ``silver.settings``, the reference with this project's settings beside Spark's; and ``silver.p50`` and ``.p99``.
    """
    with filled_topics() as (stack, folder, settings, topics):
        took = {name: _session(name, settings, topics, folder / name) for name in (*PROFILES, "stock")}
        return [*_figures(took), *_latencies(stack, folder)], []


@contextmanager
def filled_topics() -> Iterator[tuple[LocalStack, Path, PulsarSettings, dict[int, str]]]:
    """Start the servers. Give them, a folder, the settings of Pulsar, and for each size a topic with its batches."""
    with (
        bench_folder() as folder,
        LocalStack(LocalSettings(quick_start=False, start_timeout="5m")) as stack,
        with_logs_of(stack, folder),
    ):
        settings = PulsarSettings(service_url=stack.pulsar_url, admin_url=stack.admin_url)
        with PulsarAdmin(settings) as admin:
            admin.provision_namespaces()
        side = OurSide(settings)
        topics = {size: side.store(PARTITIONS, batches_of(size, warm + timed)) for size, (warm, timed) in SIZES.items()}
        yield stack, folder, settings, topics


def product(
    spark: SparkSession,
    settings: PulsarSettings,
    topic: str,
    size: int,
    count: int,
    folder: Path,
    *,
    distinct: bool,
) -> list[float]:
    """Run a declared table over a topic, below ``folder``, in batches of ``size`` rows. Returns the seconds of each."""
    _suite(folder)
    table = {
        "name": "glucose",
        "cluster_by": ["device", "event_time"],
        "keys": ["device", "_id", "event_time"] if distinct else [],
        "suite": "glucose",
        "decoding": {
            "filter": "wearables/+/glucose",
            "fields": "glucose double, sent_us bigint",
            "columns": {"glucose": "glucose", "sent_at": "timestamp_micros(sent_us)"},
            "id": "$.id",
            "time": "$.ts",
        },
    }
    streaming = {
        "root": str(folder),
        "subscription": folder.name,
        "topics": [topic.rpartition("/")[2]],
        "built_in": [],
        "tables": [table],
        "suites": folder,
        "quality": {"interval": "0s"},
        "trigger": {"interval": "0s", "max_rows": size, "max_size": "1024GiB"},
    }
    whole = Settings.model_validate({"pulsar": settings, "streaming": streaming})
    job = Job(spark, whole, pipeline_of(whole))
    job.prepare()
    stop = threading.Event()
    thread = threading.Thread(target=job.run, args=(stop,))
    thread.start()
    try:
        poll_for(lambda: job.queries.get("glucose"), 60, "the query to start")
        return _batches(job.queries["glucose"][0], count)
    finally:
        stop.set()
        thread.join()


def _suite(folder: Path) -> None:
    """Save the rules of ``by_hand.py`` that are no part of a declaration as a suite of Great Expectations."""
    import great_expectations as gx
    from great_expectations import expectations as gxe

    rules = [gxe.ExpectColumnValuesToNotBeNull(column=name) for name in ("device", "_id", "event_time", "glucose")]
    rules += [
        gxe.ExpectColumnValueLengthsToBeBetween(column="_id", min_value=1, max_value=256),
        gxe.ExpectColumnValueLengthsToBeBetween(column="device", max_value=1024),
        gxe.ExpectColumnValuesToBeBetween(column="event_time", min_value=datetime(1970, 1, 1)),
        gxe.ExpectColumnValuesToBeBetween(column="glucose", min_value=10, max_value=1000),
    ]
    context = gx.get_context(mode="file", project_root_dir=str(folder))
    context.suites.add(gx.ExpectationSuite("glucose", expectations=rules))


def reference(
    spark: SparkSession, settings: PulsarSettings, topic: str, size: int, folder: Path, *, distinct: bool
) -> DataStreamWriter:
    """Return the query of ``by_hand.py``, likewise."""
    messages = (
        spark.readStream.format("pulsebridge")
        .options(**connection_options(settings), topic=topic, columns=_COLUMNS)
        .options(predefinedSubscription=folder.name, startingOffsets="earliest", maxRowsPerTrigger=str(size))
        .load()
    )
    return by_hand(messages, folder, distinct=distinct)


def batches_of(size: int, count: int) -> Iterator[list[Message]]:
    """Return readings of 500 devices for so many batches of ``size`` rows, as entries of which each batch takes some from
    each of four partitions; every fiftieth reading breaks a rule.
    """
    entry = min(1000, size // PARTITIONS)
    devices = [f"bench-{n:03}" for n in range(DEVICES)]
    ingest = [encode_ingest(link="pulsebridge", protocol="5", rule="bench", device=name) for name in devices]
    heads = [
        head_of(name, {P_TOPIC: f"wearables/{name}/glucose", P_INGEST: envelope})
        for name, envelope in zip(devices, ingest, strict=True)
    ]
    begin = int(time.time()) - 30 * 86_400
    for first in range(0, size * count, entry):
        batch = []
        for n in range(first, first + entry):
            at = begin + n // DEVICES * 60
            value = 5000.0 if n % BAD_EVERY == 0 else 80.0 + n % 100
            ts = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))
            body = f'{{"id":"r-{n}","ts":"{ts}","glucose":{value},"sent_us":{at * 1_000_000}}}'
            batch.append(Message(body.encode(), heads[n % DEVICES], at * 1000))
        yield batch


def _batches(query: StreamingQuery, count: int) -> list[float]:
    """Wait for so many batches of a query. Returns the seconds of each; Spark counts rows twice that it computes twice."""

    def took() -> list[float]:
        return [p.durationMs["triggerExecution"] / 1000 for p in query.recentProgress if p.numInputRows]

    def done() -> bool:
        if not query.isActive:
            raise RuntimeError(f"the query ended: {query.exception()}")
        return len(took()) >= count

    poll_for(done, 240, f"{count} batches")
    return took()


def seconds_of(writer: DataStreamWriter, count: int) -> list[float]:
    """Run a query for so many batches. Returns the seconds of each."""
    query = writer.start()
    try:
        return _batches(query, count)
    finally:
        query.stop()


def _session(
    name: str, settings: PulsarSettings, topics: Mapping[int, str], folder: Path
) -> dict[tuple[str, int], float]:
    """Return the seconds of a batch, by what made it and by its rows; the product is measured with its own profiles."""
    folder.mkdir()
    profile = cast("Profile", name)
    if name == "stock":
        spark = stock_session(folder, delta_jars(), {key: spark_defaults()[key] for key in _DELTA})
    else:
        # The tests' own session has another compiler.
        more = {"spark.eventLog.enabled": "false", JAVA_OPTIONS: spark_settings("local[2]", profile)[JAVA_OPTIONS]}
        spark = build_session(folder, more, profile=profile)
    found = {}
    try:
        for size in SIZES if name == "stock" else PROFILES[profile]:
            warm, timed = SIZES[size]
            for suffix in ("", ".distinct"):
                count, distinct = warm + timed, bool(suffix)
                place = folder / f"{name}-hand-{size}{suffix}"
                writer = reference(spark, settings, topics[size], size, place, distinct=distinct)
                took = {f"by hand{suffix}": seconds_of(writer, count)}
                if name != "stock":
                    place = folder / f"{name}-product-{size}{suffix}"
                    took[f"product{suffix}"] = product(
                        spark, settings, topics[size], size, count, place, distinct=distinct
                    )
                for way, seconds in took.items():
                    found[way, size] = median(seconds[warm:])
                    print(f"  {name}, {way}, {size:,} rows: {found[way, size]:.2f} s", flush=True)
    finally:
        stop_session(spark)
    return found


def _figures(took: Mapping[str, Mapping[tuple[str, int], float]]) -> list[Figure]:
    """The largest batch is that of the profile ``throughput``, beside Spark's settings; the others ``latency``'s."""
    figures = []
    stock = took["stock"]
    for size in SIZES:
        ours = took["throughput" if size == max(SIZES) else "latency"]
        for suffix in ("", ".distinct"):
            name, way = f"silver.by_hand.{size}{suffix}", f"by hand{suffix}"
            what = "by hand" + (", each id once" if suffix else "")
            product = ours[f"product{suffix}", size]
            if size == max(SIZES):
                beside = (f"{what}, Spark's settings", size / stock[way, size])
                figures.append(Figure(name, size / product, "1/s", *beside))
            else:
                figures.append(Figure(name, product * 1000, "ms", what, ours[way, size] * 1000))
            beside = ("Spark's settings", stock[way, size] * 1000)
            figures.append(Figure(f"silver.settings.{size}{suffix}", ours[way, size] * 1000, "ms", *beside))
    return figures


def _latencies(stack: LocalStack, folder: Path) -> list[Figure]:
    config = config_of(stack, folder)
    with ExitStack() as run:
        for part in ("ingest", "push", "stream"):
            command = pulsebridge(part, "--config", str(config), *_MORE.get(part, ()))
            log = folder / f"{part}.log"
            ready = functools.partial(_says, log, _READY.get(part, ""))
            run.enter_context(running(command, log, ready=ready))
        fleet = _Fleet(stack, folder / "lakehouse")
        fleet.send(PACE, WARM_SECONDS)
        fleet.wait(240)  # or the last readings share their batch with those that count
        due = fleet.send(PACE, SECONDS)
        fleet.wait(240)
        visible = fleet.visible()
    late = [visible[name] / 1000 - at * 1000 for name, at in due.items()]
    print(f"  {PACE}/s: at most {max(late):,.0f} ms", flush=True)
    return [Figure(f"silver.p{share * 100:.0f}.{PACE}", percentile(late, share), "ms") for share in (0.5, 0.99)]


def _says(log: Path, words: str) -> bool:
    return words in log.read_text(errors="replace")


class _Fleet:
    """Devices behind one connection, whose readings are due at fixed times, and where these become visible."""

    def __init__(self, stack: LocalStack, root: Path) -> None:
        self._stack = stack
        self._root = root
        self._tail = LogTail(root / "measurements")
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
        """Wait until the table has all that was sent."""
        poll_for(lambda: self._tail.advance() >= self._sent, seconds, f"{self._sent} readings in the table")

    def visible(self) -> dict[str, int]:
        """Return when each reading became visible, µs since the epoch."""
        return {row.id: row.us for row in read_table(self._root / "measurements")}
