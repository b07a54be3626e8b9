"""Rows for Pulsar topics: bytes untouched, what cannot be a message named by row and field."""

from __future__ import annotations

import base64
from datetime import datetime, timezone
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.contract import SOURCE_COLUMNS
from bridge.contract.commands import MAX_COMMAND_BYTES
from bridge.errors import ContractError
from sinks.messages import BadRow, PulsarMessage
from sinks.topic_rows import Plan, check_schema, read_rows

EACH = Plan(None, False, False, "persistent://public/system/")
ONE = Plan("persistent://a/b/t", False, False, "persistent://public/system/")
TYPES = {
    "value": pa.binary(), "payload": pa.binary(), "__key": pa.string(), "__orderingKey": pa.string(),
    "__topic": pa.string(), "__eventTime": pa.timestamp("us", "UTC"),
    "__messageProperties": pa.map_(pa.string(), pa.string()), "ledger_id": pa.int64(),
}  # fmt: skip


def batch(*rows: dict[str, Any], **types: Any) -> pa.RecordBatch:
    names = dict.fromkeys(name for row in rows for name in row)
    schema = pa.schema([(name, types.get(name, TYPES[name])) for name in names])
    return pa.RecordBatch.from_pylist(list(rows), schema=schema)


def one(row: dict[str, Any], plan: Plan = ONE, **types: Any) -> PulsarMessage | BadRow:
    (found,) = read_rows([batch(row, **types)], plan)
    return found


def test_what_the_source_gives_can_be_written() -> None:
    check_schema(SOURCE_COLUMNS, EACH)
    check_schema([("payload", "string"), ("__key", "binary"), ("__eventTime", "bigint"), ("ledger_id", "bigint")], ONE)
    check_schema([("value", "binary")], ONE)


def test_every_problem_of_a_schema_is_listed() -> None:
    with pytest.raises(ContractError) as e:
        check_schema([("valeu", "binary"), ("__eventTime", "string"), ("temperature", "double")], EACH)
    for part in (
        "column value (binary or string) is missing", "column __topic (string) is missing",
        "valeu is unknown: did you mean value?", "__eventTime is string, wanted timestamp or bigint",
        "temperature is unknown: drop it, or put it into value",
    ):  # fmt: skip
        assert part in str(e.value), part
    with pytest.raises(ContractError, match="device repeat __messageProperties"):
        check_schema([("value", "binary"), ("device", "string")], ONE)
    with pytest.raises(ContractError, match="needs __key as binary"):
        check_schema([("value", "binary"), ("__key", "string")], Plan("t", True, False, "x"))


@given(
    st.none() | st.binary(),
    st.none() | st.text(min_size=1),
    st.dictionaries(st.text(), st.text()),
    st.none() | st.datetimes(datetime(1970, 1, 2), datetime(2500, 1, 1), timezones=st.just(timezone.utc)),
)
def test_a_row_becomes_the_message_that_it_describes(
    value: bytes | None, key: str | None, properties: dict[str, str], at: datetime | None
) -> None:
    row = {"value": value, "payload": value, "__key": key, "__messageProperties": list(properties.items()),
           "__eventTime": at, "__topic": "persistent://x/y/elsewhere", "ledger_id": 5}  # fmt: skip
    ms = 0 if at is None else (at - datetime(1970, 1, 1, tzinfo=timezone.utc)) // (
        datetime(1970, 1, 1, 0, 0, 1) - datetime(1970, 1, 1)
    ) * 1000 + at.microsecond // 1000  # fmt: skip
    assert one(row) == PulsarMessage(0, "persistent://a/b/t", value, key, properties, ms)
    named = one(row, EACH)
    assert isinstance(named, PulsarMessage)
    assert named.topic == "persistent://x/y/elsewhere"


def test_keys_may_be_bytes() -> None:
    raw = b"\xff\x00k"
    assert one({"value": b"", "__key": "ключ".encode()}, __key=pa.binary()) == PulsarMessage(
        0, "persistent://a/b/t", b"", "ключ", {}
    )
    found = one({"value": b"", "__key": raw}, Plan("t", True, False, "x"), __key=pa.binary())
    assert isinstance(found, PulsarMessage)
    assert found.key == base64.b64encode(raw).decode()


@pytest.mark.parametrize(
    ("row", "field", "why"),
    [
        ({"__topic": None}, "__topic", "is null"),
        ({"__topic": "a/b"}, "__topic", "give persistent://"),
        ({"__topic": "public/system/commands-partition-0"}, "__topic", "system namespace"),
        ({"__key": ""}, "__key", "is empty"),
        ({"__eventTime": datetime(1969, 12, 31, tzinfo=timezone.utc)}, "__eventTime", "before the epoch"),
        ({"__messageProperties": [("a", None)]}, "__messageProperties", "'a' is null"),
        ({"payload": b"other"}, "payload", "differs from value"),
        ({"value": b"x" * (MAX_COMMAND_BYTES + 1)}, "value", "chunkingEnabled"),
        ({"__messageProperties": [("a", "x" * MAX_COMMAND_BYTES)]}, "__messageProperties", "the limit is"),
    ],
)
def test_a_bad_row_is_named_and_the_others_go_on(row: dict[str, Any], field: str, why: str) -> None:
    good = {"value": b"v", "__topic": "t"} | ({"payload": b"v"} if "payload" in row else {})
    rows = [good, good | row, good]
    first, bad, last = read_rows([batch(*rows)], EACH)
    assert isinstance(first, PulsarMessage)
    assert isinstance(bad, BadRow)
    assert bad.reason.startswith(f"row 1 of the task, {field}: ")
    assert why in bad.reason
    assert isinstance(last, PulsarMessage)
    assert last.row == 2


def test_the_error_for_a_binary_key_names_the_option() -> None:
    found = one({"value": b"", "__key": b"\xff"}, __key=pa.binary())
    assert isinstance(found, BadRow)
    assert "keyEncoding=base64" in found.reason
