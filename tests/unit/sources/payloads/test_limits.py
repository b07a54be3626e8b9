from __future__ import annotations

import base64
import itertools
import os
import re
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import cbor2
import psutil
import pytest
from google.protobuf import descriptor_pb2
from hypothesis import given
from hypothesis import strategies as st

from bridge.settings.tables import Decoding
from sources.payloads.documents import json_of
from sources.payloads.limits import check_cbor
from sources.payloads.message import Message
from sources.payloads.process import DecoderProcess, Limits, Unpacked
from sources.payloads.unpacking import unpacker
from tests.support.waiting import poll_for

HERE = Message("a")
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.decimals(allow_nan=False)
    | st.datetimes(timezones=st.timezones()) | st.fractions() | st.uuids(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8) | st.integers(), inner, max_size=4)
    | st.sets(st.integers(), max_size=4),
    max_leaves=10,
)  # fmt: skip


def decoder(**more: Any) -> Decoding:
    return Decoding(filter="a", **more)


def tree_descriptor() -> str:
    """Return the descriptor of ``t.Tree {repeated Tree below = 1; repeated int64 numbers = 2; repeated double d = 3;}``."""
    file = descriptor_pb2.FileDescriptorProto(name="tree.proto", package="t", syntax="proto3")
    message = file.message_type.add(name="Tree")
    kinds = descriptor_pb2.FieldDescriptorProto
    repeated = kinds.LABEL_REPEATED
    message.field.add(name="below", number=1, type=kinds.TYPE_MESSAGE, type_name=".t.Tree", label=repeated)
    message.field.add(name="numbers", number=2, type=kinds.TYPE_INT64, label=repeated)
    message.field.add(name="d", number=3, type=kinds.TYPE_DOUBLE, label=repeated)
    return base64.b64encode(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()).decode()


TREE = {
    "format": "protobuf",
    "message": "t.Tree",
    "descriptor_set": tree_descriptor(),
    "max_size": "8MiB",
}


def bignum(size: int) -> bytes:
    return b"\xc2\x5a" + struct.pack(">I", size) + b"\xff" * size


def colliding(count: int) -> Iterator[bytes]:
    """Yield numbers that all have the hash value 1 in Python."""
    return (b"\xc2\x4a" + (k * (2**61 - 1) + 1).to_bytes(10, "big") for k in range(1, count + 1))


HOSTILE_CBOR: dict[str, tuple[bytes, str]] = {
    "decimal of a long bignum": (b"\xc4\x82\x01" + bignum(1_000_000), "more than 1000 digits"),
    "bignum in pieces": (b"\xc2\x5f\x41\xff\xff", "more than 1000 digits"),
    "decimal with a great exponent": (b"\xc4\x82\x1a\x3b\x9a\xc9\xff\x01", "exponent beyond 1000"),
    "bigfloat": (b"\xc5\x82\x1a\x3b\x9a\xc9\xff\x01", "exponent beyond 1000"),
    "colliding keys": (
        b"\xba" + struct.pack(">I", 50_000) + b"".join(key + b"\x00" for key in colliding(50_000)),
        "more than 256 keys",
    ),
    "colliding elements of a set": (
        b"\xd9\x01\x02\x9a" + struct.pack(">I", 60_000) + b"".join(colliding(60_000)),
        "more than 256 keys",
    ),
    "colliding elements of a set that can be shared": (
        b"\xd9\x01\x02\xd8\x1c\x99\x4e\x20" + b"".join(colliding(20_000)),
        "more than 256 keys",
    ),
    "a set that is no array": (
        b"\x82\xd8\x1c\x83\x00\x01\x02\xd9\x01\x02\xd8\x1d\x00",
        "tag 258, a set, needs an array",
    ),
    "many values": (b"\x9f" + b"\x00" * 1_000_000 + b"\xff", "more values than max_values, 100000"),
    "many tags": (b"\x9f" + b"\xd9\xd9\xf7\x00" * 200_000 + b"\xff", "more values than max_values, 100000"),
    "levels": (b"\x81" * 1_000_000 + b"\x00", "max_depth, 64"),
    "levels of tags": (b"\xc6" * 1_000_000 + b"\x00", "max_depth, 64"),
    "regular expression": (b"\xd8\x23\x69(a+)+(b+)", "tag 35"),
    "length without end": (b"\x5b" + b"\xff" * 8, "premature end"),
    "empty": (b"", "premature end"),
    "size": (bytes(2**20 + 1), "1048577 bytes, max_size is 1048576"),
}


