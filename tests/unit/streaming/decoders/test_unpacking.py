from __future__ import annotations

import base64
import gzip
import json
import math
from datetime import datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import cbor2
import pytest
from google.protobuf import descriptor_pb2
from hypothesis import given
from hypothesis import strategies as st

from bridge.errors import ConfigError
from streaming.decoders.documents import json_of
from streaming.decoders.settings import Decoder, load_decoders, parse_decoders
from streaming.decoders.unpacking import check_packages, unpacker
from tests.support.reading_message import descriptor_set, encoded

DECODER = {"filter": "a", "metric": "m", "value": "$.t", "id": "$.id", "time": "$.ts"}
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=10,
)  # fmt: skip


def decoder(**more: Any) -> Decoder:
    (found,) = parse_decoders([DECODER | more], "test")
    return found


@given(values)
def test_what_json_has_is_the_same_after_cbor(value: object) -> None:
    found = unpacker(decoder(format="cbor"))(cbor2.dumps(value), "a")
    assert found.document is not None
    assert json.loads(found.document) == value


@given(st.binary(max_size=60))
def test_any_bytes_are_a_document_or_a_fault_in_words(payload: bytes) -> None:
    for form in ({"format": "cbor"}, {"format": "protobuf", "message": "t.Reading", "descriptor_set": SET}):
        found = unpacker(decoder(**form, max_bytes=1000))(payload, "a")
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
    cbor = unpacker(decoder(format="cbor", max_bytes=10_000))
    grown: object = ["x" * 10]
    for _ in range(30):
        grown = [grown, grown]
    itself = b"\xd8\x1c\x81\xd8\x1d\x00"
    for payload, words in (
        (cbor2.dumps(grown, value_sharing=True), "larger than max_bytes, 10000"),
        (itself, "nested deeper than max_depth, 64"),
        (b"\x81" * 5000 + b"\x00", "nested deeper than max_depth, 64"),
        (b"\x9b" + b"\xff" * 8, "premature end"),
    ):
        found = cbor(payload, "a")
        assert found.fault is not None
        assert words in found.fault


SET = base64.b64encode(descriptor_set()).decode()


def test_protobuf_keeps_zeros_and_fields_that_the_descriptor_does_not_know() -> None:
    read = unpacker(decoder(format="protobuf", message="t.Reading", descriptor_set=SET))
    found = read(encoded("r1", "2026-01-02T00:00:00Z", 0.0) + b"\x38\x05", "a")
    assert json.loads(found.document or "") == {
        "id": "r1", "ts": "2026-01-02T00:00:00Z", "t": 0.0, "field7": 5,
    }  # fmt: skip
    assert "premature end" in (read(b"\x0a\xff", "a").fault or "")


def own(payload: bytes, topic: str) -> object:
    if payload == b"none":
        raise KeyError("speed")
    return [{"id": topic, "t": int(payload, 16)}]


def test_a_function_gets_payload_and_topic_and_what_it_raises_is_the_fault() -> None:
    call = unpacker(decoder(format="python", function=f"{__name__}:own", compression="gzip"))
    assert call(gzip.compress(b"ff"), "a").document == '[{"id":"a","t":255}]'
    assert call(gzip.compress(b"none"), "a").fault == "python: KeyError: 'speed'"
    assert call(b"ff", "a").fault == (
        "gzip: ValueError: not gzip: Error -3 while decompressing data: incorrect header check"
    )


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"format": "python", "function": "no_such_module:f"}, "'no_such_module:f' cannot be imported"),
        ({"format": "python", "function": "json:JSONDecodeErrors"}, "cannot be imported: AttributeError"),
        ({"format": "python", "function": "math:pi"}, "is no function"),
        ({"format": "protobuf", "message": "t.Other", "descriptor_set": SET}, "has no message 't.Other'"),
        ({"format": "protobuf", "message": "t.R", "descriptor_set": "AAAA"}, "refuses the descriptor"),
    ],
)
def test_what_could_decode_nothing_is_refused_at_load_with_its_filter(more: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=r"rules: readings\[0\] \(filter a\): ") as caught:
        check_packages([decoder(**more)], "rules")
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"format": "csv"}, "format csv needs fields"),
        ({"format": "protobuf", "message": "m"}, "format protobuf needs descriptor"),
        ({"format": "python"}, "format python needs function"),
        ({"separator": ";"}, "separator is for format csv, and this one's is json"),
        ({"format": "csv", "fields": ["a", "a"]}, "each needs a name of its own"),
        ({"format": "csv", "fields": ["a"], "elements": "$.x"}, "give $ for a reading on each line"),
        ({"format": "raw", "elements": "$"}, "a raw payload is one value"),
        ({"format": "xml"}, "readings[0].format: Input should be 'json', 'csv'"),
        ({"compression": "lz4"}, "readings[0].compression: Input should be 'gzip' or 'zstd'"),
    ],
)
def test_settings_of_another_form_are_refused(more: Any, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        decoder(**more)
    assert words in str(caught.value)
    assert "(filter a)" in str(caught.value)


def test_a_descriptor_is_a_file_beside_the_rules_and_travels_with_them(tmp_path: Path) -> None:
    (tmp_path / "t.desc").write_bytes(descriptor_set())
    entry = DECODER | {"format": "protobuf", "message": "t.Reading", "descriptor": "t.desc"}
    rules = tmp_path / "rules.yaml"
    rules.write_text(json.dumps({"readings": [entry]}))
    (found,) = load_decoders(rules)
    assert base64.b64decode(found.descriptor_set or "") == descriptor_set()
    assert descriptor_pb2.FileDescriptorSet.FromString(descriptor_set()).file[0].package == "t"
    rules.write_text(json.dumps({"readings": [entry | {"descriptor": "gone.desc"}]}))
    with pytest.raises(ConfigError, match=r"readings\[0\].descriptor: .*gone.desc"):
        load_decoders(rules)
