from __future__ import annotations

import base64
import contextlib
import json
import zlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bridge.contract import (
    C_DEVICE,
    C_EXPIRES,
    C_ID,
    C_TOPIC,
    C_VERSION,
    COMMAND_VERSION,
    Receipt,
    decode_correlation,
    decode_ingest,
    decode_user_properties,
)
from bridge.contract.commands import CommandPosition, decode_command
from bridge.contract.cursors import OwnerRecord, read_term
from bridge.contract.decoding import LAST_US, MAX_RECORD_BYTES, json_of_record
from bridge.contract.groups import member_key, member_of
from bridge.contract.presence import PresenceRecord
from bridge.contract.segments import read_segment
from bridge.dead_letters.blocks import _decode as decode_block
from bridge.dead_letters.records import note_of, replayed_note
from bridge.errors import ContractError, RefusedError, TransientError
from bridge.ingest.sessions import read_advertised, stored_sessions
from bridge.protocols.records import InstanceRecord, ProtocolRecord
from bridge.protocols.sharing import Beat
from bridge.pulsar.wire.entry_reader import RawEntry
from bridge.pulsar.wire.protobuf import number, read_varint
from bridge.push.cursor import Cursor
from bridge.push.groups.roster import Roster, owner_of
from bridge.push.segments import Parked
from bridge.settings.pulsar import PulsarSettings
from sources.entries import Opener, open_entry
from sources.retention import SubscriptionRecord


def cursor(payload: bytes) -> object:
    """Decode a cursor and do what a takeover does with it."""
    found = Cursor.decode(payload, 8)
    Parked.loaded({"": found.resend}, found.done)
    return found.encode()


def segment(payload: bytes) -> object:
    found = read_segment(payload)
    return Parked.loaded({"": found.ids}, CommandPosition(-1, -1, -1), found.since_us)


def as_text(decode: Callable[[str], object]) -> Callable[[bytes], object]:
    return lambda payload: decode(payload.decode("utf-8", "replace"))


INSTANCE = InstanceRecord(
    "i", "h", 1, "running", 1, 2, 3.0, {"mqtt": ProtocolRecord("d", ["l"], {"r": True})}, ["t"], 1
)
DECODERS: dict[str, tuple[Callable[[bytes], object], bytes]] = {
    "presence": (PresenceRecord.decode, PresenceRecord(5, "link").encode()),
    "cursor": (cursor, Cursor(8, CommandPosition(3, 7, -1)).encode()),
    "ids": (lambda body: Cursor(8).with_ids(body), b'{"v":2,"ids":"AAAAAAAAAAAA","days":[1,20000]}'),
    "owner": (OwnerRecord.decode, OwnerRecord("us", 3, clean=True).encode()),
    "term": (read_term, b'{"v":1,"term":1,"secret":"%s"}' % (b"00" * 32)),
    "segment": (segment, b'{"v":1,"parked":[1,2,-1,0,1],"places":[4,5,-1],"since_us":7}'),
    "instance": (InstanceRecord.decode, INSTANCE.encode()),
    "beat": (as_text(Beat.decode), Beat(frozenset({0, 1}), frozenset({-1})).encode().encode()),
    "receipt": (Receipt.decode, Receipt("c", "d", "t", "answered", answer=b"x").encode()),
    "member": (lambda body: member_of(member_key("g", "d"), body), b'{"v":1}'),
    "member key": (as_text(lambda key: member_of(key, b'{"v":1}')), member_key("g", "d").encode()),
    "roster": (lambda body: Roster().take('["progress"]', body), b'{"v":1,"o":"x","done":[1,2,-1],"at":[-1,-1,-1],"after":""}'),
    "roster open": (lambda body: Roster().take('["open",1,2,-1]', body), b'{"v":1,"o":"x","command_id":"c","group":"g","mqtt_topic":"","size":1}'),
    "roster left": (lambda body: Roster().take('["member","g","d"]', body), b'{"v":1,"o":"x","left":[1,2,-1]}'),
    "roster key": (as_text(lambda key: Roster().take(key, b'{"v":1,"o":"x"}')), b'["group","g"]'),
    "roster owner": (lambda body: owner_of('["owner"]', body), b'{"v":1,"o":"x"}'),
    "block": (as_text(lambda body: decode_block("0.c", body)), b'{"state":"drained","since_us":1,"why":""}'),
    "note": (lambda body: note_of(replayed_note([])[1], body), b'["1:2:3"]'),
    "hold": (as_text(lambda body: SubscriptionRecord.decode({"pulsebridge.retention": body})), b'{"startingOffsets":"earliest","start":[1,2],"committed":true}'),
    "ingest": (as_text(decode_ingest), b'{"v":"1","link":"l"}'),
    "user properties": (as_text(decode_user_properties), b'[["a","b"]]'),
    "correlation": (as_text(decode_correlation), base64.b64encode(b"x")),
}  # fmt: skip

