from __future__ import annotations

import base64
import json
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from bridge.contract import C_DEVICE, C_ID, P_DEVICE, Receipt
from bridge.errors import ConfigError
from pulsebridge.audit.delta_record import read_tables
from pulsebridge.audit.journals import read_journals
from pulsebridge.audit.pulsar_record import as_record, dump, read_dump
from pulsebridge.audit.records import Place
from pulsebridge.demo.delta_log import LogTail, commits
from pulsebridge.demo.journal import ACKNOWLEDGED, COMMAND, PUBLISHED, Journal
from pulsebridge.demo.run_folder import RunFolder

TOPIC = "persistent://public/pulsebridge/wearables"


def test_a_journal_gives_back_what_was_written_less_a_line_cut_short(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "cgm-001")
    journal.write(PUBLISHED, 5, id="a", seq=0, ts="2010-03-24T09:51:00", value=112.0)
    journal.write(PUBLISHED, 6, id="b", seq=1, ts="2010-03-24T09:56:00", value=None, fault="no_value")
    journal.write(ACKNOWLEDGED, 7, id="a")
    journal.write(COMMAND, 8, id="c", n=1, dup=False)
    journal.close()
    with (tmp_path / "cgm-001.jsonl").open("a") as file:
        file.write('{"e":"acknowl')
    read = read_journals(tmp_path, [("cgm", "glucose")])
    assert [(p.id, p.metric, p.value, p.fault) for p in read.published] == [
        ("a", "glucose", 112.0, ""),
        ("b", "glucose", None, "no_value"),
    ]
    assert [(a.id, a.device, a.us) for a in read.acks] == [("a", "cgm-001", 7)]
    assert [(r.id, r.n) for r in read.received] == [("c", 1)]


def line(seam: str, payload: bytes, **properties: str) -> dict:
    return {
        "seam": seam, "topic": TOPIC, "partition": 1, "ledger": 3, "entry": 4, "index": 0, "key": "cgm-001",
        "publish_ms": 1000, "event_ms": 999, "properties": properties, "payload": base64.b64encode(payload).decode(),
    }  # fmt: skip


def test_a_dump_of_pulsar_gives_back_the_same_record(tmp_path: Path) -> None:
    lines = [
        line("reading", b'{"id":"a"}', **{P_DEVICE: "cgm-001"}),
        line("reading", b"\xff not json"),
        line("command", b'{"reading_id":"a","rule":"low"}', **{C_ID: "c", C_DEVICE: "cgm-001"}),
        line(
            "receipt",
            Receipt("c", "cgm-001", "devices/cgm-001/commands", "delivered", confirmed_at_us=9).encode(),
        ),
    ]
    assert dump(lines, tmp_path / "pulsar.jsonl.gz") == 4
    record = as_record(read_dump(tmp_path / "pulsar.jsonl.gz"))
    assert record == as_record(lines)
    assert record.stored[0].id == "a"
    assert record.stored[0].arrival_us == 999_000
    assert record.stored[1].id.startswith("sha256:")
    assert record.stored[1].device == "cgm-001"
    assert (record.emitted[0].id, record.emitted[0].reading_id) == ("c", "a")
    assert (record.receipts[0].id, record.receipts[0].confirmed_us) == ("c", 9)


def bronze(*entries: int) -> pa.Table:
    return pa.table({
        "payload": [json.dumps({"id": f"r{e}"}).encode() for e in entries],
        "__topic": [f"{TOPIC}-partition-1" for _ in entries],
        "partition": pa.array([1 for _ in entries], pa.int32()),
        "ledger_id": [3 for _ in entries],
        "entry_id": list(entries),
        "batch_index": pa.array([0 for _ in entries], pa.int32()),
    })  # fmt: skip


def test_rows_of_delta_have_the_time_of_the_commit_that_brought_them(tmp_path: Path) -> None:
    table = tmp_path / "bronze"
    write_deltalake(str(table), bronze(1, 2))
    write_deltalake(str(table), bronze(3), mode="append")
    rows = sorted(read_tables(table, tmp_path / "none", tmp_path / "none").bronze, key=lambda b: b.place)
    assert [(b.id, b.place) for b in rows] == [(f"r{e}", Place(TOPIC, 1, 3, e, 0)) for e in (1, 2, 3)]
    assert [c.us for c in commits(table)] == [rows[0].commit_us, rows[2].commit_us]
    assert rows[0].commit_us == rows[1].commit_us


def test_a_row_that_compaction_moved_keeps_its_first_commit(tmp_path: Path) -> None:
    from deltalake import DeltaTable

    table = tmp_path / "bronze"
    for entry in range(3):
        write_deltalake(str(table), bronze(entry), mode="append")
    before = read_tables(table, tmp_path / "none", tmp_path / "none").bronze
    DeltaTable(str(table)).optimize.compact()
    after = read_tables(table, tmp_path / "none", tmp_path / "none").bronze
    assert sorted(after) == sorted(before)


def test_a_tail_counts_each_row_once_as_the_table_grows(tmp_path: Path) -> None:
    tail = LogTail(tmp_path / "bronze")
    assert tail.advance() == 0
    write_deltalake(str(tail.table), bronze(1, 2))
    assert tail.advance() == 2
    first = tail.first_us
    write_deltalake(str(tail.table), bronze(3), mode="append")
    assert tail.advance() == tail.advance() == 3
    assert tail.first_us == first > 0


def test_a_folder_that_is_not_of_a_run_is_refused_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no manifest"):
        RunFolder(tmp_path).manifest()
    RunFolder(tmp_path).manifest_file.write_text('{"v": 99}')
    with pytest.raises(ConfigError, match="version 99"):
        RunFolder(tmp_path).manifest()
