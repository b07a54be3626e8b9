"""Rows per second of the Spark source, beside a bare reader in one process and ``pulsar-perf consume``, in one run.

All read the same stored messages from the start, so none waits for a producer. Spark's own start-up and the first
batch (which makes the Python workers) are left out; planning, tasks and the hand-over to the JVM are in.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from bridge.contract import partition_name
from bridge.errors import PulsebridgeError
from bridge.pulsar.admin import PulsarAdmin, rest_path
from bridge.pulsar.client import EARLIEST, PulsarClient
from bridge.settings import LocalSettings, PulsarSettings
from pulsebridge.downloads.preflight import find_java
from pulsebridge.downloads.spark_jars import delta_jars
from pulsebridge.local.stack import LocalStack
from tests.bench.kafka import kafka_running, kafka_source_jars
from tests.bench.processes import bench_folder, with_logs_of
from tests.bench.results import Figure
from tests.bench.source_peers import KafkaSide, OurSide, Side
from tests.bench.source_stream import available_now, batches, latency
from tests.bench.stock import stock_session
from tests.support.spark import build_session, stop_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["measure"]

MESSAGES = 2_000_000
GROWTH = ((1, 100_000), (1, 1_000_000), (1, 5_000_000), (4, 1_000_000), (16, 1_000_000))
"""Partitions and backlog of the topics whose cost per row is compared, in µs beside that of the second."""
SPLITS = 4
ROUNDS = 3
GROWTH_ROUNDS = 5
BESIDE_KAFKA_ALONE = "BENCH_PEERS" in os.environ
"""Environment variable: leave out what is not compared with Kafka's source."""


def measure() -> tuple[list[Figure], list[str]]:
    """Return ``source.all`` and ``source.pruned`` beside a bare reader, what a row costs as topics grow, and streams and
    batches beside Spark's Kafka source.
    """
    left_out: list[str] = []
    with (
        LocalStack(LocalSettings(quick_start=False, start_timeout="5m")) as stack,
        bench_folder() as folder,
        with_logs_of(stack, folder),
    ):
        settings = PulsarSettings(service_url=stack.pulsar_url, admin_url=stack.admin_url)
        with PulsarAdmin(settings) as admin:
            admin.provision_namespaces()
        side = OurSide(settings)
        figures = [] if BESIDE_KAFKA_ALONE else _alone(stack, side, folder)
        with ExitStack() as peers:
            sides: list[Side] = [side]
            jars: list[Path] = []
            try:
                jars = kafka_source_jars()
                sides.append(KafkaSide(peers.enter_context(kafka_running(folder))))
            except (PulsebridgeError, ImportError) as e:
                left_out.append(f"Spark's Kafka source beside ours: {e}")
            figures += _beside_kafka(sides, jars, folder)
    return figures, left_out


def _alone(stack: LocalStack, side: OurSide, folder: Path) -> list[Figure]:
    topic = side.fill(1, MESSAGES)
    figures = [Figure("source.pulsar_perf", _pulsar_perf(stack, topic), "1/s")]
    spark = build_session(folder, {"spark.eventLog.enabled": "false"}, lasting=True)
    try:
        one = _Reads(spark, side)
        one.rate(topic, 100_000, "all")  # makes the workers, and compiles
        return figures + _beside_a_bare_reader(one, topic) + _growth(one)
    finally:
        stop_session(spark)


def _beside_kafka(sides: list[Side], jars: list[Path], folder: Path) -> list[Figure]:
    figures = []
    for settings in ("ours", "stock"):
        place = folder / settings
        place.mkdir()
        if settings == "ours":
            all_jars = ",".join(map(str, [*delta_jars(), *jars]))
            spark = build_session(place, {"spark.eventLog.enabled": "false", "spark.jars": all_jars}, lasting=True)
        else:
            spark = stock_session(place, jars)
        try:
            figures += latency(spark, sides, place, settings)
            if settings == "stock":
                figures += available_now(spark, sides, place)
                figures += batches(spark, sides)
        finally:
            stop_session(spark)
    return figures


