"""What instances tell of themselves: whatever is written is read back, anything else is refused in one way."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.errors import ContractError
from bridge.protocols.records import BEATS, InstanceRecord, ProtocolRecord, bounded_topics

PROTOCOLS = st.dictionaries(
    st.text(max_size=9),
    st.builds(
        ProtocolRecord,
        data=st.text(max_size=30),
        listeners=st.lists(st.text(max_size=20), max_size=2),
        ready=st.dictionaries(st.text(max_size=5), st.booleans(), max_size=2),
    ),
    max_size=3,
)
RECORDS = st.builds(
    InstanceRecord,
    instance=st.text(max_size=9),
    host=st.text(max_size=9),
    pid=st.integers(1, 1 << 22),
    state=st.sampled_from(["starting", "running", "stopping"]),
    started_ms=st.integers(0, 253_402_300_799_999),
    written_ms=st.integers(0, 253_402_300_799_999),
    interval_s=st.floats(0.1, 1000),
    protocols=PROTOCOLS,
    topics=st.lists(st.text(max_size=9), max_size=3),
    topics_count=st.integers(0, 10_000),
)


@given(record=RECORDS)
def test_a_record_is_read_back_as_it_was_written(record: InstanceRecord) -> None:
    assert InstanceRecord.decode(record.encode()) == record


@given(record=RECORDS, late=st.integers(1, 10_000))
def test_an_instance_is_gone_after_four_intervals_of_silence(record: InstanceRecord, late: int) -> None:
    limit = record.written_ms + int(BEATS * record.interval_s * 1000)
    assert not record.gone(limit)
    assert record.gone(limit + late)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"{",
        b"[]",
        b'{"v": 2}',
        b'{"v": 1}',
        b'{"v": 1, "protocols": {"a": {"data": "", "more": 1}}}',
        b"\xff",
    ],
)
def test_anything_else_is_no_record(payload: bytes) -> None:
    with pytest.raises(ContractError):
        InstanceRecord.decode(payload)


@given(record=RECORDS, name=st.sampled_from(["instance", "pid", "protocols", "written_ms", "interval_s"]))
def test_a_record_that_lacks_a_field_is_refused(record: InstanceRecord, name: str) -> None:
    body = json.loads(record.encode())
    del body[name]
    with pytest.raises(ContractError):
        InstanceRecord.decode(json.dumps(body).encode())


def test_the_topics_of_a_record_are_bounded_and_counted() -> None:
    names, count = bounded_topics(f"t{n:04}" for n in [*range(999), 1, 2])
    assert (len(names), names[0], count) == (200, "t0000", 999)
