"""An audit in Spark's tasks and one in this process find the same in the same rows."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from bridge.pulsar.client import PulsarClient
from bridge.settings import PulsarSettings
from pulsebridge.audit.live.findings import Finding, Kind
from pulsebridge.audit.live.joins import BRONZE, Lacking, Span, TableSide
from pulsebridge.audit.live.log import LogReader, NumberFields, batch
from pulsebridge.audit.live.on_disk import OnDisk, Store
from pulsebridge.audit.live.on_spark import OnSpark
from pulsebridge.audit.live.sequence import Sequences
from pulsebridge.audit.live.tables import Partitions
from tests.support.payloads import checksum

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

TOPIC = "persistent://public/p/fleet"
PARTITIONS = [f"{TOPIC}-partition-{n}" for n in range(2)]
POSITION = ("topic", "partition", "ledger", "entry", "index", "element")
COLUMNS = ("__topic", "partition", "ledger_id", "entry_id", "batch_index", "device", "payload")


def of_partition(number: int) -> list[tuple[int, int]]:
    """Return ledger and entry of each message."""
    return [(7 + n // 4, n % 4 + 2000 * number) for n in range(8)]


def payload(ledger: int, entry: int) -> bytes:
    return b"%d:%d" % (ledger, entry)


def write_tables(root: Path) -> None:
    """Write tables in which some rows are missing, and one is there twice."""
    at = [(n, *one) for n in range(2) for one in of_partition(n)]
    rows = [
        (TOPIC, n, ledger, entry, 0, f"d{n}", payload(ledger, entry))
        for n, ledger, entry in at
        if (n, ledger, entry) != (1, 8, 2003)
    ]
    columns = dict(zip(COLUMNS, zip(*[*rows, rows[0]], strict=True), strict=True))
    write_deltalake(str(root / BRONZE), pa.table({name: list(values) for name, values in columns.items()}))
    typed = [dict(zip(POSITION, (TOPIC, *one, 0, 0), strict=True)) for one in at[2:]]
    write_deltalake(str(root / "climate"), pa.table({"_position": typed, "device": [f"d{one[0]}" for one in at[2:]]}))


class Reader(LogReader):
    """Messages without Pulsar. The device of the second partition left out its number 5."""

    def rows(self, client: PulsarClient, partition: str, number: int, numbers: Sequences) -> Iterator[pa.RecordBatch]:
        found: list[tuple[Any, ...]] = []
        for n, (ledger, entry) in enumerate(of_partition(number)):
            # The first message is a copy of the last one.
            crc = checksum(payload(ledger, entry) if n else payload(*of_partition(number)[-1]))
            found.append((number, ledger, entry, 0, 0, 100 + n, -1, f"d{number}", crc, b"\1", ""))
        own = np.array([n + (number == 1 and n >= 5) for n in range(len(found))])
        numbers.take_all([("route", f"d{number}")], np.zeros(len(own), np.int64), own, own, own)
        yield batch(found)


def differences(store: Store, span: Span) -> list[tuple[str, Finding | Lacking]]:
    sides = [TableSide("climate", 0, keyed=True)]
    return sorted(store.compare(sides, span), key=str)


def test_both_stores_find_the_same(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # Spark's workers cannot import this module
    root, folder = tmp_path / "lakehouse", tmp_path / "rows"
    folder.mkdir()
    write_tables(root)
    reader = Reader(PulsarSettings(), NumberFields([]), frozenset(), {}, 0, 1000)
    results = []
    for store in (OnDisk(str(root), folder), OnSpark(spark, lambda name: f"delta.`{root / name}`")):
        with PulsarClient(PulsarSettings()) as client:
            log = store.read_log(reader, client, PARTITIONS)
        assert [(f.kind, f.device, f.message) for f in log.found] == [(Kind.MISSING, "d1", "number 5")]
        assert log.ranges == {0: ((7, 0), (8, 3)), 1: ((7, 2000), (8, 2003))}
        parts = Partitions(PARTITIONS, log.ranges)
        assert store.read_table(BRONZE, COLUMNS, "ledger_id >= 0", parts)
        assert store.read_table("climate", ("_position", "device", "arrival_time"), "_position.ledger >= 0", parts)
        assert not store.read_table("none", ("_position",), "true", parts)
        assert store.batches("none", ("_position",), "true") is None
        found = differences(store, Span(0, 1000, dict(enumerate(PARTITIONS))))
        contents = {one.content for _, one in found if isinstance(one, Lacking)}
        results.append((found, store.counts, store.with_rows("climate", contents)))
    on_disk, on_spark = results
    assert on_disk == on_spark
    kinds = [one.kind if isinstance(one, Finding) else "lacking" for _, one in on_disk[0]]
    # The payload of the first message in bronze is not that of Pulsar.
    assert sorted(kinds) == ["altered", "altered", "lacking", "lacking", "missing", "repeated"]
    assert on_disk[1] == {"Pulsar": 16, BRONZE: 16, "climate": 14}
    assert len(on_disk[2]) == 1
