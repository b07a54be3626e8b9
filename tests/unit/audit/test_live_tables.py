from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from pulsebridge.audit.live.buckets import COUNT, Buckets
from pulsebridge.audit.live.on_disk import OnDisk
from pulsebridge.audit.live.tables import Partitions, Ranges, rows_of
from tests.support.payloads import checksum

TOPIC = "persistent://public/p/fleet"
AT = datetime(2026, 1, 1, tzinfo=timezone.utc)
US = int(AT.timestamp() * 1e6)
NAMES = [f"{TOPIC}-partition-0", f"{TOPIC}-partition-1", "persistent://public/p/plain"]
PARTS = Partitions(NAMES, dict.fromkeys(range(3), ((0, 0), (99, 0))))


def typed(*positions: tuple[str | None, int | None, int, int, int, int]) -> pa.RecordBatch:
    names = ("topic", "partition", "ledger", "entry", "index", "element")
    at = pa.array([dict(zip(names, one, strict=True)) for one in positions])
    return pa.record_batch({"_position": at, "device": pa.array(["d"] * len(positions))})


def test_rows_of_bronze_have_position_times_and_checksum(tmp_path: Path) -> None:
    rows = pa.table(
        {
            "__topic": [f"{TOPIC}-partition-1"] * 2, "partition": pa.array([1, 1], pa.int32()), "ledger_id": [5, 5],
            "entry_id": [6, 7], "batch_index": pa.array([2, None], pa.int32()), "device": ["d", None],
            "arrival_time": [AT, None], "stored_at": [AT, AT], "payload": [b"abc", None], "other": [1, 2],
        }
    )  # fmt: skip
    write_deltalake(str(tmp_path / "bronze"), rows)
    store = OnDisk(str(tmp_path), tmp_path)
    assert store.batches("none", ("a",), "true") is None
    batches = store.batches("bronze", tuple(n for n in rows.column_names if n != "other"), "true")
    assert batches is not None
    found = [tuple(r.values()) for b in batches for r in rows_of(b, PARTS).to_pylist()]
    assert sorted(found) == [
        (1, 5, 6, 2, 0, US, US, "d", checksum(b"abc"), b"", ""),
        (1, 5, 7, 0, 0, US, -1, "", -1, b"", ""),
    ]
    read = Partitions(NAMES, {1: ((5, 7), (5, 7))})
    batches = store.batches("bronze", rows.column_names, "ledger_id BETWEEN 5 AND 5")
    assert batches is not None
    assert [row["entry"] for batch in batches for row in rows_of(batch, read).to_pylist()] == [7]


def test_a_condition_on_the_ledger_leaves_older_rows_out(tmp_path: Path) -> None:
    rows = pa.Table.from_batches([typed(*[(TOPIC, 0, n, 0, 0, 0) for n in range(5)])])
    write_deltalake(str(tmp_path / "climate"), rows)
    batches = OnDisk(str(tmp_path), tmp_path).batches("climate", ("_position", "device"), "_position.ledger >= 3")
    assert batches is not None
    assert sum(batch.num_rows for batch in batches) == 2


def test_rows_of_other_topics_and_without_a_position_are_left_out() -> None:
    found = rows_of(
        typed((TOPIC, 0, 1, 2, 3, 4), ("persistent://public/p/else", 0, 1, 2, 3, 4), (None, 0, 1, 2, 3, 4),
              ("persistent://public/p/plain", None, 1, 2, -1, 0), (TOPIC, 7, 1, 2, 3, 4)),
        PARTS,
    )  # fmt: skip
    assert [(r["part"], r["index"], r["element"]) for r in found.to_pylist()] == [(0, 3, 4), (2, 0, 0)]


@pytest.mark.parametrize(
    ("ranges", "wanted"),
    [
        ({}, []),
        ({0: ((2, 2), (2, 2))}, [(2, 2)]),
        ({0: ((1, 3), (3, 1))}, [(1, 3), (2, 1), (2, 2), (2, 3), (3, 1)]),
        ({0: ((2, 0), (2, 9)), 1: ((1, 0), (3, 9))}, [(2, 1), (2, 2), (2, 3)]),
    ],
)
def test_rows_before_and_after_what_was_read_of_their_partition_are_left_out(
    ranges: Ranges, wanted: list[tuple[int, int]]
) -> None:
    rows = typed(*[(TOPIC, 0, ledger, entry, 0, 0) for ledger in (1, 2, 3) for entry in (1, 2, 3)])
    found = rows_of(rows, Partitions(NAMES, ranges))
    assert [(r["ledger"], r["entry"]) for r in found.to_pylist()] == wanted


def test_the_checksums_of_a_part_of_a_batch_are_those_of_its_rows() -> None:
    payloads = [b"a", b"", None, b"bcd", b"e"]
    rows = pa.record_batch(
        {"_position": typed(*[(TOPIC, 0, 1, n, 0, 0) for n in range(5)]).column(0), "payload": payloads}
    )
    wanted = [-1 if one is None else checksum(one) for one in payloads]
    assert rows_of(rows.slice(1, 3), PARTS).column("crc").to_pylist() == wanted[1:4]


def test_buckets_give_back_each_row_once_and_the_same_position_in_the_same_bucket(tmp_path: Path) -> None:
    buckets = Buckets(tmp_path)
    rows = rows_of(typed(*[(TOPIC, n % 2, n % 3, n * 700, 0, 0) for n in range(500)]), PARTS)
    buckets.write("a", rows)
    buckets.write("b", rows.slice(0, 250))
    buckets.write("b", rows.slice(0, 0))
    buckets.write("b", rows.slice(250))
    buckets.close()
    read = {name: [buckets.read(name, n).to_pylist() for n in range(COUNT)] for name in "ab"}
    assert read["a"] == read["b"]
    assert sum(map(len, read["a"])) == 500
    assert buckets.rows == {"a": 500, "b": 500}
    assert buckets.read("c", 0).num_rows == 0
