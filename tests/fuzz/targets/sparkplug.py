"""Topics and payloads of edge nodes into rows of metrics and events."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
from hypothesis import strategies as st

from bridge.pulsar.wire.protobuf import number, text, varint
from sparkplug.nodes import Births, NodeState
from sparkplug.processor import EventProcessor, MetricProcessor, Processor, unpacked
from sparkplug.rows import EVENT_ROW, Message, event_rows, metric_rows
from tests.fuzz.engine import Case, Check, Target

__all__ = ["SPARKPLUG"]

_EVERY_US: Final = 60_000_000
_NUMBERS: Final = st.sampled_from([0, 1, 2, 127, 128, 255, 256, 2**31, 2**32 - 1, 2**53, 2**63 - 1, 2**63, 2**64 - 1])
_BYTES: Final = st.sampled_from([b"", b"\0", b"\xff", b"bdSeq", b"a", b"b\0", b"\xed\xa0\x80", b"\x0c\0\0\x004\xd0", bytes(1000)]) | st.binary(max_size=12)  # fmt: skip
_FLOATS: Final = st.sampled_from([b"\0\0\xc0\x7f", b"\0\0\x80\x7f", b"\0\0\x80\xff", b"\0\0\0\0", b"\xff\xff\xff\xff"])


def _value(below: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """Return the fields of a metric's value: numbers, text, bytes, a DataSet, a Template."""
    return st.one_of(
        st.tuples(st.sampled_from([10, 11, 14]), _NUMBERS).map(lambda one: number(*one)),
        _FLOATS.map(lambda one: varint(12 << 3 | 5) + one),
        _FLOATS.map(lambda one: varint(13 << 3 | 1) + one + one),
        st.tuples(st.sampled_from([15, 16]), _BYTES).map(lambda one: text(*one)),
        st.lists(st.tuples(st.integers(1, 4), _BYTES)).map(lambda all_: text(17, b"".join(text(*one) for one in all_))),
        below.map(lambda one: text(18, text(2, one))),
        st.lists(st.tuples(st.integers(1, 5), _BYTES)).map(lambda all_: text(18, b"".join(text(*one) for one in all_))),
        _BYTES.map(lambda one: text(9, text(1, one) + text(2, number(1, 3) + number(3, 5)))),
        _BYTES.map(lambda one: text(8, text(6, one) + number(3, 2**64 - 1))),
        st.just(b""),
    )


_metric: Final = st.recursive(
    st.lists(st.tuples(st.integers(2, 7), _NUMBERS).map(lambda one: number(*one)), max_size=4).map(b"".join),
    lambda inner: st.tuples(
        st.lists(st.tuples(st.integers(2, 7), _NUMBERS).map(lambda one: number(*one)), max_size=4).map(b"".join),
        st.integers(0, 36).map(lambda kind: number(4, kind)),
        _BYTES.map(lambda one: text(1, one)),
        _value(inner),
    ).map(b"".join),
    max_leaves=4,
)
_payload: Final = st.one_of(
    st.binary(max_size=40),
    st.tuples(
        st.none() | _NUMBERS, st.none() | _NUMBERS, st.lists(_metric, max_size=4), st.sampled_from([0, 0, 0, 1, 3])
    ).map(lambda one: _made(*one)),
    st.sampled_from([(b"\x12\x00", 600_000), (b"\x92\x01\x02\x12\x00", 100_000), (b"\xff", 100)]).map(lambda one: one[0] * one[1]),
)  # fmt: skip


def _made(at: int | None, seq: int | None, metrics: list[bytes], cut: int) -> bytes:
    made = b"" if at is None else number(1, at)
    made += b"" if seq is None else number(3, seq)
    made += b"".join(text(2, one) for one in metrics)
    return made[: len(made) - cut]


def _cases() -> st.SearchStrategy[Case]:
    kinds = st.sampled_from(["NBIRTH", "NDATA", "NDEATH", "NCMD", "DBIRTH/N", "DDATA/N", "DDEATH/N", "STATE"])
    topic = st.tuples(kinds, st.sampled_from(["N", "D", "N/D", "\0", "ü/\udcff", ""])).map(
        lambda one: f"spBv1.0/G/{one[0]}/{one[1]}"
    )
    return st.lists(st.tuples(topic, _payload), max_size=5)


_METRICS: Final = MetricProcessor(_EVERY_US)
_EVENTS: Final = EventProcessor(_EVERY_US)
_TOPIC: Final = [name for name, _ in EVENT_ROW].index("mqtt_topic")


def _check(case: Case) -> None:
    messages = [Message(1, n, 0, "t", 0, topic, payload, n) for n, (topic, payload) in enumerate(case)]
    state, stored, cut, of_events = NodeState(), dict[str, str](), NodeState(), NodeState()
    rows = list(metric_rows(state, Births(stored), messages, _EVERY_US))
    _check_rows(_METRICS, rows)
    _check_rows(_EVENTS, list(event_rows(of_events, messages, _EVERY_US)))
    again: list[Any] = []
    kept: dict[str, str] = {}
    for message in messages:
        again += metric_rows(cut, Births(kept), [message], _EVERY_US)
        cut = NodeState.of_json(cut.to_json())
    assert repr(again) == repr(rows), "the rows depend on where the messages are cut"
    assert len(state.to_json()) < 2_000_000


def _check_rows(processor: Processor, rows: list[tuple[Any, ...]]) -> None:
    """Check that the columns of the tables take the rows as they are."""
    rows = [row for row in rows if "\udcff" not in row[_TOPIC]]  # Spark gives no such text
    packed = pa.RecordBatch.from_pydict({"packed": [pickle.dumps(rows)]})
    made = [row for batch in unpacked(processor)([packed]) for row in batch.to_pylist()]
    given = [
        {
            name: Decimal(value) if kind == "decimal(20,0)" and value is not None else value
            for (name, kind), value in zip(processor.columns, row, strict=True)
        }
        for row in rows
    ]
    assert repr(made) == repr(given), "the columns do not give the rows back"
    for row in made:
        for name in {"json", "properties", "metadata"} & row.keys():
            if row[name] is not None:
                json.loads(row[name])


@contextmanager
def _opened() -> Iterator[Check]:
    yield _check


SPARKPLUG: Final = Target(
    "sparkplug",
    "Messages of edge nodes give rows of the tables' types or faults, whatever they are and wherever they are cut.",
    _cases,
    _opened,
    examples=200,
)
