"""Rows for an MQTT broker: what a publish must be, and which row and field is wrong."""

from __future__ import annotations

import base64
import json
from typing import Any

import pyarrow as pa
import pytest

from bridge.contract import ORIGIN_PROPERTY, ORIGIN_SINK
from bridge.errors import ContractError
from bridge.mqtt.types import PublishProperties
from sinks.columns import MQTT_SINK_COLUMNS
from sinks.messages import BadRow
from sinks.mqtt_rows import Plan, Publish, check_schema, letter_of, read_rows

FIVE = Plan(None, True, False)
SCHEMA = pa.schema(
    [("mqtt_topic", pa.string()), ("payload", pa.binary()), ("qos", pa.int32()), ("retain", pa.bool_()),
     ("content_type", pa.string()), ("response_topic", pa.string()), ("correlation_data", pa.binary()),
     ("user_properties", pa.list_(pa.struct([("name", pa.string()), ("value", pa.string())]))),
     ("payload_format", pa.int32()), ("expiry_s", pa.int64())]
)  # fmt: skip


def read(plan: Plan, *rows: dict[str, Any]) -> list[Publish | BadRow]:
    return list(
        read_rows(
            [pa.RecordBatch.from_pylist([{"mqtt_topic": "a/b", "payload": b"p"} | r for r in rows], SCHEMA)],
            plan,
        )
    )


def test_a_row_becomes_the_publish_that_it_describes() -> None:
    user = [{"name": "n", "value": "1"}, {"name": "n", "value": "2"}]
    whole = {"qos": 2, "retain": True, "content_type": "c", "response_topic": "r", "correlation_data": b"\0",
             "user_properties": user, "payload_format": 1, "expiry_s": 5}  # fmt: skip
    properties = PublishProperties((("n", "1"), ("n", "2"), (ORIGIN_PROPERTY, ORIGIN_SINK)), "c", "r", b"\0", 1, 5)
    marked = PublishProperties(((ORIGIN_PROPERTY, ORIGIN_SINK),))
    assert read(FIVE, whole, {}) == [
        Publish(0, "a/b", b"p", 2, True, properties), Publish(1, "a/b", b"p", 1, False, marked),
    ]  # fmt: skip
    assert read(Plan("t", True, True), {"mqtt_topic": None}) == [Publish(0, "t", b"p", 1, False, None)]
    assert read(Plan("t", False, False), {}) == [Publish(0, "a/b", b"p", 1, False, None)]


@pytest.mark.parametrize(
    ("row", "field", "why"),
    [
        ({"mqtt_topic": None}, "mqtt_topic", "is null"),
        ({"mqtt_topic": "a/+"}, "mqtt_topic", "no + or #"),
        ({"payload": None}, "payload", "is null"),
        ({"qos": 3}, "qos", "is 3"),
        ({"response_topic": "#"}, "response_topic", "no + or #"),
        ({"payload_format": 2}, "payload_format", "is 2"),
        ({"expiry_s": -1}, "expiry_s", "is -1 s"),
        ({"correlation_data": b"x" * 65_536}, "correlation_data", "65535"),
        ({"content_type": "\0"}, "content_type", "U+0000"),
        ({"content_type": "text/\x1b"}, "content_type", "remove control characters"),
        ({"user_properties": [{"name": "n", "value": None}]}, "user_properties", "null"),
        ({"user_properties": [{"name": "n", "value": "a\nb"}]}, "user_properties", "U+000A"),
        ({"user_properties": [{"name": "\x7f", "value": "v"}]}, "user_properties", "U+007F"),
        ({"user_properties": [{"name": "n", "value": "x" * 65_536}]}, "user_properties", "65535"),
    ],
)
def test_a_bad_row_is_named_and_the_others_go_on(row: dict[str, Any], field: str, why: str) -> None:
    first, bad, last = read(FIVE, {}, row, {})
    assert isinstance(first, Publish)
    assert isinstance(last, Publish)
    assert isinstance(bad, BadRow)
    assert bad.reason.startswith(f"row 1 of the task, {field}: ")
    assert why in bad.reason
    payload, properties = letter_of(bad, FIVE)
    letter = json.loads(payload)
    assert (letter["row"], letter["field"], letter["reason"]) == (1, field, bad.reason)
    assert base64.b64decode(letter["payload_base64"]) == bad.payload
    assert properties is not None
    assert dict(properties.user) == {ORIGIN_PROPERTY: ORIGIN_SINK}, "ingest takes it for no reading"


def test_a_schema_is_checked_whole() -> None:
    check_schema([(name, kinds[0]) for name, kinds in MQTT_SINK_COLUMNS.items()], FIVE)
    check_schema([("payload", "string")], Plan("t", False, False))
    with pytest.raises(ContractError) as e:
        check_schema([("mqtt_topc", "string"), ("payload", "binary"), ("qos", "bigint")], FIVE)
    for part in (
        "column mqtt_topic (string) is missing", "did you mean mqtt_topic?", "column qos is bigint, wanted int",
    ):  # fmt: skip
        assert part in str(e.value), part
    with pytest.raises(ContractError, match="content_type need MQTT 5"):
        check_schema([("payload", "binary"), ("content_type", "string")], Plan("t", False, False))
