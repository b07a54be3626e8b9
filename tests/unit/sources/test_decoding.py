"""Values by the topic's schema: types, evolution, JSON that does not fit, what cannot be decoded."""

from __future__ import annotations

import base64
import io
import json
import struct
import sys
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.contract import SOURCE_COLUMNS
from bridge.errors import ConfigError, TerminalError
from sources.decoding import Decoder, Decoding, columns_of
from sources.entries import StoredPayload
from sources.value_types import TopicSchema, type_of

UTC = timezone.utc


def stored(payload: bytes | None, version: int = 0) -> StoredPayload:
    """A message in Pulsar."""
    return StoredPayload(payload, version, 7, 3, 0)


def record(*fields: dict[str, Any], name: str = "R") -> dict[str, Any]:
    return {"type": "record", "name": name, "namespace": "n", "fields": list(fields)}


def topic_schema(definition: Any, kind: str = "AVRO") -> TopicSchema:
    return TopicSchema(kind, json.dumps(definition))


def avro(definition: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(definition), value)
    return out.getvalue()


def decode(
    schema: TopicSchema,
    messages: list[StoredPayload],
    *versions: TopicSchema,
    null: bool = False,
    fields: bool = False,
) -> dict[str, list[Any]]:
    decoder = Decoder(Decoding(schema, fields, null), "t", lambda number: (*versions, schema)[number])
    found = decoder.arrays(messages)
    assert {name: array.type for name, array in found.items()} == decoder.arrow
    return {name: array.to_pylist() for name, array in found.items()}


