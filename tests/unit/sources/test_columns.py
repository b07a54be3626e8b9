"""Rows leave as Spark expects them, with every fact of the message and nothing made up."""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge import contract
from bridge.contract import SOURCE_COLUMNS
from bridge.contract.decoding import LAST_US
from bridge.pulsar.wire.batches import head_of
from bridge.pulsar.wire.protobuf import number
from sources.columns import arrow_schema, record_batch
from sources.entries import Opened, Opener, Rows

TOPIC = "persistent://a/b/t"
NAMES = [name for name, _ in SOURCE_COLUMNS]


@dataclass
class Stored:
    """A message in Pulsar."""

    payload: bytes | None = b"x"
    key: str = ""
    event_ms: int = 0
    props: dict[str, str] = field(default_factory=dict)

    def opened(self, entry: int) -> Opened:
        return Opened(
            7,
            entry,
            self.payload or b"",
            1_700_000_000_123,
            self.event_ms,
            prefix=head_of(self.key, self.props),
            null=self.payload is None,
        )


def rows(messages: list[Stored], names: list[str] = NAMES) -> list[dict[str, object]]:
    opener = Opener()
    for entry, message in enumerate(messages):
        assert opener.add(message.opened(entry)) == 1
    return table(opener.flush(), names)


def table(found: Rows, names: list[str] = NAMES, partition: int = 3) -> list[dict[str, object]]:
    batch = record_batch(arrow_schema(names), TOPIC, f"{TOPIC}-partition-{partition}", found)
    return list(batch.to_pylist())


def test_null_and_empty_payloads_differ_and_bytes_stay() -> None:
    found = rows([Stored(None), Stored(b""), Stored(b"\x00\xff")])
    assert [row["value"] for row in found] == [None, b"", b"\x00\xff"]
    assert [row["payload"] for row in found] == [None, b"", b"\x00\xff"]


def test_times_are_microseconds_in_utc() -> None:
    row = rows([Stored(event_ms=1)])[0]
    assert row["__publishTime"].isoformat() == "2023-11-14T22:13:20.123000+00:00"  # type: ignore[attr-defined]
    assert row["__eventTime"].isoformat() == "1970-01-01T00:00:00.001000+00:00"  # type: ignore[attr-defined]
    assert rows([Stored()])[0]["__eventTime"] is None


def test_the_mqtt_view_is_null_where_the_message_says_nothing() -> None:
    row = rows([Stored(props={"a": "b"})])[0]
    assert row["__messageProperties"] == [("a", "b")]
    assert {row[name] for name in ("__key", "mqtt_topic", "device", "qos", "retain", "retained", "arrival_time")} == {
        None
    }


def test_the_mqtt_view_reads_the_envelope() -> None:
    props = {
        contract.P_INGEST: contract.encode_ingest(link="l", protocol="5", rule="r"),
        contract.P_TOPIC: "a/b", contract.P_DEVICE: "d", contract.P_RETAIN: "1", contract.P_COMMAND_TOPIC: "c/d",
        contract.P_CONTENT_TYPE: "application/json", contract.P_RESPONSE_TOPIC: "r",
        contract.P_CORRELATION: contract.encode_correlation(b"\x00\x01"),
        contract.P_USER: contract.encode_user_properties([("k", "1"), ("k", "2")]),
    }  # fmt: skip
    row = rows([Stored(key="d", props=props, event_ms=1_700_000_000_001)])[0]
    assert row["arrival_time"].isoformat() == "2023-11-14T22:13:20.001000+00:00"  # type: ignore[attr-defined]
    assert (row["mqtt_topic"], row["device"], row["qos"], row["retain"], row["retained"]) == (
        "a/b",
        "d",
        1,
        True,
        False,
    )
    assert row["correlation_data"] == b"\x00\x01"
    assert row["user_properties"] == [{"name": "k", "value": "1"}, {"name": "k", "value": "2"}]
    assert (row["__key"], row["__topic"], row["partition"]) == ("d", TOPIC, 3)