HUGE = [
    1e999,
    2**63,
    -(2**63) - 1,
    10**400,
    2**31,
    -1,
    True,
    None,
    "",
    "1",
    [],
    {},
    [[]],
    0.5,
    "\ud800",
    [1] * 5,
]


@pytest.mark.parametrize("name", DECODERS)
@given(st.data())
def test_h44_any_bytes_are_a_record_or_a_contract_error(name: str, data: st.DataObject) -> None:
    decode, valid = DECODERS[name]
    kind = data.draw(st.sampled_from(["bytes", "json", "value", "cut"]))
    payload = valid
    if kind == "bytes":
        payload = data.draw(st.binary(max_size=60))
    elif kind == "json":
        payload = json.dumps(data.draw(json_values)).encode()
    elif kind == "cut":
        payload = valid[: data.draw(st.integers(0, len(valid)))]
    else:
        payload = _with_another_value(valid, data)
    with contextlib.suppress(ContractError):
        decode(payload)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.sampled_from(["v", "ids", "position", "o"]), inner),
    max_leaves=8,
)  # fmt: skip


def _with_another_value(valid: bytes, data: st.DataObject) -> bytes:
    try:
        body: Any = json.loads(valid)
    except ValueError:
        return valid
    here = body
    while isinstance(here, (dict, list)) and here:
        places = list(here) if isinstance(here, dict) else list(range(len(here)))
        place = data.draw(st.sampled_from(places))
        if not isinstance(here[place], (dict, list)) or not here[place] or data.draw(st.booleans()):
            here[place] = data.draw(st.sampled_from(HUGE))
            break
        here = here[place]
    return json.dumps(body).encode()


@pytest.mark.parametrize("name", DECODERS)
def test_what_is_valid_is_read(name: str) -> None:
    decode, valid = DECODERS[name]
    decode(valid)


@pytest.mark.parametrize(
    ("name", "payload"),
    [
        ("presence", b'{"v":1,"seen_us":1e999}'),
        ("presence", b'{"v":1,"seen_us":%d}' % (LAST_US + 1)),
        ("cursor", b'{"v":2,"ids":"","position":[1e999,0,0]}'),
        ("cursor", b'{"v":2,"ids":"","position":[0,0,0],"again":[0,0,0,99999999999999999999]}'),
        ("cursor", b'{"v":2,"ids":"","position":[0,0,0],"lately":[%s]}' % b",".join([b"9223372036854775807"] * 10)),
        ("cursor", b'{"v":2,"ids":"AAAAAAAAAAAA","days":[9999999999999,1],"position":[0,0,0]}'),
        ("owner", b'{"v":1,"owner":"x","serial":[]}'),
        ("owner", b'{"v":1,"owner":"x","serial":1e999}'),
        ("segment", b'{"v":1,"parked":[99999999999999999999,0,0,0,0]}'),
        ("segment", b'{"v":1,"parked":[1e999,0,0,0,0]}'),
        ("segment", b'{"v":1,"parked":[0,0,4294967296,0,0]}'),
        ("instance", INSTANCE.encode().replace(b'"written_ms":2', b'"written_ms":1e999')),
        ("instance", INSTANCE.encode().replace(b'"interval_s":3.0', b'"interval_s":1e999')),
        ("instance", INSTANCE.encode().replace(b'"interval_s":3.0', b'"interval_s":"nan"')),
        ("instance", INSTANCE.encode().replace(b'"interval_s":3.0', b'"interval_s":true')),
        ("instance", b"[" * 100_000),
        ("receipt", b'{"v":"1","command_id":1,"device":"","mqtt_topic":"","state":""}'),
        ("roster open", b'{"v":1,"o":"x","command_id":"c","group":"g","mqtt_topic":"","size":1,"expires_at_ms":"x"}'),
        ("hold", b'{"startingOffsets":"earliest","start":[1e999,2],"committed":true}'),
        ("ingest", b'{"v":"1","link":["l"]}'),
        ("block", b'{"state":"drained","since_us":1e999,"why":""}'),
    ],
)  # fmt: skip
def test_h44_what_would_raise_later_is_a_contract_error(name: str, payload: bytes) -> None:
    with pytest.raises(ContractError):
        DECODERS[name][0](payload)


