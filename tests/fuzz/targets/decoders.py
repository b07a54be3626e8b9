"""Payloads into decoders, in Python alone: compressed, CBOR, protobuf."""

from __future__ import annotations

import base64
import gzip
import io
import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import cbor2
import zstandard
from google.protobuf import descriptor_pb2
from hypothesis import strategies as st

from bridge.pulsar.wire.protobuf import number, text, varint
from bridge.settings.tables import Decoding
from sources.payloads.message import Message
from sources.payloads.unpacking import unpacker
from tests.fuzz.engine import Case, Check, Target

__all__ = ["DECODERS"]

_MOST: Final = 20_000
"""``max_size`` of the decoders."""
_USED: Final = {"filter": "#", "max_size": f"{_MOST}B"}


def _descriptor() -> str:
    file = descriptor_pb2.FileDescriptorSet()
    one = file.file.add(name="r.proto", package="f", syntax="proto3")
    message = one.message_type.add(name="R")
    kinds = descriptor_pb2.FieldDescriptorProto
    for n, (name, kind) in enumerate(
        [
            ("v", kinds.TYPE_DOUBLE),
            ("n", kinds.TYPE_INT64),
            ("t", kinds.TYPE_STRING),
            ("b", kinds.TYPE_BYTES),
        ],
        1,
    ):
        message.field.add(name=name, number=n, type=kind, label=kinds.LABEL_OPTIONAL)
    message.field.add(name="r", number=5, type=kinds.TYPE_MESSAGE, type_name=".f.R", label=kinds.LABEL_REPEATED)
    message.field.add(name="many", number=6, type=kinds.TYPE_INT64, label=kinds.LABEL_REPEATED)
    return base64.b64encode(file.SerializeToString()).decode()


_values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**70), 2**70),
        st.floats(),
        st.text(max_size=6),
        st.binary(max_size=6),
        st.sampled_from(["\ufeff", "\0", "x" * 300]),
    ),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=4),
    max_leaves=12,
)


def _head(kind: int, size: int) -> bytes:
    return bytes([kind << 5 | 27]) + size.to_bytes(8, "big")


_cbor = st.one_of(
    _values.map(cbor2.dumps),
    st.binary(max_size=30),
    # sizes that lie, nesting, decimals and fractions of large numbers, shared values, tags of every kind
    st.tuples(st.integers(0, 7), st.sampled_from([0, 2**16, 2**31, 2**63 - 1, 2**64 - 1])).map(lambda one: _head(*one)),
    st.tuples(st.sampled_from([b"\x81", b"\x9f", b"\xa1\x61a", b"\xc6", b"\xd8\x1c\x81"]), st.sampled_from([10, 300, 5000])).map(lambda one: one[0] * one[1]),
    st.tuples(st.sampled_from(["decimal", "power", "fraction", "colliding"]), st.sampled_from([10, 1000, 1000, 100_000])),
    st.tuples(st.sampled_from([0, 1, 2, 3, 4, 5, 25, 28, 29, 30, 35, 36, 37, 100, 256, 258, 260, 261, 1004, 43000, 55799, 2**64 - 1]), _values).map(lambda one: _head(6, one[0]) + cbor2.dumps(one[1])),
    st.integers(1, 26).map(lambda n: _shared(n)),
)  # fmt: skip


def _shared(levels: int) -> bytes:
    """A document that refers to itself twice at each level: small here, endless when it is written out."""
    value: Any = ["x"]
    for _ in range(levels):
        value = [value, value]
    made = io.BytesIO()
    cbor2.CBOREncoder(made, value_sharing=True).encode(value)
    return made.getvalue()


@st.composite
def _protobuf(draw: st.DrawFn) -> Any:
    if draw(st.integers(0, 9)) == 0:
        return "empty messages", draw(st.sampled_from([10, 1000, 300_000]))
    found = b""
    for n, kind, value in draw(
        st.lists(st.tuples(st.integers(0, 9), st.integers(0, 7), st.binary(max_size=10)), max_size=5)
    ):
        found += varint(n << 3 | kind) + (varint(len(value)) if kind == 2 else b"") + value
    if draw(st.booleans()):
        found += draw(
            st.sampled_from([b"\x2a\x00", text(2, b"x"), number(6, 1), b"\x33", number(99, 1), text(98, b"y")])
        ) * draw(st.sampled_from([1, 100, 3000]))
    depth = draw(st.sampled_from([0, 0, 5, 150]))
    for _ in range(depth):
        found = text(5, found)
    return found