@pytest.mark.parametrize("name", HOSTILE_CBOR)
def test_h37_cbor_that_is_costly_is_refused_before_it_is_parsed(name: str) -> None:
    payload, words = HOSTILE_CBOR[name]
    cpu = time.process_time()
    found = unpacker(decoder(format="cbor"))(payload, HERE)
    assert words in (found.fault or ""), (found.fault, time.process_time() - cpu)


@given(values)
def test_what_a_library_writes_is_within_the_limits(value: object) -> None:
    try:
        payload = cbor2.dumps(value)
    except (cbor2.CBOREncodeError, OverflowError):
        return  # a time zone or a number that CBOR lacks
    check_cbor(payload, max_depth=64, max_values=10_000)


def test_sets_and_decimals_that_are_marked_as_shareable_are_within_the_limits() -> None:
    value = {"elements": {1, 2}, "decimal": Decimal("1.5")}
    found = unpacker(decoder(format="cbor"))(cbor2.dumps(value, value_sharing=True), HERE)
    assert found.document == '{"elements":[1,2],"decimal":"1.5"}'


@given(st.binary(max_size=80))
def test_any_bytes_are_within_the_limits_or_a_value_error(payload: bytes) -> None:
    try:
        check_cbor(payload, max_depth=5, max_values=20)
    except ValueError:
        return
    json_of(None, 100)


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        (b"\x0a\x00" * 2_250_000, "more values than max_values, 100000"),
        (b"\x12" + b"\x80\x80\x40" + b"\x01" * 2**20, "more values than max_values, 100000"),
        (b"\x1a" + b"\x80\x80\x40" + bytes(2**20), "more values than max_values, 100000"),
        (b"\x38\x01" * 200_000, "more values than max_values, 100000"),
        (b"\x0b" * 100_000, "nested deeper than max_depth, 64"),
        (b"\x43" * 100_000, "nested deeper than max_depth, 64"),
        (b"\x0a\x05", "premature end"),
        (b"\x0b", "premature end"),
        (b"\x0c", "not protobuf"),
        (b"\x08" + b"\xff" * 20, "not protobuf"),
    ],
    ids=[
        "empty messages",
        "packed varints",
        "packed doubles",
        "unknown fields",
        "groups",
        "unknown groups",
        "cut message",
        "cut group",
        "end of no group",
        "long varint",
    ],
)
def test_h37_protobuf_that_is_costly_is_refused_before_it_is_parsed(payload: bytes, words: str) -> None:
    assert words in (unpacker(decoder(**TREE))(payload, HERE).fault or "")