SESSION = '{"family":"f","granted":{"a/#":%s},"released":[]}'


@pytest.mark.parametrize("text", ["", "[" * 100_000, "[]", SESSION % "1e999", SESSION % '"1"', SESSION % "NaN"])
def test_h44_a_session_of_ingest_that_cannot_be_read_counts_as_unknown(text: str) -> None:
    stored = {"good": SESSION % "1", "bad": text}
    admin: Any = SimpleNamespace(settings=PulsarSettings(), properties=lambda _topic, _prefix: stored)
    assert {name: session.granted for name, session in stored_sessions(admin).items()} == {"good": {"a/#": 1}}
    assert read_advertised('{"l":{"broker":"b","client_id":"c"}}') == {("b", "c")}
    assert read_advertised(text) == set()


def test_h44_a_record_is_bounded_before_it_is_parsed() -> None:
    with pytest.raises(ValueError, match=f"at most {MAX_RECORD_BYTES}"):
        json_of_record(b" " * (MAX_RECORD_BYTES + 1))


@given(st.text(max_size=30))
@example("9" * 5000)
@example("99999999999999999999")
def test_h44_a_command_has_numbers_of_64_bits(number_text: str) -> None:
    properties = {C_VERSION: COMMAND_VERSION, C_ID: "c", C_DEVICE: "d", C_TOPIC: "t", C_EXPIRES: number_text}
    with contextlib.suppress(ContractError):
        assert abs(decode_command(properties, b"").expires_at_ms) < 2**63


# --- Pulsar's entries ---


def entry(metadata: bytes, body: bytes) -> RawEntry:
    return RawEntry(1, 2, len(metadata).to_bytes(4, "big") + metadata + body)


@pytest.mark.parametrize("compression", [1, 2, 3, 4])
@pytest.mark.parametrize("size", [2**40, 2**63 - 1, 2**32 - 1])
def test_h44_an_entry_that_names_a_size_beyond_memory_is_an_error_of_ours(compression: int, size: int) -> None:
    opened = open_entry(entry(number(8, compression) + number(9, size), b"x" * 20), "p")
    with pytest.raises(ContractError, match="cannot be decompressed"):
        Opener().add(opened)


@pytest.mark.parametrize(
    ("named", "kept"), [(10, None), (50_000_001, None), (50_000_000, -8)], ids=["less", "more", "cut"]
)
def test_h44_an_entry_that_does_not_expand_to_the_size_that_it_names_is_no_payload(
    named: int, kept: int | None
) -> None:
    body = zlib.compress(bytes(50_000_000))[:kept]
    with pytest.raises(ContractError, match=f"does not expand to {named} bytes"):
        Opener().add(open_entry(entry(number(8, 2) + number(9, named), body), "p"))


@pytest.mark.parametrize(("compression", "codec"), [(1, "lz4_raw"), (3, "zstd"), (4, "snappy")])
@pytest.mark.parametrize("named", [299, 301, 10_000])
def test_h44_no_byte_of_memory_fills_an_entry_that_names_a_wrong_size(compression: int, codec: str, named: int) -> None:
    body = pa.compress(bytes(100) + bytes(range(200)), codec=codec, asbytes=True)
    with pytest.raises(ContractError, match="cannot be decompressed"):
        Opener().add(open_entry(entry(number(8, compression) + number(9, named), body), "p"))
    Opener().add(open_entry(entry(number(8, compression) + number(9, 300), body), "p"))


def test_h44_a_number_without_end_costs_nothing() -> None:
    with pytest.raises(ValueError, match="more than ten bytes"):
        read_varint(b"\xff" * 1_000_000, 0)


@given(st.binary(max_size=60), st.binary(max_size=60), st.booleans())
def test_h44_any_entry_gives_rows_or_an_error_of_ours(metadata: bytes, body: bytes, batched: bool) -> None:
    metadata += number(11, 2) if batched else b""
    opener = Opener()
    with contextlib.suppress(ContractError, TransientError, RefusedError):
        opener.add(open_entry(entry(metadata, body), "p"))


@pytest.mark.parametrize("field", [3, 12])
def test_h44_a_time_that_spark_lacks_is_none(field: int) -> None:
    opener = Opener()
    opener.add(open_entry(entry(number(field, 2**64 - 1), b"x"), "p"))
    assert (opener.rows.entries[0].publish_ms, opener.rows.events) == (0, [0])


def test_a_block_that_cannot_be_read_names_its_property_and_the_remedy() -> None:
    with pytest.raises(ContractError, match=r"property pulsebridge\.blocked\.0\.c .*remove-properties"):
        decode_block("0.c", "x")