EVERYTHING = record(
    {"name": "i", "type": "int"}, {"name": "l", "type": ["null", "int", "long"]},
    {"name": "f", "type": "float"}, {"name": "d", "type": ["float", "double"]},
    {"name": "b", "type": "boolean"}, {"name": "s", "type": {"type": "string", "avro.java.string": "String"}},
    {"name": "raw", "type": ["null", "bytes"], "default": None}, {"name": "day", "type": {"type": "int", "logicalType": "date"}},
    {"name": "ms", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    {"name": "us", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]},
    {"name": "time", "type": {"type": "int", "logicalType": "time-millis"}},
    {"name": "money", "type": {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}},
    {"name": "colour", "type": {"type": "enum", "name": "Colour", "symbols": ["RED", "BLUE"]}},
    {"name": "again", "type": ["null", "Colour"]},
    {"name": "inner", "type": ["null", record({"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}}, name="Inner")]},
    {"name": "list", "type": {"type": "array", "items": ["null", "n.Inner"]}},
    {"name": "map", "type": {"type": "map", "values": "long"}},
)  # fmt: skip
PLAIN = {
    "i": 1, "l": 2**40, "f": 0.5, "d": 0.25, "b": True, "s": "ü", "raw": b"\x00\xff", "day": 19_000, "ms": 1_700_000_000_123,
    "us": 1_700_000_000_123_456, "time": 5, "money": Decimal("12.34"), "colour": "RED", "again": "BLUE",
    "inner": {"at": 1000}, "list": [None, {"at": 2000}], "map": {"k": 3},
}  # fmt: skip
SHAPED = PLAIN | {
    "day": date(2022, 1, 8), "ms": datetime(2023, 11, 14, 22, 13, 20, 123_000, UTC),
    "us": datetime(2023, 11, 14, 22, 13, 20, 123_456, UTC), "inner": {"at": datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)},
    "list": [None, {"at": datetime(1970, 1, 1, 0, 0, 2, tzinfo=UTC)}], "map": [("k", 3)],
}  # fmt: skip
DDL = (
    "struct<`i`:int,`l`:bigint,`f`:float,`d`:double,`b`:boolean,`s`:string,`raw`:binary,`day`:date,`ms`:timestamp,"
    "`us`:timestamp,`time`:int,`money`:decimal(6,2),`colour`:string,`again`:string,`inner`:struct<`at`:timestamp>,"
    "`list`:array<struct<`at`:timestamp>>,`map`:map<string,bigint>>"
)


def test_avro_values_have_the_types_of_streamnatives_connector() -> None:
    schema = topic_schema(EVERYTHING)
    assert type_of(schema).ddl == DDL
    assert decode(schema, [stored(avro(EVERYTHING, PLAIN)), stored(None)]) == {"value": [SHAPED, None]}


def test_json_values_have_the_same_types() -> None:
    schema = topic_schema(EVERYTHING, "JSON")
    text = PLAIN | {"raw": base64.b64encode(b"\x00\xff").decode(), "money": 12.34}
    assert type_of(schema).ddl == DDL
    assert decode(schema, [stored(json.dumps(text).encode()), stored(None)]) == {"value": [SHAPED, None]}
    iso = text | {
        "day": "2022-01-08",
        "ms": "2023-11-14T22:13:20.123Z",
        "us": "2023-11-14T22:13:20.123456+00:00",
    }
    assert decode(schema, [stored(json.dumps(iso).encode())]) == {"value": [SHAPED]}


OLD = record({"name": "a", "type": "int"}, {"name": "gone", "type": "string"})
NEW = record(
    {"name": "a", "type": "long"}, {"name": "b", "type": "string", "default": "usual"},
    {"name": "c", "type": ["null", "int"], "default": None},
)  # fmt: skip
NEWER = record({"name": "a", "type": "long"}, {"name": "b", "type": "string"}, {"name": "z", "type": "int"})


def test_messages_of_older_and_later_versions_are_read_under_the_newest_that_was_known() -> None:
    messages = [
        stored(avro(OLD, {"a": 1, "gone": "x"}), 0), stored(avro(NEW, {"a": 2, "b": "b", "c": 3}), 1),
        stored(avro(NEWER, {"a": 4, "b": "late", "z": 5}), 2),
        stored(avro(NEW, {"a": 6, "b": "unversioned"}), -1),
    ]  # fmt: skip
    assert decode(topic_schema(NEW), messages, topic_schema(OLD), topic_schema(NEW), topic_schema(NEWER)) == {
        "value": [
            {"a": 1, "b": "usual", "c": None}, {"a": 2, "b": "b", "c": 3}, {"a": 4, "b": "late", "c": None},
            {"a": 6, "b": "unversioned", "c": None},
        ]
    }  # fmt: skip


def test_json_of_an_older_version_gets_the_defaults_and_loses_what_is_gone() -> None:
    messages = [stored(b'{"a": 1, "gone": "x"}'), stored(b'{"a": 2, "b": null, "c": 3}')]
    assert decode(topic_schema(NEW, "JSON"), messages, fields=True) == {
        "a": [1, 2], "b": ["usual", None], "c": [None, 3],
    }  # fmt: skip


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"{",
        b"[1]",
        b'{"a": "1"}',
        b'{"a": 1.5}',
        b'{"a": true}',
        b'{"a": 9999999999999999999}',
        b'"\xff"',
        b"null5",
    ],
)
def test_a_value_that_differs_from_the_schema_fails_with_its_path_or_is_null(payload: bytes) -> None:
    schema = topic_schema(NEW, "JSON")
    good = stored(b'{"a": 1}')
    with pytest.raises(
        TerminalError, match=r"t: message 7:3:0 does not match the topic's JSON schema.*decodeErrors=null"
    ):
        decode(schema, [good, stored(payload)])
    assert decode(schema, [good, stored(payload), good], null=True, fields=True)["a"] == [1, None, 1]


@given(st.binary(max_size=40), st.integers(-1, 2))
def test_no_payload_breaks_an_avro_reader(payload: bytes, version: int) -> None:
    found = decode(topic_schema(NEW), [stored(payload, version)], topic_schema(OLD), TopicSchema("STRING"), null=True)
    assert len(found["value"]) == 1


def test_avro_with_bytes_left_over_is_not_what_the_schema_says() -> None:
    with pytest.raises(TerminalError, match="1 bytes are left over"):
        decode(topic_schema(NEW), [stored(avro(NEW, {"a": 1, "b": ""}) + b"\x00", -1)])


@pytest.mark.parametrize(
    ("kind", "payload", "ddl", "value"),
    [
        ("STRING", "ü".encode(), "string", "ü"), ("STRING", b"", "string", ""), ("BYTES", b"\xff", "binary", b"\xff"),
        ("BOOLEAN", b"\x01", "boolean", True), ("INT8", b"\xff", "tinyint", -1),
        ("INT16", struct.pack(">h", -2), "smallint", -2), ("INT32", struct.pack(">i", -3), "int", -3),
        ("INT64", struct.pack(">q", 2**62), "bigint", 2**62), ("FLOAT", struct.pack(">f", 0.5), "float", 0.5),
        ("DOUBLE", struct.pack(">d", 0.1), "double", 0.1),
        ("DATE", struct.pack(">q", 86_400_000 * 2), "date", date(1970, 1, 3)),
        ("LOCAL_DATE", struct.pack(">q", 2), "date", date(1970, 1, 3)),
        ("TIMESTAMP", struct.pack(">q", -1), "timestamp", datetime(1969, 12, 31, 23, 59, 59, 999_000, UTC)),
        ("INSTANT", struct.pack(">qi", 1, 1000), "timestamp", datetime(1970, 1, 1, 0, 0, 1, 1, UTC)),
    ],
)  # fmt: skip
def test_single_values_have_their_type(kind: str, payload: bytes, ddl: str, value: Any) -> None:
    schema = TopicSchema(kind)
    assert type_of(schema).ddl == ddl
    assert decode(schema, [stored(payload), stored(None)], fields=True) == {"value": [value, None]}
    if kind not in ("STRING", "BYTES"):
        assert decode(schema, [stored(payload + b"x")], null=True) == {"value": [None]}


@pytest.mark.parametrize(
    "schema",
    [
        TopicSchema("KEY_VALUE", "{}"), TopicSchema("PROTOBUF_NATIVE", "{}"), TopicSchema("AVRO", "{"),
        topic_schema(record({"name": "u", "type": ["int", "string"]})), topic_schema(record({"name": "x", "type": "nowhere"})),
        topic_schema(record({"name": "self", "type": ["null", "R"]})), topic_schema({"type": "record", "name": "R"}),
    ],
)  # fmt: skip
def test_a_schema_that_is_not_understood_is_refused_with_the_remedy(schema: TopicSchema) -> None:
    with pytest.raises(ConfigError, match="set decode=none and decode value yourself"):
        type_of(schema)


def test_the_fields_of_a_record_are_columns_before_those_that_streamnative_does_not_have() -> None:
    schema = topic_schema(record({"name": "i", "type": "int"}, {"name": "Device", "type": "string"}))
    columns = columns_of(Decoding(schema, True, False))
    assert columns[:3] == (("i", "int"), ("Device", "string"), ("__key", "string"))
    names = [name for name, _ in columns]
    assert "payload" in names
    assert not {"device", "value"} & set(names)
    assert dict(columns_of(Decoding(schema, False, False)))["value"] == "struct<`i`:int,`Device`:string>"
    assert columns_of(None) == SOURCE_COLUMNS
    assert columns_of(Decoding(TopicSchema("INT32"), True, False))[0] == ("value", "int")
    for clash in (("__KEY",), ("a", "A")):
        wrong = topic_schema(record(*({"name": name, "type": "int"} for name in clash)))
        with pytest.raises(ConfigError, match="set decode=value"):
            columns_of(Decoding(wrong, True, False))


def test_an_avro_topic_without_its_reader_names_the_line_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "fastavro", None)
    with pytest.raises(ConfigError, match=r"pip install .pulsebridge\[avro\]"):
        Decoder(Decoding(topic_schema(NEW), False, False), "t", lambda _: topic_schema(NEW))
    assert decode(topic_schema(NEW, "JSON"), [stored(b'{"a": 1}')], fields=True)["a"] == [1]


