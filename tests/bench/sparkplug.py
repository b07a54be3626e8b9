"""Metrics with aliases, from a Pulsar topic to the table ``sparkplug_metrics``, on Spark with two cores.

Births come first. Then each message has twenty metrics by alias alone, of one of a hundred edge nodes. A first run warms
Spark; the second one, from its start to its last commit, counts. The reference is the goal of the project. On a machine
that others load, the processor time of driver and workers says more: two cores have 200 µs for each metric at the goal.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from typing import Final

import psutil

from bridge.contract import P_INGEST, P_TOPIC, encode_ingest
from bridge.pulsar.admin import PulsarAdmin
from bridge.pulsar.wire.batches import head_of
from bridge.settings import LocalSettings, PulsarSettings, Settings
from pulsebridge.local.stack import LocalStack
from sparkplug.rows import node_of
from sparkplug.tables import METRICS, declare
from streaming import pipelines as dp
from streaming.job import Job
from tests.bench.processes import bench_folder, cpu_seconds, with_logs_of
from tests.bench.results import Figure
from tests.bench.source_peers import Message, OurSide
from tests.support.spark import build_session, stop_session
from tests.support.sparkplug_node import EdgeNode, Sent

__all__ = ["measure"]

NODES: Final = 100
EACH: Final = 20
"""Metrics of a message."""
WARM: Final = 5_000
TIMED: Final = 30_000
"""Messages of the two runs."""
GOAL: Final = 10_000
_BATCH: Final = 500


def measure() -> tuple[list[Figure], list[str]]:
    """Return ``sparkplug.metrics``, the metrics in a second, and ``sparkplug.cpu``, the processor time of each."""
    with (
        bench_folder() as folder,
        LocalStack(LocalSettings(quick_start=False, start_timeout="5m")) as stack,
        with_logs_of(stack, folder),
    ):
        pulsar = PulsarSettings(service_url=stack.pulsar_url, admin_url=stack.admin_url)
        with PulsarAdmin(pulsar) as admin:
            admin.provision_namespaces()
        nodes = [
            EdgeNode(f"G/N{n}", [(f"area 1/line/metric {m}", "Double", "1.5") for m in range(EACH)])
            for n in range(NODES)
        ]
        births = [node.birth() for node in nodes]
        topics = [
            OurSide(pulsar).store(1, _entries([*births, *_data(nodes, WARM)])),
            OurSide(pulsar).store(1, _entries(_data(nodes, TIMED))),
        ]
        spark = build_session(folder, profile="throughput", lasting=True)
        try:
            rows = []
            for count in (1, 2):
                streaming = {
                    "root": str(folder / "lakehouse"), "topics": [topic.rpartition("/")[2] for topic in topics[:count]],
                    "built_in": [], "quality": {"interval": "0s"}, "subscription": f"bench-{count}",
                    "trigger": {"max_rows": 5_000},
                }  # fmt: skip
                settings = Settings.model_validate({"pulsar": pulsar, "streaming": streaming})
                with dp.declaring(dp.Pipeline()) as pipeline:
                    declare(None)
                job = Job(spark, settings, pipeline, [METRICS])
                job.prepare()
                driver = psutil.Process(spark.sparkContext._gateway.proc.pid)
                began, cpu = time.monotonic(), cpu_seconds(driver)
                job.run(threading.Event(), available_now=True)
                seconds, cpu = time.monotonic() - began, cpu_seconds(driver) - cpu
                rows.append(
                    spark.read.format("delta").load(f"{folder}/lakehouse/{METRICS}").where("mark IS NULL").count()
                )
        finally:
            stop_session(spark)
    metrics = rows[1] - rows[0]
    if metrics != TIMED * EACH:
        raise AssertionError(f"{metrics} metrics in order, {TIMED * EACH} were sent")
    return [
        Figure("sparkplug.metrics", metrics / seconds, "1/s", "goal", GOAL),
        Figure("sparkplug.cpu", cpu / metrics * 1e6, "µs", "goal", 2e6 / GOAL),
    ], []


def _data(nodes: list[EdgeNode], count: int) -> Iterator[Sent]:
    for n in range(count):
        node = nodes[n % len(nodes)]
        yield node.data(*[f"{n}.{m}" for m in range(EACH)])


def _entries(sent: Iterable[Sent]) -> Iterator[list[Message]]:
    entry = []
    for one in sent:
        node = node_of(one.topic)
        about = encode_ingest(link="bench", protocol="5", rule="sparkplug", device=node)
        entry.append(Message(one.payload, head_of(node or "", {P_TOPIC: one.topic, P_INGEST: about}), one.at_ms))
        if len(entry) == _BATCH:
            yield entry
            entry = []
    if entry:
        yield entry
