"""Values of Spark that Python lacks: they make a bad row, in every sink, and never fail the task."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from bridge.contract.commands import Command
from sinks import group_rows, mqtt_rows, topic_rows
from sinks.arrow_rows import Row, rows_of
from sinks.messages import BadRow, PulsarMessage
from tests.support.command_rows import read_rows

BROKEN = b"d\xff\xfe"
BEYOND_PYTHON_US = 1_760_000_000_000 * 1_000_000  # the year 57,741
ZONES = ("UTC", "Europe/Berlin", "Z", "GMT+03:00", "UTC+3", "PST")


def broken_text() -> pa.StringArray:
    """Three texts of which the one in the middle is no UTF-8, as ``cast(binary as string)`` makes them."""
    offsets = struct.pack("<4i", 0, 1, 4, 5)
    return pa.StringArray.from_buffers(3, pa.py_buffer(offsets), pa.py_buffer(b"a" + BROKEN + b"b"))


def text(*values: str) -> pa.Array:
    return pa.array(values, pa.string())


def batch(columns: dict[str, Any]) -> pa.RecordBatch:
    return pa.record_batch(list(columns.values()), names=list(columns))


THREE = text("1", "2", "3")
COMMANDS = {"command_id": THREE, "device": THREE, "mqtt_topic": THREE, "payload": pa.array([b"p"] * 3)}
TO_ONE = topic_rows.Plan("persistent://a/b/t", False, False, "persistent://public/system/")
READ: dict[str, tuple[dict[str, Any], Callable[[list[pa.RecordBatch]], Iterator[Any]]]] = {
    "commands": (COMMANDS, read_rows),
    "groups": ({"group": THREE, "device": THREE}, lambda found: group_rows.read_rows(found, "members")),
    "topics": (
        {"value": THREE, "__key": THREE, "__orderingKey": THREE},
        lambda found: topic_rows.read_rows(found, TO_ONE),
    ),
    "mqtt": (
        {"mqtt_topic": THREE, "payload": THREE, "content_type": THREE},
        lambda found: mqtt_rows.read_rows(found, mqtt_rows.Plan(None, True, False)),
    ),
}


@pytest.mark.parametrize(
    ("sink", "column"),
    [(sink, name) for sink, (columns, _) in READ.items() for name in columns if columns[name] is THREE],
)
def test_text_that_is_not_utf_8_is_a_bad_row_that_names_the_column(sink: str, column: str) -> None:
    columns, read = READ[sink]
    first, bad, last = read([batch(columns | {column: broken_text()})])
    assert isinstance(bad, BadRow)
    assert bad.reason.startswith(f"row 1 of the task, {column}: b'd\\xff\\xfe' is not UTF-8")
    assert "decode(" in bad.reason
    assert not isinstance(first, BadRow)
    assert not isinstance(last, BadRow)
    if column in ("payload", "value"):
        assert bad.payload == BROKEN, "as it was"


def test_text_within_maps_and_arrays_is_looked_at_as_well() -> None:
    offsets = pa.array([0, 1, 2, 3], pa.int32())
    pairs = pa.MapArray.from_arrays(offsets, THREE, broken_text())
    columns, read = READ["topics"]
    _, bad, _ = read([batch(columns | {"__messageProperties": pairs})])
    assert isinstance(bad, BadRow)
    assert bad.problem.field == "__messageProperties"
    assert bad.properties == {"2": "d\\xff\\xfe"}, "its text, for the reader of the letter"
    assert (bad.payload, bad.key) == (b"2", "2")

    user = pa.ListArray.from_arrays(offsets, pa.StructArray.from_arrays([THREE, broken_text()], ["name", "value"]))
    columns, read = READ["mqtt"]
    _, bad, _ = read([batch(columns | {"user_properties": user})])
    assert isinstance(bad, BadRow)
    assert (bad.problem.field, bad.topic, bad.payload) == ("user_properties", "2", b"2")


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("at", [BEYOND_PYTHON_US, 1_760_000_000_123_456, -62_135_596_800_000_001 - 10**15, None])
def test_times_are_read_to_the_microsecond_in_any_year_and_zone(zone: str, at: int | None) -> None:
    times = pa.array([at], pa.timestamp("us", zone))
    assert list(rows_of([batch({"at": times})])) == [Row(0, {"at": at}, None)]


def test_times_beyond_pythons_are_times_like_any_other() -> None:
    times = pa.array([1_000, BEYOND_PYTHON_US, None], pa.timestamp("us", "Z"))
    commands = list(read_rows([batch(COMMANDS | {"emitted_at": times, "expires_at": times})]))
    assert [(c.emitted_at_us, c.expires_at_ms) for c in commands if isinstance(c, Command)] == [
        (1_000, 1), (BEYOND_PYTHON_US, BEYOND_PYTHON_US // 1000), (0, 0),
    ]  # fmt: skip
    columns, read = READ["topics"]
    for kind, unit in ((pa.timestamp("us", "PST"), 1000), (pa.int64(), 1)):
        found = read([batch(columns | {"__eventTime": pa.array([5_000, BEYOND_PYTHON_US, None], kind)})])
        assert [m.event_ms for m in found if isinstance(m, PulsarMessage)] == [
            5_000 // unit, BEYOND_PYTHON_US // unit, 0,
        ]  # fmt: skip


def test_rows_are_numbered_through_the_batches_of_a_task() -> None:
    columns, read = READ["topics"]
    found = list(read([batch(columns), batch(columns | {"__key": broken_text()}), batch(columns)]))
    assert [row.row for row in found] == list(range(9))
    assert [row.row for row in found if isinstance(row, BadRow)] == [4]
