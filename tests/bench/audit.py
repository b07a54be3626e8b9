"""The live audit of a running deployment with one million messages: it must be clean, then find thirty manipulations.

Ingest, push and the driver are those of the integration test, each killed once. Nearly all messages are written directly
into a topic of their own in Pulsar, and their rows into the deployment's tables by a second Spark session. Each audit is
a process of its own, ``pulsebridge audit``; an audit of the messages before them shows what the start of one costs.
Beside it Pulsar's own client reads the messages, with one property of each.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timezone
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

import pulsar
import pyarrow as pa
import yaml
from pyarrow import parquet

from bridge.contract import P_INGEST, P_TOPIC, encode_ingest, partition_name
from bridge.pulsar.admin import PulsarAdmin
from bridge.pulsar.client import PulsarClient
from pulsebridge.audit.live.findings import when
from pulsebridge.audit.live.log import window
from tests.bench.processes import bench_folder, pulsebridge, with_logs_of
from tests.bench.results import Figure
from tests.support.audited import CHANGES, FOLLOWING, World, deployment
from tests.support.memory import peak_memory
from tests.support.reading_back import quiet
from tests.support.spark import running_session
from tests.support.stack import new_stack, provisioned

__all__ = ["measure"]

MESSAGES: Final = int(os.environ.get("BENCH_AUDIT", "1_000_000"))
DEVICES: Final = 1000
PARTITIONS: Final = 4
TIMES: Final = 3
"""Of each measurement the least counts: other work on the machine only adds to it."""
_CHUNK: Final = 100_000


def measure() -> tuple[list[Figure], list[str]]:
    """Return the times in ms, processor time for each message and memory of a clean audit and of one with findings."""
    stack = new_stack()
    with (
        bench_folder() as folder,
        stack,
        with_logs_of(stack, folder),
        running_session() as spark,
        deployment(stack, provisioned(stack), spark, folder) as world,
    ):
        before_us = time.time_ns() // 1000
        _fill(world)
        _store(world, folder)
        config = folder / "audit.yaml"
        settings = world.settings.model_dump(mode="json", exclude_defaults=True)
        settings["streaming"]["topics"] = ["fleet", "bulk"]
        config.write_text(yaml.safe_dump(settings), encoding="utf-8")
        audits = [_audit(world, config) for _ in range(TIMES)]
        for clean in audits:
            print("  clean:", {k: clean[k] for k in ("s", "cpu", "bytes", "read", "copies")}, flush=True)
            assert clean["clean"], clean["findings"]
            assert clean["read"]["Pulsar"] > MESSAGES
        clean = min(audits, key=itemgetter("cpu"))
        client, entries = min(_cpu_of_client(world) for _ in range(TIMES)), _entries(world)
        start = min((_audit(world, config, before_us) for _ in range(TIMES)), key=itemgetter("cpu"))
        for change in CHANGES:
            change.do(world)
        found = _audit(world, config)
    seen = {(f["hop"], f["kind"], f["device"]) for f in found["findings"]}
    wanted = {change[:3] for change in CHANGES}
    assert len(wanted) == 30
    assert wanted <= seen <= wanted | FOLLOWING, (wanted - seen, seen - wanted)
    return [
        Figure("audit.clean", clean["s"] * 1000, "ms", "two minutes", 120_000),
        Figure("audit.seconds", found["s"] * 1000, "ms", "two minutes, 30 manipulations found", 120_000),
        Figure("audit.start", start["cpu"] * 1000, "ms"),
        Figure(
            "audit.cpu", (clean["cpu"] - start["cpu"]) / MESSAGES * 1e6, "µs", "5 µs a message, without the start", 5
        ),
        Figure("audit.client", client / MESSAGES * 1e6, "µs"),
        Figure("audit.batch", MESSAGES / entries, "messages"),
        Figure("audit.memory", found["bytes"], "bytes"),
    ], []


def _cpu_of_client(world: World) -> float:
    """Return the processor seconds in which Pulsar's client reads the messages, without the tables."""
    begun = time.process_time()
    with PulsarClient(world.settings.pulsar) as client:
        for name in client.partitions(world.settings.pulsar.readings_topic("bulk")):
            for message in window(client, name, world.since_us, 2**62):
                assert message.data()
                assert message.properties()
    return time.process_time() - begun


def _entries(world: World) -> int:
    """Return in how many entries the messages are."""
    with PulsarAdmin(world.settings.pulsar, timeout_s=30) as admin:
        names = (partition_name(world.settings.pulsar.readings_topic("bulk"), n) for n in range(PARTITIONS))
        return sum(int(admin.internal_stats(name)["entriesAddedCounter"]) for name in names)


