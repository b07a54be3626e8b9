from __future__ import annotations

import base64
import gzip
import io
import json
import math
from datetime import datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.errors import ConfigError
from bridge.settings.tables import Decoding
from sources.payloads.documents import json_of
from sources.payloads.message import Message
from sources.payloads.unpacking import unpacker, with_descriptor
from tests.support.reading_message import descriptor_set, encoded

HERE = Message("a", "d1", {"x": "1"}, None, (("unit", "km"),))
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=10,
)  # fmt: skip


def decoder(**more: Any) -> Decoding:
    return Decoding(filter="a", **more)


@given(values)
def test_what_json_has_is_the_same_after_cbor(value: object) -> None:
    found = unpacker(decoder(format="cbor"))(cbor2.dumps(value), HERE)
    assert found.document is not None
    assert json.loads(found.document) == value


@given(st.binary(max_size=60))
def test_any_bytes_are_a_document_or_a_fault_in_words(payload: bytes) -> None:
    for form in ({"format": "cbor"}, {"format": "protobuf", "message": "t.Reading", "descriptor_set": SET}):
        found = unpacker(decoder(**form, max_size="1000B"))(payload, HERE)
        assert (found.document is None) != (found.fault is None)
        assert found.document is None or json.loads(found.document) is not ...


def test_what_json_lacks_has_a_form_in_it() -> None:
    value = {
        1: b"\x00\xff", "at": datetime(2026, 1, 2, tzinfo=timezone.utc), "d": Decimal("1.50"), "nan": math.nan,
        "tag": cbor2.CBORTag(4711, [1]), "big": 2**200, "set": {7},
    }  # fmt: skip
    found = json.loads(json_of(value, 10_000))
    assert found == {
        "1": "AP8=", "at": "2026-01-02T00:00:00+00:00", "d": "1.50", "nan": None, "tag": [1], "big": hex(2**200),
        "set": [7],
    }  # fmt: skip


def test_two_keys_that_would_be_one_are_refused() -> None:
    with pytest.raises(ValueError, match="two fields are named '1'"):
        json_of({1: 0, "1": 0}, 100)


def test_a_payload_that_refers_to_itself_or_grows_is_a_fault() -> None:
    cbor = unpacker(decoder(format="cbor", max_size="10000B"))
    grown: object = ["x" * 10]
    for _ in range(30):
        grown = [grown, grown]
    itself = b"\xd8\x1c\x81\xd8\x1d\x00"
    for payload, words in (
        (cbor2.dumps(grown, value_sharing=True), "larger than max_size, 10000"),
        (itself, "nested deeper than max_depth, 64"),
        (b"\x81" * 5000 + b"\x00", "nested deeper than max_depth, 64"),
        (b"\x9b" + b"\xff" * 8, "premature end"),
    ):
        found = cbor(payload, HERE)
        assert found.fault is not None
        assert words in found.fault


SET = base64.b64encode(descriptor_set()).decode()


def test_protobuf_keeps_zeros_and_fields_that_the_descriptor_does_not_know() -> None:
    read = unpacker(decoder(format="protobuf", message="t.Reading", descriptor_set=SET))
    found = read(encoded("r1", "2026-01-02T00:00:00Z", 0.0) + b"\x38\x05", HERE)
    assert json.loads(found.document or "") == {
        "id": "r1", "ts": "2026-01-02T00:00:00Z", "t": 0.0, "field7": 5,
    }  # fmt: skip
    assert "premature end" in (read(b"\x0a\xff", HERE).fault or "")


def own(payload: bytes, message: Message) -> object:
    if payload == b"none":
        raise KeyError("speed")
    if payload == b"not a reading":
        return None
    if payload == b"many":
        return ({"n": n} for n in range(10**9))
    if payload == b"text":
        return "text"
    row = {"id": message.topic, "t": int(payload, 16), "unit": dict(message.user_properties)["unit"]}
    return row if len(payload) < 3 else [row, row | {"t": 0}]


def test_a_function_gets_payload_and_message_and_gives_any_number_of_rows() -> None:
    call = unpacker(decoder(format="python", function=f"{__name__}:own", compression="gzip", max_elements=5))

    def given(payload: bytes) -> Any:
        return call(gzip.compress(payload), HERE)

    assert given(b"ff").document == '[{"id":"a","t":255,"unit":"km"}]'
    assert given(b"fff").document == '[{"id":"a","t":4095,"unit":"km"},{"id":"a","t":0,"unit":"km"}]'
    assert given(b"not a reading").document == "[]"
    assert given(b"none").fault == "python: KeyError: 'speed'"
    assert "more rows than max_elements, 5" in given(b"many").fault
    assert "returns a str, a row must be a mapping" in given(b"text").fault
    assert call(b"ff", HERE).fault == (
        "gzip: ValueError: not gzip: Error -3 while decompressing data: incorrect header check"
    )


AVRO = json.dumps(
    {"type": "record", "name": "R", "fields": [{"name": "t", "type": "double"}, {"name": "l", "type": {"type": "array", "items": "null"}}]}
)  # fmt: skip


def test_avro_is_read_by_its_schema_to_the_last_byte() -> None:
    import fastavro

    read = unpacker(decoder(format="avro", avro_schema=AVRO))
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(json.loads(AVRO)), {"t": 1.5, "l": [None]})
    assert read(stream.getvalue(), HERE).document == '{"t":1.5,"l":[null]}'
    assert "1 bytes after the record" in (read(stream.getvalue() + b"x", HERE).fault or "")
    assert read(b"\x00", HERE).fault is not None


@given(st.binary(max_size=40))
def test_any_bytes_as_avro_are_a_document_or_a_fault(payload: bytes) -> None:
    schema = json.dumps({"type": "record", "name": "R", "fields": [{"name": "s", "type": "string"}]})
    found = unpacker(decoder(format="avro", avro_schema=schema))(payload, HERE)
    assert (found.document is None) != (found.fault is None)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"format": "python", "function": "no_such_module:f"}, "'no_such_module:f' cannot be imported"),
        ({"format": "python", "function": "json:JSONDecodeErrors"}, "cannot be imported: AttributeError"),
        ({"format": "avro", "avro_schema": '{"type":"nothing"}'}, "refuses the schema"),
        ({"format": "python", "function": "math:pi"}, "is not a function"),
        ({"format": "protobuf", "message": "t.Other", "descriptor_set": SET}, "has no message 't.Other'"),
        ({"format": "protobuf", "message": "t.R", "descriptor_set": "AAAA"}, "refuses the descriptor"),
    ],
)
def test_what_could_decode_nothing_is_refused(more: Any, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        unpacker(decoder(**more))
    assert words in str(caught.value)


def test_a_descriptor_is_a_file_whose_content_travels_to_the_executors(tmp_path: Path) -> None:
    (tmp_path / "t.desc").write_bytes(descriptor_set())
    named = decoder(format="protobuf", message="t.Reading", descriptor=tmp_path / "t.desc")
    found = with_descriptor(named)
    assert base64.b64decode(found.descriptor_set or "") == descriptor_set()
    assert unpacker(found)(encoded("r1", "t", 1.5), HERE).document == '{"id":"r1","ts":"t","t":1.5}'
    with pytest.raises(ConfigError, match=r"filter a cannot be read: .*gone.desc"):
        with_descriptor(named.model_copy(update={"descriptor": tmp_path / "gone.desc"}))
