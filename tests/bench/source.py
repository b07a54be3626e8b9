"""Rows per second of the Spark source, beside a bare reader in one process and ``pulsar-perf consume``, in one run.

All read the same stored messages from the start, so none waits for a producer. Spark's own start-up and the first
batch (which makes the Python workers) are left out; planning, tasks and the hand-over to the JVM are in.
"""

from __future__ import annotations

import os
import queue
import re
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bridge.contract import P_INGEST, P_TOPIC, encode_ingest, partition_name
from bridge.local.preflight import find_java
from bridge.local.stack import LocalStack
from bridge.pulsar_admin import PulsarAdmin, rest_path
from bridge.pulsar_client import EARLIEST, PulsarClient
from bridge.pulsar_wire.batches import head_of
from bridge.settings import LocalSettings, PulsarSettings
from tests.bench.processes import bench_folder
from tests.bench.results import Figure
from tests.bench.source_latency import latency
from tests.support.spark import build_session, stop_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["fill", "measure"]

MESSAGES = 2_000_000
GROWTH = ((1, 100_000), (1, 1_000_000), (1, 5_000_000), (4, 1_000_000), (16, 1_000_000))
"""Partitions and backlog of the topics whose cost per row is compared, in µs beside that of the second."""
SPLITS = 4
BATCH = 840
ROUNDS = 3
GROWTH_ROUNDS = 5
PAYLOAD = b'{"id":"device-000001","ts":"2026-01-01T00:00:00Z","glucose":112.0}' + b" " * 62
PRUNED = "value binary, __key string, __publishTime timestamp"


def measure() -> tuple[list[Figure], list[str]]:
    """Return ``source.all`` and ``source.pruned`` beside a bare reader, what a row costs as topics grow, the latency."""
    with (
        LocalStack(LocalSettings(quick_start=False, start_timeout_s=300)) as stack,
        bench_folder() as folder,
    ):
        settings = PulsarSettings(service_url=stack.pulsar_url, admin_url=stack.admin_url)
        with PulsarAdmin(settings) as admin:
            admin.provision_namespaces()
        topic = fill(settings, "bench-source", 1, MESSAGES)
        figures = [
            Figure("source.pulsar_perf", _pulsar_perf(stack, topic), "1/s"),
        ]
        spark = build_session(folder, {"spark.eventLog.enabled": "false"})
        try:
            one = _Reads(spark, settings)
            one.rate(topic, 100_000, None)  # makes the workers, and compiles
            figures += _beside_a_bare_reader(one, topic)
            figures += _growth(one)
            figures += latency(spark, settings, folder)
        finally:
            stop_session(spark)
    return figures, []


class _Message(NamedTuple):
    payload: bytes
    head: bytes
    event_ms: int


def fill(settings: PulsarSettings, name: str, partitions: int, count: int) -> str:
    """Store readings of a hundred devices in batches of 840. Returns the topic."""
    topic = settings.readings_topic(name)
    with PulsarAdmin(settings) as admin:
        admin.create_partitioned(topic, partitions)
    messages = [
        _Message(PAYLOAD, head_of(f"device-{n:06}", _properties(n)), 1_767_225_600_000) for n in range(100)
    ]
    batch = [messages[n % 100] for n in range(BATCH)]
    answers: queue.Queue[Any] = queue.Queue()
    with PulsarClient(settings) as client:
        producers = [client.batch_producer(partition_name(topic, n)) for n in range(partitions)]
        waiting = 0
        for number, first in enumerate(range(0, count, BATCH)):
            producers[number % partitions].send(batch[: min(BATCH, count - first)], answers.put)
            waiting += 1
            if waiting > 50:
                assert answers.get(timeout=60) is None
                waiting -= 1
        for _ in range(waiting):
            assert answers.get(timeout=60) is None
    return topic


def _properties(number: int) -> dict[str, str]:
    device = f"device-{number:06}"
    return {
        P_TOPIC: f"wearables/{device}/glucose",
        P_INGEST: encode_ingest(link="pulsebridge", protocol="5", rule="bench", device=device),
    }


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
    def __init__(self, spark: SparkSession, settings: PulsarSettings) -> None:
        self.spark = spark
        self.settings = settings

    def frame(self, topic: str, schema: str | None, **options: str) -> DataFrame:
        """Return the topic's messages, over all cores however few its partitions are."""
        reader = (
            self.spark.read.format("pulsebridge")
            .option("service.url", self.settings.service_url)
            .option("admin.url", self.settings.admin_url)
            .option("topic", topic)
            .option("minPartitions", str(SPLITS))
            .options(**options)
        )
        return (reader if schema is None else reader.schema(schema)).load()

    def rate(self, topic: str, count: int, schema: str | None) -> float:
        """Return rows per second of one read to nowhere."""
        started = time.monotonic()
        self.frame(topic, schema).write.format("noop").mode("overwrite").save()
        return count / (time.monotonic() - started)


def _beside_a_bare_reader(one: _Reads, topic: str) -> list[Figure]:
    """Read in turn, so that a noisy moment of the machine meets all of them; the middle of three counts."""
    rates: dict[str, list[float]] = {"bare": [], "all": [], "pruned": []}
    for _ in range(ROUNDS):
        rates["bare"].append(_bare(one.settings, topic))
        rates["pruned"].append(one.rate(topic, MESSAGES, PRUNED))
        rates["all"].append(one.rate(topic, MESSAGES, None))
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
    topics = {size: fill(one.settings, f"bench-{size[0]}-{size[1]}", *size) for size in GROWTH}
    found: dict[tuple[int, int], list[float]] = {size: [] for size in GROWTH}
    for _ in range(GROWTH_ROUNDS):
        for size, topic in topics.items():
            found[size].append(1e6 / one.rate(topic, size[1], PRUNED))
        print(
            "  " + ", ".join(f"{p} × {n:,}: {each[-1]:.2f} µs" for (p, n), each in found.items()), flush=True
        )
    with PulsarAdmin(one.settings) as admin:
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
    found = re.findall(
        r"Aggregated throughput stats --- (\d+) records received --- ([\d.,]+) msg/s", done.stdout
    )
    if not found or int(found[-1][0]) < MESSAGES:
        raise RuntimeError(
            f"pulsar-perf said nothing to take a rate from:\n{(done.stdout + done.stderr)[-1500:]}"
        )
    return float(found[-1][1].replace(",", ""))


def _java_home() -> Path:
    java, _ = find_java()
    if java is None:
        raise RuntimeError("no Java 17 or 21 found")
    return java.home
