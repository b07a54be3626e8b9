"""What we take out of entries is what Pulsar's own client gives of the same messages."""

from __future__ import annotations

import random
from typing import Any

import pytest

from bridge.contract import Position
from bridge.pulsar.client import EARLIEST, PulsarClient
from bridge.pulsar.wire.entry_reader import WireReaders
from bridge.settings.pulsar import PulsarSettings
from sources.columns import arrow_schema, record_batch
from sources.entries import Opened, Opener, joined, open_entry
from tests.support.pulsar_topics import KINDS, TestTopic
from tests.support.waiting import poll_for

pytestmark = pytest.mark.stack

COLUMNS = ("value", "__key", "__messageId", "__publishTime", "__eventTime", "__messageProperties")


def ours(settings: PulsarSettings, topic: TestTopic, entries: int) -> list[dict[str, Any]]:
    """Read so many entries, with so few permits that more are asked for on the way."""
    readers = WireReaders(settings)
    opener = Opener()
    parts: list[Opened] = []
    try:
        reader = readers.reader(topic.partition(), topic.ledgers()[0], 0, permits=3)
        for left in range(entries, 0, -1):
            raw = reader.receive(30)
            assert raw is not None
            opened = open_entry(raw, topic.partition())
            reader.took(opened.size, min(left, 3))
            if opened.chunk is None:
                opener.add(opened)
                continue
            parts.append(opened)
            if opened.chunk.number == opened.chunk.total - 1:
                opener.add(joined(parts))
                parts = []
        assert reader.receive(0.1) is None
        reader.close()
    finally:
        readers.close()
    return list(record_batch(arrow_schema(COLUMNS), topic.name, topic.partition(), opener.flush()).to_pylist())


def theirs(settings: PulsarSettings, topic: TestTopic, count: int) -> list[dict[str, Any]]:
    found = []
    with PulsarClient(settings) as client:
        reader = client.reader(topic.partition(), EARLIEST)
        for _ in range(count):
            m = reader.read_next(30_000)
            found.append(
                {
                    "value": m.data(),
                    "__key": m.partition_key() or None,
                    "__messageId": m.message_id().serialize(),
                    "__publishTime": m.publish_timestamp(),
                    "__eventTime": m.event_timestamp() or None,
                    "__messageProperties": sorted(m.properties().items()),
                }
            )
        reader.close()
    return found


def as_theirs(row: dict[str, Any]) -> dict[str, Any]:
    def ms(time: Any) -> int | None:
        return None if time is None else round(time.timestamp() * 1000)

    return row | {
        "__publishTime": ms(row["__publishTime"]),
        "__eventTime": ms(row["__eventTime"]),
        "__messageProperties": sorted(row["__messageProperties"]),
    }


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_kind_of_entry_gives_what_the_client_gives(
    namespaces: PulsarSettings, topic: TestTopic, kind: str
) -> None:
    some = random.Random(kind)
    count = 0
    for round_ in range(3):
        for n in range(4):
            # An empty payload after zlib makes the client close its connection, again and again.
            sizes = [1, 127, 128, 300] if kind == "zlib" else [0, 1, 127, 128, 300]
            payloads = [some.randbytes(some.choice(sizes)) for _ in range(20)]
            if kind == "chunked" and n == 1:
                payloads = [some.randbytes(6 * 1024 * 1024)]
            fields: dict[str, Any] = {"properties": {"n": str(n), "ü": "€" * some.choice([0, 200])}} if n else {}
            if n > 1:
                fields |= {"partition_key": f"k{n}", "event_timestamp": 1_700_000_000_000 + round_}
            topic.publish(payloads, kind, **fields)
            count += len(payloads)
    stats = topic.admin.internal_stats(topic.partition())
    found = ours(namespaces, topic, int(stats["entriesAddedCounter"]))
    for mine, reference in zip(map(as_theirs, found), theirs(namespaces, topic, count), strict=True):
        assert mine == reference


def test_a_reader_leaves_no_subscription_and_a_second_starts_at_the_requested_position(
    namespaces: PulsarSettings, topic: TestTopic
) -> None:
    topic.publish([b"%d" % n for n in range(10)], "unbatched")
    ledger = topic.ledgers()[0]
    readers = WireReaders(namespaces)
    try:
        for begin in (0, 7):
            reader = readers.reader(topic.partition(), ledger, begin, permits=100)
            place = reader.receive(30)
            assert place is not None
            assert Position(place.ledger, place.entry) == (ledger, begin)
            reader.close()
    finally:
        readers.close()
    poll_for(lambda: topic.admin.internal_stats(topic.partition())["cursors"] == {}, 30, "no subscription to be left")
