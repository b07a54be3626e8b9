"""Entries as ingest and Pulsar's client write them, decoded without a server."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from google_crc32c import value as crc32c
from hypothesis import given
from hypothesis import strategies as st

from bridge.contract import P_INGEST, P_REPLAYED, P_RULE, P_TOPIC, encode_ingest
from bridge.pulsar.wire.batches import encode, head_of
from bridge.pulsar.wire.entry_reader import RawEntry
from bridge.pulsar.wire.protobuf import number, text
from bridge.settings.pulsar import PulsarSettings
from pulsebridge.audit.live.entries import Messages, Unread
from pulsebridge.audit.live.log import LogReader, NumberFields
from pulsebridge.audit.live.sequence import Sequences

FOREVER = 1 << 62
Written = tuple[int, bytes, int]
"""Device, payload and event time of a message."""
PAYLOADS = st.binary(max_size=300) | st.just(text(1, P_INGEST.encode()))
FEW = st.lists(st.tuples(st.integers(0, 200), PAYLOADS, st.integers(0, 1 << 47)), min_size=1, max_size=16)
MESSAGES = st.builds(lambda some, times: some * times, FEW, st.sampled_from([1, 60]))
"""The places of many messages are guessed. A batch of ingest has at most 1000."""


def head(device: int) -> bytes:
    properties = {P_INGEST: encode_ingest(link="l", protocol="5", rule="r", device=f"d{device}"), P_TOPIC: "t" * device}
    return head_of(f"d{device}", properties)


def entry_of_ingest(messages: list[Written]) -> RawEntry:
    outgoing = [SimpleNamespace(payload=payload, head=head(of), event_ms=at) for of, payload, at in messages]
    (batch,) = encode(outgoing, producer=1, name=b"p", sequence=7, publish_ms=1_700_000_000_000)
    return RawEntry(5, 6, batch.frame[batch.frame.index(b"\x0e\x01") :])


def entry_of_client(messages: list[Written], *more: bytes) -> RawEntry:
    """Pulsar's client adds sequence ids."""
    body = b""
    for n, (of, payload, at) in enumerate(messages):
        metadata = head(of) + number(3, len(payload)) + (number(5, at) if at else b"") + number(8, n * 50)
        body += len(metadata).to_bytes(4, "big") + metadata + payload
    metadata = text(1, b"p") + number(3, 1_700_000_000_000) + number(11, len(messages)) + b"".join(more)
    data = len(metadata).to_bytes(4, "big") + metadata + body
    return RawEntry(5, 6, b"\x0e\x01" + crc32c(data).to_bytes(4, "big") + data)


def batch_of(body: bytes, count: int = 1) -> RawEntry:
    metadata = number(3, 1_700_000_000_000) + number(11, count)
    return RawEntry(5, 6, len(metadata).to_bytes(4, "big") + metadata + body)


def single_entry(payload: bytes, at: int) -> RawEntry:
    """Pulsar's client without batches: the entry's metadata are those of the message."""
    metadata = text(1, b"p") + number(3, 1_700_000_000_000) + (number(12, at) if at else b"")
    return RawEntry(5, 6, len(metadata).to_bytes(4, "big") + metadata + payload)


@given(MESSAGES, st.sampled_from([entry_of_ingest, entry_of_client]))
def test_the_messages_of_an_entry_are_those_that_were_written(messages: list[Written], entry: object) -> None:
    read = Messages()
    for _ in range(2):  # the second one finds device and tail known
        assert callable(entry)
        assert read.add(entry(messages), FOREVER) == len(messages)
    twice = messages * 2
    found = read.columns()
    assert found.payloads.all == [payload for _, payload, _ in twice]
    kinds = [found.kinds[n] for n in found.of]
    assert [(k.device, k.key, k.topic, k.rule) for k in kinds] == [
        (f"d{d}", f"d{d}", "t" * d, "r") for d, _, _ in twice
    ]
    assert found.arrivals.tolist() == [at * 1000 or -1 for _, _, at in twice]
    assert set(found.ledger.tolist()) == {5}
    assert set(found.entry.tolist()) == {6}
    assert found.index.tolist() == [*range(len(messages))] * 2
    assert set(found.us.tolist()) == {1_700_000_000_000_000}


