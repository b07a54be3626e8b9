"""What our producer writes is what Pulsar's own client reads, and who refuses it says so."""

from __future__ import annotations

import queue
import random
from dataclasses import dataclass

import pytest

from bridge.contract import partition_name
from bridge.errors import RefusedError, TerminatedError
from bridge.pulsar.admin import PulsarAdmin, rest_path
from bridge.pulsar.client import EARLIEST, PulsarClient
from bridge.pulsar.wire.batches import BATCH_BYTES, head_of
from bridge.pulsar.wire.commands import WireError
from bridge.pulsar.wire.producer import BatchProducer, Identity
from bridge.settings.pulsar import PulsarSettings
from tests.support.pulsar_topics import TestTopic
from tests.support.waiting import patient

pytestmark = pytest.mark.stack


@dataclass(frozen=True)
class Sent:
    payload: bytes
    key: str = ""
    properties: tuple[tuple[str, str], ...] = ()
    event_ms: int = 0

    @property
    def head(self) -> bytes:
        return head_of(self.key, dict(self.properties))


def sent(producer: BatchProducer, messages: list[Sent]) -> WireError | None:
    answers: queue.Queue[WireError | None] = queue.Queue()
    producer.send(messages, answers.put)
    return answers.get(timeout=patient(60))


def read(client: PulsarClient, topic: TestTopic, count: int) -> list[Sent]:
    reader = client.reader(topic.partition(), EARLIEST)
    try:
        found = [reader.read_next(30_000) for _ in range(count)]
        assert not reader.has_message_available()
    finally:
        reader.close()
    return [
        Sent(m.data(), m.partition_key(), tuple(sorted(m.properties().items())), m.event_timestamp()) for m in found
    ]


def test_messages_arrive_as_they_were_given(topic: TestTopic, client: PulsarClient) -> None:
    some = random.Random(7)
    sizes = [
        0,
        1,
        127,
        128,
        2047,
        2048,
        16_383,
        16_384,
        70_000,
        BATCH_BYTES - 100,
        BATCH_BYTES,
        3 * BATCH_BYTES,
    ]
    given = [
        Sent(some.randbytes(size), key, tuple(sorted(properties.items())), event_ms)
        for size in sizes
        for key, properties, event_ms in (
            ("", {}, 0),
            (
                "gerät/1",
                {"mqtt.topic": "a/b", "": "empty", "leer": "", "ü" * 200: "€" * 3000},
                1_700_000_000_123,
            ),
        )
    ]
    given += [Sent(b"%d" % n, "k", (), n) for n in range(2500)]
    producer = client.batch_producer(topic.partition())
    assert sent(producer, given) is None
    producer.close()
    assert read(client, topic, len(given)) == given


def test_a_batch_is_one_entry_and_a_large_one_is_divided(topic: TestTopic, client: PulsarClient) -> None:
    producer = client.batch_producer(topic.partition())
    assert sent(producer, [Sent(b"x")] * 1000) is None
    assert topic.admin.internal_stats(topic.partition())["entriesAddedCounter"] == 1
    assert sent(producer, [Sent(b"x")] * 1001) is None
    assert topic.admin.internal_stats(topic.partition())["entriesAddedCounter"] == 3


def test_what_is_too_large_is_refused_by_name_and_the_broker_stays(topic: TestTopic, client: PulsarClient) -> None:
    producer = client.batch_producer(topic.partition())
    answer = sent(producer, [Sent(b"x"), Sent(b"x" * (6 << 20))])
    assert answer is not None
    assert answer.name == "MessageTooBig"
    again = client.batch_producer(topic.partition(), producer.successor())
    assert sent(again, [Sent(b"y")]) is None
    assert [m.payload for m in read(client, topic, 1)] == [b"y"]


def test_an_unloaded_topic_fails_what_was_not_confirmed_and_a_successor_goes_on(
    topic: TestTopic, client: PulsarClient
) -> None:
    producer = client.batch_producer(topic.partition())
    assert sent(producer, [Sent(b"1")]) is None
    topic.roll_over()
    answer = sent(producer, [Sent(b"2")])
    assert answer is not None
    assert answer.name == "Moved"
    producer.close()
    again = client.batch_producer(topic.partition(), producer.successor())
    assert sent(again, [Sent(b"2")]) is None
    assert [m.payload for m in read(client, topic, 2)] == [b"1", b"2"]


def test_h1_what_the_topic_takes_for_a_duplicate_is_not_vouched_for_and_its_successor_stores_it(
    topic: TestTopic, client: PulsarClient, namespaces: PulsarSettings
) -> None:
    place = f"/namespaces/{namespaces.tenant}/{namespaces.namespace}/deduplication"
    topic.admin.request("POST", place, body=True)
    first = client.batch_producer(topic.partition(), Identity("one"))
    assert sent(first, [Sent(b"1"), Sent(b"2")]) is None
    first.close()
    second = client.batch_producer(topic.partition(), Identity("one"))
    second.opened(Identity("one"))  # at sequence id 0 again
    answer = sent(second, [Sent(b"3")])
    assert answer is not None
    assert answer.name == "Dropped"
    second.close()
    third = client.batch_producer(topic.partition(), second.successor())
    assert sent(third, [Sent(b"3")]) is None
    assert [m.payload for m in read(client, topic, 3)] == [b"1", b"2", b"3"]


def test_a_terminated_topic_and_one_that_is_not_there_say_so(
    topic: TestTopic, client: PulsarClient, namespaces: PulsarSettings
) -> None:
    producer = client.batch_producer(topic.partition())
    topic.admin.request("POST", f"/{rest_path(topic.name)}/terminate/partitions")
    assert sent(producer, [Sent(b"late")]) is not None
    with pytest.raises(TerminatedError):
        client.batch_producer(topic.partition())
    with PulsarAdmin(namespaces) as admin:
        s = namespaces
        admin.request(
            "POST",
            f"/namespaces/{s.tenant}/{s.namespace}/autoTopicCreation",
            body={"allowAutoTopicCreation": False},
        )
    with pytest.raises(RefusedError, match="TopicNotFound"):
        client.batch_producer(partition_name(namespaces.readings_topic("nowhere"), 0))