def test_a_null_record_has_null_fields() -> None:
    found = decode(topic_schema(NEW), [stored(None), stored(avro(NEW, {"a": 1, "b": ""}), -1)], fields=True)
    assert found == {"a": [None, 1], "b": [None, ""], "c": [None, None]}
    assert pa.types.is_struct(type_of(topic_schema(NEW)).arrow)


NOTHING = record(name="Nothing")


@pytest.mark.parametrize(
    "items",
    [
        "null",
        {"type": "null"},
        NOTHING,
        record({"name": "x", "type": NOTHING}, {"name": "y", "type": "n.Nothing"}, name="Nested"),
        {"type": "fixed", "name": "F", "size": 0},
    ],
    ids=["null", "a null", "an empty record", "a record of empty ones", "fixed of 0"],
)
def test_h37_elements_without_bytes_cannot_be_named_in_any_number(items: Any) -> None:
    """Eight bytes that name 2**40 of them took all memory, and Spark retried the task; here fewer of them."""
    newest = topic_schema(record({"name": "a", "type": {"type": "array", "items": ["null", "int"]}}))
    written = topic_schema(record({"name": "a", "type": {"type": "array", "items": items}}))
    bomb = stored(b"\x80\x80\x80\x04\x00")  # 2**22
    with pytest.raises(TerminalError, match="elements use no bytes"):
        decode(newest, [bomb], written)
    assert decode(newest, [bomb], written, null=True) == {"value": [None]}


def test_h37_arrays_of_records_that_name_themselves_have_bytes() -> None:
    newest = topic_schema(record({"name": "b", "type": "int"}))
    written = record({"name": "children", "type": {"type": "array", "items": "R"}}, {"name": "b", "type": "int"})
    payload = avro(written, {"children": [{"children": [], "b": 1}], "b": 2})
    assert decode(newest, [stored(payload)], topic_schema(written)) == {"value": [{"b": 2}]}
