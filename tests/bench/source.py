"""Rows per second of the Spark source, beside ``pulsar-perf consume`` of the same topic in the same run.

Both read the same stored messages from the start, so neither waits for a producer. Spark's own start-up and the
first batch (which makes the Python workers) are left out; planning, tasks and the hand-over to the JVM are in.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from pathlib import Path

from bridge.contract import P_INGEST, P_TOPIC, encode_ingest
from bridge.local.preflight import find_java
from bridge.local.stack import LocalStack
from bridge.pulsar_admin import PulsarAdmin
from bridge.pulsar_client import PulsarClient
from bridge.settings import LocalSettings, PulsarSettings
from tests.bench.results import Figure
from tests.support.folders import own_folder
from tests.support.spark import build_session

__all__ = ["measure"]

MESSAGES = 300_000
PARTITIONS = 2
PAYLOAD = b'{"id":"device-000001","ts":"2026-01-01T00:00:00Z","glucose":112.0}' + b" " * 62
PROPERTIES = {
    P_TOPIC: "wearables/device-000001/glucose",
    P_INGEST: encode_ingest(link="pulsebridge", protocol="5", rule="bench", device="device-000001"),
}


def measure() -> tuple[list[Figure], list[str]]:
    """Return ``source.rate`` (all columns) and ``source.rate.value`` (payload alone)."""
    with LocalStack(LocalSettings(quick_start=False)) as stack:
        settings = PulsarSettings(service_url=stack.pulsar_url, admin_url=stack.admin_url)
        topic = settings.readings_topic("bench-source")
        _fill(settings, topic)
        peer = _pulsar_perf(stack, topic)
        every, value = _spark(stack, topic)
    beside = "pulsar-perf consume"
    return [
        Figure("source.rate", every, "1/s", beside, peer),
        Figure("source.rate.value", value, "1/s", beside, peer),
    ], []


def _fill(settings: PulsarSettings, topic: str) -> None:
    with PulsarAdmin(settings) as admin:
        admin.provision_namespaces()
        admin.create_partitioned(topic, PARTITIONS)
    with PulsarClient(settings) as client:
        producers = [
            client.producer(p, max_pending=MESSAGES, max_delay_ms=5) for p in client.partitions(topic)
        ]
        for i in range(MESSAGES):
            producers[i % PARTITIONS].send_async(
                PAYLOAD, None, properties=PROPERTIES, partition_key=f"d{i % 100}"
            )
            if i % 20_000 == 19_999:
                for p in producers:
                    p.flush()
        for p in producers:
            p.flush()


def _pulsar_perf(stack: LocalStack, topic: str) -> float:
    """Return the rate at which Pulsar's own tool consumes the topic from its start."""
    with own_folder("bench") as folder:
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


def _spark(stack: LocalStack, topic: str) -> tuple[float, float]:
    with own_folder("bench") as folder:
        spark = build_session(folder)
        try:
            frame = (
                spark.read.format("pulsebridge")
                .option("service.url", stack.pulsar_url)
                .option("admin.url", stack.admin_url)
                .option("topic", topic)
            )
            frame.load().limit(1).collect()
            every = _rate(frame.load())
            value = _rate(frame.schema("value binary").load())
        finally:
            spark.stop()
    return every, value


def _rate(frame) -> float:  # type: ignore[no-untyped-def]
    started = time.monotonic()
    frame.write.format("noop").mode("overwrite").save()
    return MESSAGES / (time.monotonic() - started)