@pytest.mark.parametrize("qos", ["x", "\N{SUPERSCRIPT TWO}", "3", "99999999999"])
def test_a_strangers_property_of_our_name_harms_no_row(qos: str) -> None:
    row = rows([Stored(props={contract.P_CORRELATION: "%", contract.P_USER: "{", contract.P_QOS: qos})])[0]
    assert (row["correlation_data"], row["user_properties"], row["qos"]) == (None, None, None)


def test_properties_of_a_message_without_a_batch_count_towards_the_size_of_the_rows() -> None:
    opener = Opener()
    opener.add(Stored(b"x", props={"a": "b" * 1000}).opened(0))
    assert 1000 < opener.rows.size < 1100


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(out) + bytes([value])


@given(st.integers(0, 2**40), st.integers(0, 2**20), st.integers(0, 9), st.integers(1, 5000))
@settings(deadline=None, max_examples=50)
def test_the_ids_of_a_batch_are_those_that_the_client_would_write(
    ledger: int, entry: int, partition: int, size: int
) -> None:
    def serialized(index: int) -> bytes:
        numbers = ((8, ledger), (16, entry), (24, partition), (32, index), (48, size))
        return b"".join(bytes([tag]) + _varint(value) for tag, value in numbers)

    one = (2).to_bytes(4, "big") + number(3, 1) + b"x"
    opener = Opener()
    opener.add(Opened(ledger, entry, one * size, batched=True, size=size))
    found = table(opener.flush(), ["__messageId", "ledger_id", "entry_id", "batch_index", "value"], partition)
    assert [row["__messageId"] for row in found] == [serialized(index) for index in range(size)]
    assert [row["batch_index"] for row in found] == list(range(size))
    assert {(row["ledger_id"], row["entry_id"], row["value"]) for row in found} == {(ledger, entry, b"x")}


_TIMES = st.sampled_from([0, 1, 1_700_000_000_001, LAST_US // 1000])
_MESSAGES = st.tuples(st.sampled_from(["plain", "null", "gone", "sequence"]), st.booleans(), _TIMES)
"""The parts of a message in a batch without its payload: whether ingest wrote it, its event time in ms."""


def _in_batch(what: str, ours: bool, event_ms: int) -> bytes:
    metadata = head_of("k", {contract.P_INGEST: "x"} if ours else {})
    metadata += number(3, 1 if what in ("plain", "sequence") else 0)
    metadata += number(4, 1) if what == "gone" else b""
    metadata += number(5, event_ms) if event_ms else b""
    metadata += number(8, 300) if what == "sequence" else b""
    metadata += number(9, 1) if what == "null" else b""
    return len(metadata).to_bytes(4, "big") + metadata + (b"x" if what in ("plain", "sequence") else b"")


@given(st.lists(st.tuples(st.integers(0, LAST_US // 1000), st.lists(_MESSAGES, max_size=6)), max_size=5))
@settings(deadline=None, max_examples=200)
def test_what_is_computed_for_a_batch_at_once_is_what_each_row_says(
    batches: list[tuple[int, list[tuple[str, bool, int]]]],
) -> None:
    opener = Opener()
    expected = []
    for entry, (publish_ms, messages) in enumerate(batches):
        body = b"".join(_in_batch(*message) for message in messages)
        opener.add(Opened(7, entry, body, publish_ms, batched=True, size=len(messages)))
        expected += [
            (entry, index, publish_ms * 1000, time * 1000 or None, (ours and time * 1000) or None,
             None if what == "null" else b"x")
            for index, (what, ours, time) in enumerate(messages)
            if what != "gone"
        ]  # fmt: skip
    names = ["entry_id", "batch_index", "__publishTime", "__eventTime", "arrival_time", "value"]
    found = record_batch(arrow_schema(names), TOPIC, f"{TOPIC}-partition-3", opener.flush())
    columns = [
        (column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column).to_pylist()
        for column in found.columns
    ]
    assert list(zip(*columns, strict=True)) == expected
