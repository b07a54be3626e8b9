from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from bridge.contract import C_DEVICE, C_ID, P_DEVICE, Receipt
from pulsebridge.audit.journal import ACKNOWLEDGED, COMMAND, PUBLISHED, Journal, read_journals
from pulsebridge.audit.pulsar import dump, read_dump, row_of
from pulsebridge.audit.records import Emitted, Position, ReceiptRow, Stored
from pulsebridge.audit.tables import LogTail, commits, read_table

TOPIC = "persistent://public/pulsebridge/wearables"


def test_a_journal_gives_back_what_was_written_less_a_line_cut_short(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "cgm-001")
    journal.write(PUBLISHED, 5, id="a", metric="glucose", seq=0, ts="2010-03-24T09:51:00", value=112.0)
    journal.write(PUBLISHED, 6, id="b", metric="glucose", seq=1, ts="2010-03-24T09:56:00", value=None, fault="no_value")
    journal.write(ACKNOWLEDGED, 7, id="a")
    journal.write(COMMAND, 8, id="c", n=1, dup=False)
    journal.close()
    with (tmp_path / "cgm-001.jsonl").open("a") as file:
        file.write('{"e":"acknowl')
    published, acks, received = read_journals(tmp_path)
    assert [(p.id, p.metric, p.value, p.fault) for p in published] == [
        ("a", "glucose", 112.0, ""),
        ("b", "glucose", None, "no_value"),
    ]
    assert [(a.id, a.device, a.us) for a in acks] == [("a", "cgm-001", 7)]
    assert [(r.id, r.n) for r in received] == [("c", 1)]


def test_a_dump_of_pulsar_gives_back_the_rows_of_its_messages(tmp_path: Path) -> None:
    position = Position(TOPIC, 1, 3, 4, 0)
    receipt = Receipt("c", "cgm-001", "devices/cgm-001/commands", "delivered", confirmed_at_us=9).encode()
    command = {C_ID: "c", C_DEVICE: "cgm-001"}
    rows = [
        row_of(Stored, position, "key", {P_DEVICE: "cgm-001"}, b'{"id":"a"}', 1_000_000),
        row_of(Stored, position, "cgm-001", {}, b"\xff not json", 1),
        row_of(Emitted, position, "key", command, b'{"reading_id":"a","rule":"low"}', 2),
        row_of(ReceiptRow, position, "key", {}, receipt, 3),
    ]
    assert rows[0] == Stored("a", "cgm-001", position, 1_000_000)
    assert rows[1].id.startswith("sha256:")
    assert rows[1].device == "cgm-001"
    assert rows[2:] == [
        Emitted("c", "cgm-001", "a", "low", position, 2),
        ReceiptRow("c", "cgm-001", "delivered", 9),
    ]
    dump(rows, tmp_path / "pulsar.jsonl.gz")
    assert list(read_dump(tmp_path / "pulsar.jsonl.gz")) == rows


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
    rows = sorted(read_table(table), key=lambda b: b.position)
    assert [(b.id, b.position) for b in rows] == [(f"r{e}", Position(TOPIC, 1, 3, e, 0)) for e in (1, 2, 3)]
    assert [c.us for c in commits(table)] == [rows[0].us, rows[2].us]
    assert rows[0].us == rows[1].us


def typed(table: str, *entries: int) -> pa.Table:
    at = {"topic": f"{TOPIC}-partition-1", "partition": 1, "ledger": 3, "index": -1, "element": 0}
    return pa.table({
        "table": [table for _ in entries],
        "_id": [f"r{e}" for e in entries],
        "value": [float(e) for e in entries],
        "_position": [at | {"entry": e} for e in entries],
    })  # fmt: skip


def test_rows_are_known_by_their_id_and_the_position_of_their_message(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path / "t"), typed("measurements", 1, 2))
    write_deltalake(str(tmp_path / "t"), typed("another", 3), mode="append")
    rows = sorted(read_table(tmp_path / "t"), key=lambda b: b.position)
    assert [(r.id, r.position, r.value) for r in rows] == [
        (f"r{e}", Position(TOPIC, 1, 3, e, 0), float(e)) for e in (1, 2)
    ]


def test_a_row_that_compaction_moved_keeps_its_first_commit(tmp_path: Path) -> None:
    table = tmp_path / "bronze"
    for entry in range(3):
        write_deltalake(str(table), bronze(entry), mode="append")
    before = read_table(table)
    DeltaTable(str(table)).optimize.compact()
    after = read_table(table)
    assert sorted(after) == sorted(before)


def test_a_tail_counts_each_row_once_as_the_table_grows(tmp_path: Path) -> None:
    tail = LogTail(tmp_path / "bronze")
    assert tail.advance() == 0
    write_deltalake(str(tail.table), bronze(1, 2))
    assert tail.advance() == 2
    write_deltalake(str(tail.table), bronze(3), mode="append")
    assert tail.advance() == tail.advance() == 3


def test_a_table_that_is_not_there_has_no_rows(tmp_path: Path) -> None:
    assert read_table(tmp_path / "none") == ()
