"""The log that an audit reads entry by entry is what Pulsar's client gives of the same partition."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from bridge.contract import P_DEVICE, P_RULE, P_TOPIC
from bridge.pulsar.client import PulsarClient
from bridge.pulsar.wire.protobuf import number, text
from bridge.settings.pulsar import PulsarSettings
from bridge.settings.rules import TopicRule
from pulsebridge.audit.live.log import LogReader, NumberFields, window
from pulsebridge.audit.live.sequence import Sequences
from tests.support.payloads import checksum
from tests.support.pulsar_topics import KINDS, TestTopic, topic_of
from tests.support.raw_pulsar import store_raw

pytestmark = pytest.mark.stack

FIELDS = NumberFields([TopicRule(name="r", filter="a/+device", sequence="{json:$.n}")])


class Topics(dict[str, bytes]):
    """The topic as what is due of its messages."""

    def __missing__(self, topic: str) -> bytes:
        return topic.encode()


@pytest.fixture
def topic(namespaces: PulsarSettings) -> Iterator[TestTopic]:
    with topic_of(namespaces) as made:
        yield made


def reader_of(settings: PulsarSettings, since_us: int = 0, until_us: int = 1 << 62) -> LogReader:
    return LogReader(settings, FIELDS, frozenset(), Topics(), since_us, until_us)


def ours(settings: PulsarSettings, partition: str, **span: int) -> tuple[list[tuple[Any, ...]], Sequences, bool]:
    """Return the rows, the devices' numbers, and whether all entries were read without Pulsar's client."""
    numbers = Sequences()
    with PulsarClient(settings) as client, capture_logs() as logs:
        rows = [
            tuple(row.values())
            for batch in reader_of(settings, **span).rows(client, partition, 3, numbers)
            for row in batch.to_pylist()
        ]
    return rows, numbers, not any(one["event"] == "Pulsar's client reads on" for one in logs)


def theirs(
    settings: PulsarSettings, partition: str, since_us: int = 0, until_us: int = 1 << 62
) -> list[tuple[Any, ...]]:
    found = []
    with PulsarClient(settings) as client:
        for m in window(client, partition, since_us, until_us):
            at, properties = m.message_id(), m.properties()
            has = m.data().strip() not in (b"", b"null", b"{}")
            found.append(
                (3, at.ledger_id(), at.entry_id(), max(0, at.batch_index()), 0, m.publish_timestamp() * 1000,
                 m.event_timestamp() * 1000 or -1, properties.get(P_DEVICE, ""), checksum(m.data()),
                 properties.get(P_TOPIC, "").encode() if has else b"", "")
            )  # fmt: skip
    return found


def publish(topic: TestTopic, kind: str, some: random.Random, round_: int) -> None:
    for n in range(4):
        payloads = [b"%d" % some.randrange(10 ** some.choice([1, 40, 200])) for _ in range(20)]
        if kind == "chunked" and n == 1:
            payloads = [some.randbytes(6 * 1024 * 1024)]
        elif n == 2 and kind != "zlib":
            payloads[3:6] = [b"", b"null", b"{}"]
        fields: dict[str, Any] = {"properties": {P_DEVICE: f"d{n}", P_TOPIC: "€" * some.choice([1, 200])}} if n else {}
        if n > 1:
            fields |= {"partition_key": f"k{n}", "event_timestamp": 1_700_000_000_000 + round_}
        topic.publish(payloads, kind, **fields)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_kind_of_entry_gives_what_the_client_gives(
    namespaces: PulsarSettings, topic: TestTopic, kind: str
) -> None:
    some = random.Random(kind)
    for round_ in range(3):
        publish(topic, kind, some, round_)
        topic.roll_over()
    publish(topic, kind, some, 3)
    found, _, by_entries = ours(namespaces, topic.partition())
    assert by_entries == (kind in ("batched", "unbatched"))
    assert found == theirs(namespaces, topic.partition())
    assert len(found) == len(set(found)) == 4 * (61 if kind == "chunked" else 80)


def test_a_window_begins_and_ends_at_the_same_messages_as_the_clients(
    namespaces: PulsarSettings, topic: TestTopic
) -> None:
    times = []
    for n in range(4):
        topic.publish([b"%d:%d" % (n, one) for one in range(5)])
        topic.roll_over()
        times.append(time.time_ns() // 1000)
    span = {"since_us": times[0], "until_us": times[2]}
    found, _, by_entries = ours(namespaces, topic.partition(), **span)
    assert by_entries
    assert found == theirs(namespaces, topic.partition(), **span)
    assert len(found) == 10


def test_an_empty_partition_and_an_empty_window_have_no_rows(namespaces: PulsarSettings, topic: TestTopic) -> None:
    assert ours(namespaces, topic.partition())[0] == []
    topic.publish([b"1"])
    assert ours(namespaces, topic.partition(), since_us=time.time_ns() // 1000 + 1)[0] == []
    assert ours(namespaces, topic.partition(), until_us=1_000_000)[0] == []


@pytest.mark.parametrize("foreign", ["marker", "compression", "no batch", "no text", "late metadata"])
def test_foreign_entries_end_nothing(namespaces: PulsarSettings, topic: TestTopic, foreign: str) -> None:
    properties = {P_DEVICE: "d", P_TOPIC: "t", P_RULE: "r"}
    topic.publish([b'{"n":%d}' % n for n in range(1, 6)], properties=properties, partition_key="d")
    more = {
        "marker": number(20, 10),
        "compression": number(8, 4) + number(9, 100),
        "no batch": number(11, 3),
        "no text": b"",
        "late metadata": number(11, 1),
    }[foreign]
    payload = b"1"
    if foreign == "late metadata":  # fields in an unusual order, which protobuf allows
        metadata = number(3, 1) + text(2, b"k")
        payload = len(metadata).to_bytes(4, "big") + metadata + b"1"
    key = b"\xff" if foreign == "no text" else b"k"
    store_raw(namespaces, topic.partition(), payload, key=key, metadata_fields=more)
    topic.publish([b'{"n":%d}' % n for n in range(6, 11) if n != 8], properties=properties, partition_key="d")
    found, numbers, _ = ours(namespaces, topic.partition())
    if foreign != "no batch":  # Pulsar's client ends the process
        assert found == theirs(namespaces, topic.partition())
    assert len([row for row in found if row[7] == "d"]) == 9
    assert [finding.message for finding in numbers.end()] == ["number 8"]
