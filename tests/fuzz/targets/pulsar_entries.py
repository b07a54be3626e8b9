"""Entries of a topic: batches, compressed or not, whose sizes lie; then an honest one by the same reader."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pyarrow as pa
from google_crc32c import value as crc32c
from hypothesis import strategies as st

from bridge.contract import P_INGEST
from bridge.errors import ContractError, RefusedError, TransientError
from bridge.pulsar.wire.entry_reader import RawEntry
from bridge.pulsar.wire.protobuf import number, text
from pulsebridge.audit.live.entries import Messages, Unread
from sources.entries import Opener, joined, message_id, open_entry
from tests.fuzz.engine import Case, Check, Target

__all__ = ["PULSAR_ENTRIES"]

_CODECS: Final = {1: "lz4_raw", 3: "zstd", 4: "snappy"}
_LONG_NUMBER: Final = b"\x80" * 30_000

_data = st.binary(max_size=16) | st.sampled_from([b"", b"\xff\xfe", b"\x80" * 11, "é\ufeff\0".encode(), _LONG_NUMBER])
_sizes = st.sampled_from([0, 1, 127, 128, 2**31 - 1, 2**31, 2**40, 2**63 - 1, 2**63, 2**64 - 1]) | st.integers(0, 300)
_messages = st.fixed_dictionaries(
    {"payload": _data},
    optional={
        "properties": st.lists(st.tuples(_data | st.just(P_INGEST.encode()), _data), max_size=2),
        "key": _data,
        "size": _sizes,
        "metadata_size": _sizes,
        "tail": st.lists(st.tuples(st.integers(1, 12), _sizes | _data), max_size=3),
        "front": st.binary(max_size=3),
    },
)
_cases = st.fixed_dictionaries(
    {
        "messages": st.lists(_messages, max_size=4),
        "compression": st.sampled_from([0, 0, 0, 1, 2, 3, 4, 5, 2**40]),
        "batched": st.booleans(),
    },
    optional={
        "times": st.just(30),
        "zeros": st.sampled_from([1000, 1_000_000]),
        "count": _sizes,
        "uncompressed": _sizes,
        "chunk": st.tuples(_sizes, _sizes, st.integers(0, 3)),
        "metadata": st.lists(st.tuples(st.integers(1, 40), _sizes | _data), max_size=4),
        "metadata_size": _sizes,
        "checksum": st.booleans(),
        "damage": st.lists(st.tuples(st.integers(0, 120), st.integers(0, 3), st.binary(max_size=4)), max_size=3),
        "cut": st.integers(0, 60),
    },
)


def _size(value: int) -> bytes:
    return (value % 2**32).to_bytes(4, "big")


def _fields(some: Any) -> bytes:
    return b"".join(text(n, one) if isinstance(one, bytes) else number(n, one) for n, one in some)


def _batch(messages: Any) -> bytes:
    found = b""
    for one in messages:
        metadata = one.get("front", b"") + b"".join(
            text(1, text(1, n) + text(2, v)) for n, v in one.get("properties", ())
        )
        if "key" in one:
            metadata += text(2, one["key"])
        metadata += number(3, one.get("size", len(one["payload"]))) + _fields(one.get("tail", ()))
        found += _size(one.get("metadata_size", len(metadata))) + metadata + one["payload"]
    return found


def _compressed(body: bytes, kind: int) -> bytes:
    if kind == 2:
        return zlib.compress(body)
    return bytes(pa.compress(body, codec=_CODECS[kind], asbytes=True)) if kind in _CODECS and body else body


def _entry(case: Case) -> bytes:
    messages = case["messages"] * case.get("times", 1)
    body = _batch(messages) if case["batched"] else b"".join(one["payload"] for one in messages)
    body += b"\0" * case.get("zeros", 0)
    metadata = text(1, b"p") + number(2, 0) + number(3, 1_700_000_000_000)
    if case["compression"]:
        metadata += number(8, case["compression"]) + number(9, case.get("uncompressed", len(body)))
    if case["batched"]:
        metadata += number(11, case.get("count", len(messages)))
    if "chunk" in case:
        chunk, total, _ = case["chunk"]
        metadata += text(26, b"u") + number(27, total) + number(29, chunk)
    metadata += _fields(case.get("metadata", ()))
    found = bytearray(
        _size(case.get("metadata_size", len(metadata))) + metadata + _compressed(body, case["compression"])
    )
    for at, size, more in case.get("damage", ()):
        at = min(at, len(found))
        found[at : at + size] = more
    data = bytes(found)[: len(found) - case.get("cut", 0)]
    return b"\x0e\x01" + crc32c(data).to_bytes(4, "big") + data if case.get("checksum") else data


_HONEST: Final = {
    "messages": [{"payload": b"good", "key": b"k", "properties": [(b"n", b"v")]}],
    "compression": 0,
    "batched": True,
}


def _check_audit(entry: bytes) -> list[bytes] | None:
    """Return the payloads that the audit reads, None if it leaves the entry to Pulsar's client."""
    messages = Messages()
    try:
        count = messages.add(RawEntry(3, 4, entry), 1 << 80)
        found = messages.columns()
    except Unread:
        return None
    assert count is not None
    assert all(len(column) == len(found.us) for name, column in found._asdict().items() if name != "kinds")
    return found.payloads.all


def _check(case: Case) -> None:
    audited = _check_audit(_entry(case))
    opener = Opener()
    try:
        opened = open_entry(RawEntry(3, 4, _entry(case)), "p")
        if "chunk" in case:
            opened = joined([opened] * (1 + case["chunk"][2]))
        count = opener.add(opened)
    except (ContractError, TransientError, RefusedError):
        pass  # it left no rows
    else:
        rows = opener.flush()
        assert count == len(rows.payloads) == len(rows.kind_of) == len(rows.events)
        assert len(list(rows.stored_payloads())) == count
        for one in rows.entries:
            message_id(one, 0)
        if audited is not None and not case.keys() & {
            "chunk",
            "uncompressed",
        }:  # Arrow leaves bytes undefined of a false size
            assert audited == [payload or b"" for payload in rows.payloads]
    assert opener.add(open_entry(RawEntry(3, 5, _entry(_HONEST)), "p")) == 1
    rows = opener.flush()
    assert rows.payloads == [b"good"]
    assert [(k.key, k.properties) for k in (rows.kinds[at] for at in rows.kind_of)] == [(b"k", {"n": "v"})]


@contextmanager
def _opened() -> Iterator[Check]:
    yield _check


PULSAR_ENTRIES: Final = Target(
    "pulsar_entries",
    "An entry gives rows or one of the two declared errors, in bounded time and memory, and the next entry is read as it is. The audit reads the same, or nothing.",
    lambda: _cases,
    _opened,
    examples=150,
)