def test_protobuf_within_the_limits_is_read() -> None:
    read = unpacker(decoder(**TREE))
    found = read(b"\x0a\x02\x10\x07" + b"\x12\x03\x01\x02\x03" + b"\x43\x08\x01\x44" + b"\x4d\x00\x00\x00\x00", HERE)
    assert found.fault is None
    assert '"numbers":["1","2","3"]' in (found.document or "")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("ä" * 600, "larger than max_size, 1000"),
        ("\x00" * 200, "larger than max_size, 1000"),
        (["😀" * 100] * 4, "larger than max_size, 1000"),
        (b"x" * 999, "larger than max_size, 1000"),
        (1 << 100_000, "more than 1000 digits"),
    ],
    ids=["two bytes", "escapes", "four bytes", "base64", "number"],
)
def test_h37_a_document_is_bounded_in_bytes(value: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        json_of(value, 1000)


def test_h37_values_that_are_shared_count_each_time() -> None:
    shared: object = [None] * 10
    for _ in range(5):
        shared = [shared] * 10
    with pytest.raises(ValueError, match="more values than max_values, 1000"):
        json_of(shared, 10**9, max_values=1000)


# --- a decoder that is stuck ---


def act(payload: bytes, message: Message) -> Unpacked:
    """Do what the payload says; none of the stuck ones lets Python's own signal handlers run."""
    if payload == b"loop in C":
        any(map(bool, itertools.repeat(0)))
    elif payload == b"regular expression":
        re.match(r"(a|a)*$", "a" * 64 + "b")
    elif payload == b"catch all":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            try:
                time.sleep(0.01)
            except BaseException:  # noqa: BLE001
                continue
    elif payload == b"memory":
        return Unpacked(document=str(len([bytes(2**20) for _ in range(10_000)])))
    elif payload == b"grow":
        return Unpacked(document="x" * 2**20)
    elif payload == b"exit":
        os._exit(7)
    elif payload == b"crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif payload == b"sys.exit":
        sys.exit(0)
    return Unpacked(document=payload.decode())


@pytest.fixture
def process() -> Iterator[DecoderProcess]:
    made = DecoderProcess({0: act}, {0: Limits(0.3, 64)})
    yield made
    made.close()


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        (b"loop in C", "takes longer than max_time, 0.3"),
        (b"regular expression", "takes longer than max_time, 0.3"),
        (b"catch all", "takes longer than max_time, 0.3"),
        pytest.param(
            b"memory",
            "max_memory, 64",
            marks=pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits memory"),
        ),
        (b"exit", "exit code 7"),
        (b"crash", "exit code -11"),
        (b"sys.exit", "exit code 0"),
    ],
)  # fmt: skip
def test_h37_a_payload_that_ends_or_blocks_the_decoder_is_a_fault_and_no_other(
    process: DecoderProcess, payload: bytes, words: str
) -> None:
    rows = [(0, b"before", HERE), (0, payload, HERE), (0, b"behind", HERE)]
    before, fault, behind = process.decode(rows)
    assert (before.document, behind.document) == ("before", "behind")
    assert words in (fault.fault or "")
    assert [one.document for one in process.decode([(0, b"next", HERE)])] == ["next"]


def test_healthy_payloads_share_a_process(process: DecoderProcess) -> None:
    for _ in range(3):
        assert [one.document for one in process.decode([(0, b"x", HERE)] * 300)] == ["x"] * 300
    assert process.started == 1


def test_h37_payloads_that_grow_do_not_add_up_to_an_answer_without_a_bound(process: DecoderProcess) -> None:
    found = process.decode([(0, b"grow", HERE)] * 100)
    assert sum(len(one.document or "") for one in found) == 100 * 2**20
    assert process.started == 1  # within its 64 MiB


PARENT = """
import sys
from tests.unit.sources.payloads.test_limits import HERE, act
from sources.payloads.message import Message
from sources.payloads.process import DecoderProcess, Limits
process = DecoderProcess({0: act}, {0: Limits(1.0, 64)})
list(process.decode([(0, b"x", HERE)]))
print("ready", flush=True)
list(process.decode([(0, sys.argv[1].encode(), HERE)]))
sys.stdin.read()
"""


@pytest.mark.parametrize("payload", ["loop in C", "x"])
def test_h37_the_process_ends_when_the_one_that_made_it_was_killed(payload: str) -> None:
    root = Path(__file__).parents[4]
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, payload], cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"ready\n"
        (child,) = psutil.Process(parent.pid).children()
        parent.kill()
    poll_for(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, 60, "the child to end")