def _bare(settings: PulsarSettings, topic: str) -> float:
    """Return messages per second of Pulsar's own client in one Python process that looks at each payload."""
    with PulsarClient(settings) as client:
        reader = client.reader(partition_name(topic, 0), EARLIEST, queue=10_000)
        read = reader._reader.read_next
        started = time.monotonic()
        for _ in range(MESSAGES):
            read(30_000).data()
        seconds = time.monotonic() - started
        reader.close()
    return MESSAGES / seconds


class _Reads:
    def __init__(self, spark: SparkSession, side: OurSide) -> None:
        self.spark = spark
        self.side = side

    def rate(self, topic: str, count: int, columns: str) -> float:
        """Return rows per second of one read to nowhere, over all cores however few the topic's partitions are."""
        started = time.monotonic()
        self.side.batch(self.spark, topic, columns, SPLITS).write.format("noop").mode("overwrite").save()
        return count / (time.monotonic() - started)


def _beside_a_bare_reader(one: _Reads, topic: str) -> list[Figure]:
    """Read in turn, so that a noisy moment of the machine meets all of them; the middle of three counts."""
    rates: dict[str, list[float]] = {"bare": [], "all": [], "pruned": []}
    for _ in range(ROUNDS):
        rates["bare"].append(_bare(one.side.settings, topic))
        rates["pruned"].append(one.rate(topic, MESSAGES, "pruned"))
        rates["all"].append(one.rate(topic, MESSAGES, "all"))
        print("  " + ", ".join(f"{name} {found[-1]:,.0f}/s" for name, found in rates.items()), flush=True)
    middle = {name: sorted(found)[len(found) // 2] for name, found in rates.items()}
    beside = ("a bare reader, one process", middle["bare"])
    return [
        Figure("source.pruned", middle["pruned"], "1/s", *beside),
        Figure("source.all", middle["all"], "1/s", *beside),
    ]


def _growth(one: _Reads) -> list[Figure]:
    """Return the cost of a row as partitions and backlog grow. A read costs a fixed time as well: planning, tasks.

    The topics are read in turn, so that a noisy moment meets all of them; the middle one of each counts.
    """
    topics = {size: one.side.fill(*size) for size in GROWTH}
    found: dict[tuple[int, int], list[float]] = {size: [] for size in GROWTH}
    for _ in range(GROWTH_ROUNDS):
        for size, topic in topics.items():
            found[size].append(1e6 / one.rate(topic, size[1], "pruned"))
        print("  " + ", ".join(f"{p} × {n:,}: {each[-1]:.2f} µs" for (p, n), each in found.items()), flush=True)
    with PulsarAdmin(one.side.settings) as admin:
        for topic in topics.values():
            admin.request("DELETE", f"/{rest_path(topic)}/partitions?force=true")
    micros = {size: sorted(each)[len(each) // 2] for size, each in found.items()}
    partitions, count = GROWTH[1]
    beside = (f"{partitions} partition, {count:,} messages", micros[partitions, count])
    return [Figure(f"source.cost.p{p}.n{n}", value, "µs", *beside) for (p, n), value in micros.items()]


def _pulsar_perf(stack: LocalStack, topic: str) -> float:
    """Return the rate at which Pulsar's own tool consumes the topic from its start."""
    with bench_folder() as folder:
        command = [
            str(stack.homes["pulsar"] / "bin" / "pulsar-perf"), "consume", topic,
            "--service-url", stack.pulsar_url,
            "--subscription-position", "Earliest", "--num-messages", str(MESSAGES), "--receiver-queue-size", "10000",
        ]  # fmt: skip
        env = os.environ | {
            "PULSAR_MEM": "-Xms256m -Xmx512m -XX:MaxDirectMemorySize=512m",
            "PULSAR_LOG_DIR": str(folder),
            "JAVA_HOME": str(_java_home()),
        }
        done = subprocess.run(command, capture_output=True, text=True, timeout=180, env=env, check=False)
    found = re.findall(r"Aggregated throughput stats --- (\d+) records received --- ([\d.,]+) msg/s", done.stdout)
    if not found or int(found[-1][0]) < MESSAGES:
        raise RuntimeError(f"pulsar-perf printed no rate:\n{(done.stdout + done.stderr)[-1500:]}")
    return float(found[-1][1].replace(",", ""))


def _java_home() -> Path:
    java, _ = find_java()
    if java is None:
        raise RuntimeError("no Java 17 or 21 found")
    return java.home