@given(st.lists(st.tuples(st.booleans(), st.binary(max_size=200), st.integers(0, 1 << 41)), min_size=1))
def test_a_message_alone_in_its_entry_keeps_its_event_time_among_batches(
    messages: list[tuple[bool, bytes, int]],
) -> None:
    read = Messages()
    for alone, payload, at in messages:
        entry = single_entry(payload, at) if alone else entry_of_client([(1, payload, at)])
        assert read.add(entry, FOREVER) == 1
    assert read.columns().arrivals.tolist() == [at * 1000 or -1 for _, _, at in messages]


def test_a_replayed_message_and_one_of_another_program_have_no_route() -> None:
    read = Messages()
    for properties in ({P_RULE: "r", P_REPLAYED: "0:1:2"}, {}):
        metadata = head_of("", properties) + number(3, 1)
        body = len(metadata).to_bytes(4, "big") + metadata + b"x"
        of = number(3, 1) + number(11, 1)
        read.add(RawEntry(5, 6, len(of).to_bytes(4, "big") + of + body), FOREVER)
    assert [kind.rule for kind in read.columns().kinds] == ["", ""]


@pytest.mark.parametrize("more", [number(8, 1), text(13, b"k"), number(20, 10), text(26, b"u")])
def test_what_ingest_does_not_write_is_left_to_the_client(more: bytes) -> None:
    with pytest.raises(Unread):
        Messages().add(entry_of_client([(1, b"x", 0)], more), FOREVER)


def test_a_damaged_entry_is_left_to_the_client_and_a_cut_batch_has_no_messages() -> None:
    whole = entry_of_client([(1, b"abc", 5), (2, b"def", 6)])
    with pytest.raises(Unread):
        Messages().add(whole._replace(data=whole.data[:-1]), FOREVER)
    read = Messages()
    assert read.add(whole._replace(data=whole.data[6:-1]), FOREVER) == 2  # without checksum
    assert {len(column) for column in read.columns()} == {0}


def test_entries_whose_messages_cannot_be_guessed_are_read_alone_among_the_others() -> None:
    name = text(1, P_INGEST.encode())
    others = [(1, b"a", 5), (2, b"b" * 200, 6)]
    none = number(3, 1)
    entries = {
        "first": (entry_of_client(others), [b"a", b"b" * 200]),
        "cut": (entry_of_ingest([(1, b"cut", 5)] * 3), []),
        "name in a payload": (entry_of_ingest([(3, name, 5), (4, b"c", 6)]), [name, b"c"]),
        "long payload": (entry_of_ingest([(3, b"d" * 20_000, 5)]), [b"d" * 20_000]),
        "no properties": (batch_of(len(none).to_bytes(4, "big") + none + b"e"), [b"e"]),
        "alone": (single_entry(b"f", 7), [b"f"]),
        "last": (entry_of_ingest(others), [b"a", b"b" * 200]),
    }
    cut = entries["cut"][0]
    entries["cut"] = cut._replace(data=cut.data[6:-1]), []
    for names in (list(entries), ["no properties", "first", "cut"], ["cut"], ["first", "cut", "last"]):
        read = Messages()
        for name_ in names:
            read.add(entries[name_][0], FOREVER)
        found = read.columns()
        assert found.payloads.all == [payload for name_ in names for payload in entries[name_][1]], names
        assert {len(column) for column in (found.us, found.index, found.of, found.arrivals)} == {len(found.payloads)}


def test_an_entry_behind_the_window_adds_nothing() -> None:
    read = Messages()
    assert read.add(entry_of_client([(1, b"abc", 5)]), 1_700_000_000_000_000) is None
    assert not read


def test_a_batch_whose_last_size_lies_has_no_messages_also_if_its_places_were_guessed() -> None:
    payload = b"a long payload"
    entry = entry_of_client([(1, payload, 5)] * 60)
    body = entry.data[6:]
    cut = body.rindex(number(3, len(payload)))
    read = Messages()
    assert read.add(entry._replace(data=body[:cut] + number(3, 100) + body[cut + 2 :]), FOREVER) == 60
    assert {len(column) for column in read.columns()} == {0}
    reader = LogReader(PulsarSettings(), NumberFields([]), frozenset(), {}, 0, FOREVER)
    assert reader._rows(0, read, Sequences()).num_rows == 0
