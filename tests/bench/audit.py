"""The live audit of one million messages: time, processor time per message and memory, with 30 manipulations to find.

The messages are in a real Pulsar; the tables are written by deltalake with the positions that Pulsar gave. The audit is a
process of its own, so that its memory is its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pulsar
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from bridge.contract import P_INGEST, P_TOPIC, encode_ingest, partition_name
from bridge.pulsar.admin import PulsarAdmin
from bridge.pulsar.client import PulsarClient
from bridge.pulsar.provisioning import provision_commands
from bridge.settings import LocalSettings, PulsarSettings
from pulsebridge.audit.live.log import window
from pulsebridge.local.stack import LocalStack
from tests.bench.processes import bench_folder, with_logs_of
from tests.bench.results import Figure
from tests.support.reading_back import quiet

__all__ = ["measure"]

MESSAGES: Final = 1_000_000
DEVICES: Final = 1000
PARTITIONS: Final = 4
EACH: Final = 10
"""Manipulations of each kind: rows deleted from bronze, doubled in bronze, deleted from the typed table."""
_CHUNK: Final = 100_000
_CHILD: Final = """
import json, resource, sys, time
from bridge.settings import Settings
from pulsebridge.audit.live.run import audit
from pulsebridge.audit.live.tables import DeltaTables
settings = Settings.model_validate_json(sys.argv[1])
began = time.monotonic()
report = audit(settings, DeltaTables(settings.streaming.root), int(sys.argv[2]), time.time_ns() // 1000)
used = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps({"s": time.monotonic() - began, "cpu": used.ru_utime + used.ru_stime, "kib": used.ru_maxrss,
                  "found": sum(report.counts.values()), "read": report.read}))
"""


def measure() -> tuple[list[Figure], list[str]]:
    """Return ``audit.seconds`` in ms, ``audit.cpu`` for each message and ``audit.memory``."""
    with (
        bench_folder() as folder,
        LocalStack(LocalSettings(quick_start=False, start_timeout="5m")) as stack,
        with_logs_of(stack, folder),
    ):
        settings = PulsarSettings(service_url=stack.pulsar_url, admin_url=stack.admin_url)
        with PulsarAdmin(settings, timeout_s=30) as admin:
            admin.provision_namespaces()
            admin.create_partitioned(settings.readings_topic("fleet"), PARTITIONS)
            provision_commands(admin)
        since_us = time.time_ns() // 1000 - 1_000_000
        _fill(settings)
        root = folder / "lakehouse"
        _tables(settings, root, since_us)
        _manipulate(root)
        found = _audit(settings, root, since_us)
    assert found["read"]["Pulsar"] == MESSAGES
    assert found["found"] == 3 * EACH, found
    return [
        Figure("audit.seconds", found["s"] * 1000, "ms", "two minutes", 120_000),
        Figure("audit.cpu", found["cpu"] / MESSAGES * 1e6, "µs", "5 µs a message", 5),
        Figure("audit.memory", found["kib"] * 1024, "bytes"),
    ], []


def _fill(settings: PulsarSettings) -> None:
    client = pulsar.Client(settings.service_url, logger=quiet())
    topic = settings.readings_topic("fleet")
    producers = [
        client.create_producer(
            partition_name(topic, n), batching_enabled=True, block_if_queue_full=True, max_pending_messages=50_000
        )
        for n in range(PARTITIONS)
    ]
    for n in range(MESSAGES):
        device = n % DEVICES
        properties = {
            P_INGEST: encode_ingest(link="bench", protocol="5", rule="fleet", device=f"d{device}"),
            P_TOPIC: f"fleet/d{device}/temp",
        }
        producers[device % PARTITIONS].send_async(
            b'{"n":%d,"v":20.5}' % n, None, partition_key=f"d{device}", properties=properties, event_timestamp=1 + n
        )
    for producer in producers:
        producer.flush()
    client.close()


def _rows(settings: PulsarSettings, since_us: int) -> Iterator[tuple[Any, ...]]:
    with PulsarClient(settings) as client:
        for number in range(PARTITIONS):
            name = partition_name(settings.readings_topic("fleet"), number)
            for message in window(client, name, since_us, 2**62):
                at = message.message_id()
                yield (
                    name, number, at.ledger_id(), at.entry_id(), max(0, at.batch_index()), message.partition_key(),
                    message.event_timestamp() * 1000, message.data(),
                )  # fmt: skip


def _tables(settings: PulsarSettings, root: Path, since_us: int) -> None:
    rows: list[tuple[Any, ...]] = []
    for row in _rows(settings, since_us):
        rows.append(row)
        if len(rows) == _CHUNK:
            _write(root, rows)
            rows = []
    if rows:
        _write(root, rows)


def _write(root: Path, rows: list[tuple[Any, ...]]) -> None:
    topic, partition, ledger, entry, index, device, arrival, payload = zip(*rows, strict=True)
    at = [pa.array(partition, pa.int32()), pa.array(ledger), pa.array(entry), pa.array(index, pa.int32())]
    micros = pa.array(arrival, pa.timestamp("us", "UTC"))
    names = ["__topic", "partition", "ledger_id", "entry_id", "batch_index"]
    bronze = dict(zip(names, [pa.array(topic), *at], strict=True))
    more = {"device": pa.array(device), "arrival_time": micros}
    write_deltalake(str(root / "bronze"), pa.table({**bronze, **more, "payload": pa.array(payload)}), mode="append")
    element = pa.array([0] * len(rows), pa.int32())
    fields = ["topic", "partition", "ledger", "entry", "index", "element"]
    position = pa.StructArray.from_arrays([pa.array(topic), *at, element], fields)
    write_deltalake(str(root / "climate"), pa.table({**more, "_position": position}), mode="append")


def _manipulate(root: Path) -> None:
    gone = [f"CAST(payload AS STRING) LIKE '{{\"n\":{1000 * n + 7},%'" for n in range(EACH)]
    bronze, typed = DeltaTable(str(root / "bronze")), DeltaTable(str(root / "climate"))
    bronze.delete(" OR ".join(gone))
    reader = pa.RecordBatchReader.from_stream(bronze.scan())
    twice = pa.Table.from_batches([next(iter(reader)).slice(0, EACH)])
    write_deltalake(str(root / "bronze"), twice, mode="append")
    first = pa.RecordBatchReader.from_stream(typed.scan(columns=["arrival_time"]))
    times = next(iter(first)).column(0).slice(0, EACH).cast(pa.int64()).to_pylist()
    typed.delete(" OR ".join(f"arrival_time = to_timestamp_micros({one})" for one in times))


def _audit(settings: PulsarSettings, root: Path, since_us: int) -> dict[str, Any]:
    whole = {
        "pulsar": settings.model_dump(mode="json", exclude_defaults=True),
        "streaming": {
            "root": str(root), "built_in": ["bronze"], "topics": ["fleet"],
            "tables": [{"name": "climate", "keys": [], "decoding": {"filter": "fleet/+device/temp", "fields": "n bigint"}}],
        },
    }  # fmt: skip
    with tempfile.TemporaryFile() as errors:
        done = subprocess.run(
            [sys.executable, "-c", _CHILD, json.dumps(whole), str(since_us)],
            stdout=subprocess.PIPE, stderr=errors, check=False,
        )  # fmt: skip
        errors.seek(0)
        assert done.returncode == 0, errors.read().decode()
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