_json = st.one_of(
    _values.map(lambda one: json.dumps(_plain(one)).encode()),
    st.sampled_from(
        [
            b"[" * 5000,
            b'{"a":' * 2000,
            b"9" * 6000,
            b"1e999999999",
            b'{"v":NaN}',
            b"\xef\xbb\xbf{}",
            b'"\\ud800"',
            b"\0",
        ]
    ),
    st.binary(max_size=20),
)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return value.hex() if isinstance(value, bytes) else value


@st.composite
def _cases(draw: st.DrawFn) -> Case:
    form = draw(st.sampled_from(["cbor", "cbor", "protobuf", "json", "csv", "raw"]))
    payload = draw({"cbor": _cbor, "protobuf": _protobuf()}.get(form, _json))
    compression = draw(st.sampled_from([None, None, "gzip", "zstd"]))
    zeros = draw(st.sampled_from([0, 0, 0, _MOST, 500_000]))
    lies = draw(st.sampled_from([None, None, "cut", "damage", "double", "raw"]))
    damage = draw(st.tuples(st.integers(0, 40), st.binary(max_size=3)))
    return form, compression, payload, zeros, lies, damage


def _large(kind: str, n: int) -> bytes:
    """A payload of about ``n`` bytes or parts that costs far more to decode than to send."""
    number_ = b"\xc2" + _head(2, n) + b"\xff" * n
    if kind == "decimal":
        return b"\xc4\x82\x00" + number_
    if kind == "power":
        return b"\xc4\x82\x1b" + b"\xff" * 8 + number_
    if kind == "fraction":
        return b"\xd8\x1e\x82" + number_ + b"\x03"
    if kind == "colliding":
        return _head(5, n) + b"".join(
            b"\x1b" + (k * (2**61 - 1) % 2**64).to_bytes(8, "big") + b"\x00" for k in range(n)
        )
    return text(5, b"") * n


def _payload(case: Case) -> bytes:
    _, compression, payload, zeros, lies, (at, more) = case
    payload = _large(*payload) if isinstance(payload, tuple) else payload
    payload += b"\0" * zeros
    if compression == "gzip" and lies != "raw":
        payload = gzip.compress(payload, 1, mtime=0) if lies != "damage" else zlib.compress(payload, wbits=31)
    elif compression == "zstd" and lies != "raw":
        payload = zstandard.ZstdCompressor().compress(payload)
    if lies == "cut":
        payload = payload[: len(payload) // 2]
    elif lies == "double":
        payload *= 2
    elif lies == "damage":
        payload = payload[:at] + more + payload[at + len(more) :]
    return payload


class _World:
    def __init__(self) -> None:
        self._unpackers: dict[tuple[str, str | None], Any] = {}
        self._descriptor = _descriptor()

    def check(self, case: Case) -> None:
        form, compression = case[:2]
        unpack = self._unpackers.get((form, compression))
        if unpack is None:
            unpack = self._unpackers[form, compression] = unpacker(self._decoder(form, compression))
        found = unpack(_payload(case), Message("a/b"))
        given = [one for one in found[:3] if one is not None]
        assert len(given) == 1, f"{len(given)} outcomes"
        if found.document is not None:
            assert len(found.document.encode()) <= _MOST, f"a document of {len(found.document.encode())} bytes"
            json.loads(found.document)
        if found.body is not None and compression is not None:
            assert len(found.body) <= _MOST
        if found.fault is not None:
            found.fault.encode()

    def _decoder(self, form: str, compression: str | None) -> Decoding:
        options: dict[str, Any] = {**_USED, "format": form, "compression": compression}
        if form == "protobuf":
            options |= {"descriptor_set": self._descriptor, "message": "f.R"}
        if form == "csv":
            options |= {"fields": "v string, t string"}
        if form == "raw":
            options |= {"fields": "v string"}
        return Decoding(**options)


@contextmanager
def _opened() -> Iterator[Check]:
    yield _World().check


DECODERS: Final = Target(
    "decoders",
    "A payload gives a body, a document within max_size, or the reason for quarantine, in bounded time and memory.",
    _cases,
    _opened,
    examples=250,
)