def _audit(world: World, config: Path, until_us: int = 0) -> dict[str, Any]:
    """Run the command; return its report with its seconds, processor seconds and peak memory. Until now by default."""
    words = ["audit", "-c", str(config), "--since", when(world.since_us), "--settle", "0", "--json"]
    words += ["--until", when(until_us)] if until_us else []
    began, peak, done = time.monotonic(), 0, 0
    with tempfile.TemporaryFile() as out:
        child = subprocess.Popen(pulsebridge(*words), stdout=out)
        while not done:  # its ``ru_maxrss`` would be at least the memory of this process, from before its start
            with suppress(AssertionError):  # it ends
                peak = max(peak, peak_memory(child.pid))
            time.sleep(0.02)
            done, _, used = os.wait4(child.pid, os.WNOHANG)
        seconds = time.monotonic() - began
        out.seek(0)
        report: dict[str, Any] = json.loads(out.read())
    return report | {"s": seconds, "cpu": used.ru_utime + used.ru_stime, "bytes": peak}


def _fill(world: World) -> None:
    """Write the messages into Pulsar."""
    settings, root = world.settings.pulsar, world.settings.mqtt.client_id
    with PulsarAdmin(settings, timeout_s=30) as admin:
        admin.create_partitioned(settings.readings_topic("bulk"), PARTITIONS)
    client = pulsar.Client(settings.service_url, logger=quiet())
    producers = [
        client.create_producer(one, batching_enabled=True, block_if_queue_full=True, max_pending_messages=50_000)
        for one in client.get_topic_partitions(settings.readings_topic("bulk"))
    ]
    for n in range(MESSAGES):
        number, of = divmod(n, DEVICES)
        properties = {
            P_INGEST: encode_ingest(link="bulk", protocol="5", rule="fleet", device=f"m{of}"),
            P_TOPIC: f"{root}/m{of}/temp",
        }
        producers[of % PARTITIONS].send_async(
            b'{"n":%d,"v":20.5}' % (number + 1), None, partition_key=f"m{of}", properties=properties,
            event_timestamp=time.time_ns() // 1_000_000,
        )  # fmt: skip
    for producer in producers:
        producer.flush()
    client.close()


def _rows(world: World) -> Iterator[tuple[Any, ...]]:
    with PulsarClient(world.settings.pulsar) as client:
        for number, name in enumerate(client.partitions(world.settings.pulsar.readings_topic("bulk"))):
            for message in window(client, name, world.since_us, 2**62):
                at, payload = message.message_id(), message.data()
                arrival = datetime.fromtimestamp(message.event_timestamp() / 1000, timezone.utc)
                yield (
                    name, number, at.ledger_id(), at.entry_id(), max(0, at.batch_index()), message.partition_key(),
                    arrival, payload, json.loads(payload)["n"],
                )  # fmt: skip


def _store(world: World, folder: Path) -> None:
    """Write the rows of these messages into the tables, as the driver would."""
    names = ("__topic", "partition", "ledger_id", "entry_id", "batch_index", "device", "arrival_time", "payload", "n")
    (folder / "bulk").mkdir()
    rows = _rows(world)
    for part in range(MESSAGES // _CHUNK + 1):
        columns = dict(zip(names, zip(*islice(rows, _CHUNK), strict=True), strict=False))
        if columns:
            parquet.write_table(pa.table({n: list(c) for n, c in columns.items()}), folder / f"bulk/{part}.parquet")
    found = world.spark.read.parquet(str(folder / "bulk"))
    same = {name: name for name in names} | {"event_time": "arrival_time", "stored_at": "current_timestamp()"}
    for table, metric, value in (
        ("bronze", "", ""),
        ("climate", "", ""),
        ("readings", "n", "n"),
        ("readings", "v", "20.5"),
    ):
        position = f"struct(__topic, partition, ledger_id, entry_id, batch_index, {int(metric == 'v')})"
        has = same | {"v": "20.5", "metric": f"'{metric}'", "value": value, "_position": position}
        schema = world.frame(table, "true").schema
        kinds = {field.name: field.dataType.simpleString() for field in schema}
        rows_of = found.selectExpr(*(f"CAST({has.get(n) or 'NULL'} AS {k}) AS `{n}`" for n, k in kinds.items()))
        rows_of.write.format("delta").mode("append").save(str(world.root / table))
