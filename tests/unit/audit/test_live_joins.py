from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from pulsebridge.audit.live.buckets import SCHEMA
from pulsebridge.audit.live.findings import Finding, Hop, Kind
from pulsebridge.audit.live.joins import BRONZE, LOG, QUARANTINE, Lacking, Span, TableSide, compare_bucket

SPAN = Span(0, 10_000, {0: "persistent://public/p/fleet-partition-0"})
TABLE = TableSide("climate", 1)


def row(
    n: int, device: str = "d", *, crc: int = 7, us: int = -1, arrival: int = -1, due: bytes = b"\2", **more: int
) -> Any:
    return (
        0,
        1,
        n,
        0,
        more.get("element", 0),
        n if us < 0 else us,
        n if arrival < 0 else arrival,
        device,
        crc,
        due,
        "",
    )


def table(rows: Sequence[Any]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [()] * len(SCHEMA)
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)


def bronze(log: Sequence[Any], rows: Sequence[Any]) -> list[tuple[str, str]]:
    found = compare_bucket({LOG: table(log), BRONZE: table(rows)}, [], SPAN, bronze=True)
    return [short(f) for _, f in found if isinstance(f, Finding)]


def typed(log: Sequence[Any], rows: Sequence[Any], bad: Sequence[Any] = (), side: TableSide = TABLE) -> list[Any]:
    bad = [(*one[:-1], side.name) for one in bad]
    records = {LOG: table(log), side.name: table(rows), QUARANTINE: table(bad)}
    return [short(f) for _, f in compare_bucket(records, [side], SPAN, bronze=False) if isinstance(f, Finding)]


def short(finding: Finding) -> tuple[str, str]:
    return finding.kind, finding.message.rsplit(":", 2)[1]


SENT = [row(n) for n in range(1, 9)]


def test_equal_records_have_no_finding() -> None:
    assert bronze(SENT, SENT[::-1]) == []
    assert typed(SENT, SENT[::-1]) == []
    assert bronze([], []) == typed([], []) == []


def test_each_difference_of_bronze_is_named_with_its_position() -> None:
    assert bronze(SENT, SENT[1:]) == [(Kind.MISSING, "1")]
    assert bronze(SENT, [*SENT, SENT[3]]) == [(Kind.REPEATED, "4")]
    assert bronze(SENT, [*SENT[:-1], row(8, crc=8)]) == [(Kind.ALTERED, "8")]
    assert bronze(SENT, [*SENT[:-1], row(8, "e")]) == [(Kind.ALTERED, "8")]
    assert bronze(SENT, [row(5, us=1), *(r for r in SENT if r[2] != 5)]) == [(Kind.REORDERED, "5")]
    assert bronze(SENT, [row(3, us=9000), *(r for r in SENT if r[2] != 3)]) == [(Kind.REORDERED, "3")]
    assert bronze(SENT, [*SENT, row(70)]) == [(Kind.UNEXPECTED, "70")]


def test_messages_outside_of_the_window_are_not_compared() -> None:
    assert bronze([*SENT, row(20, us=10_000)], SENT) == []
    assert typed([*SENT, row(20, us=10_000)], SENT) == []


def test_each_difference_of_a_table_is_named_with_its_position() -> None:
    assert typed(SENT, SENT[1:]) == [(Kind.MISSING, "1")]
    assert typed(SENT, SENT[1:], SENT[:1]) == []
    assert typed(SENT, [*SENT, SENT[2]]) == [(Kind.REPEATED, "3")]
    assert typed(SENT, [*SENT, row(3, element=1)]) == []
    assert typed(SENT, SENT[1:], [SENT[0], SENT[0]]) == [(Kind.REPEATED, "1")]
    assert typed(SENT, [*SENT, row(70)]) == [(Kind.UNEXPECTED, "70")]
    assert typed(SENT, [*SENT[:-1], row(8, "e")]) == [(Kind.ALTERED, "8")]
    assert typed(SENT, [*SENT[:-1], row(8, arrival=5000)]) == [(Kind.ALTERED, "8")]
    assert typed(SENT, [*SENT, row(8, "e", element=1)]) == [(Kind.ALTERED, "8")]
    exchanged = [row(7, arrival=8), row(8, arrival=7)]
    assert typed(SENT, [*SENT[:-2], *exchanged]) == [(Kind.REORDERED, "7"), (Kind.REORDERED, "8")]
    assert typed([*SENT, row(9, due=b"\5"), row(10, due=b"")], SENT) == []


def test_a_table_may_be_one_of_many() -> None:
    side = TableSide("climate", 69)
    log = [row(1, due=(1 << 69).to_bytes(9, "little")), row(2, due=b"\xff" * 8), row(3, due=b"\xff" * 9)]
    assert typed(log, [], side=side) == [(Kind.MISSING, "1"), (Kind.MISSING, "3")]


def test_a_message_without_a_row_of_a_keyed_table_is_returned_with_its_content() -> None:
    side = TableSide("climate", TABLE.bit, keyed=True)
    ((_, found),) = compare_bucket({LOG: table(SENT), "climate": table(SENT[1:])}, [side], SPAN, bronze=False)
    assert isinstance(found, Lacking)
    assert found.content == ("d", 7)
    assert short(found.finding) == (Kind.MISSING, "1")


def test_a_finding_has_hop_device_and_time() -> None:
    (found,) = compare_bucket({LOG: table(SENT), BRONZE: table(SENT[1:])}, [], SPAN, bronze=True)
    assert found == ("bronze", Finding(Hop.BRONZE, Kind.MISSING, "d", 1, "fleet-partition-0:1:1:0"))


@given(st.sets(st.integers(1, 60), min_size=1), st.data())
def test_any_lost_and_repeated_rows_are_all_found(numbers: set[int], data: st.DataObject) -> None:
    log = [row(n) for n in sorted(numbers)]
    lost = data.draw(st.sets(st.sampled_from(sorted(numbers))))
    twice = data.draw(st.sets(st.sampled_from(sorted(numbers)))) - lost
    rows = [r for r in log if r[2] not in lost] + [r for r in log if r[2] in twice]
    rows = data.draw(st.permutations(rows))
    wanted = {(Kind.MISSING, str(n)) for n in lost} | {(Kind.REPEATED, str(n)) for n in twice}
    for found in (bronze(log, rows), typed(log, rows)):
        assert set(found) == wanted
        assert len(found) == len(wanted)
