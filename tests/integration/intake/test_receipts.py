"""What Pulsar really stored against what its receipts say (H1), on a real Pulsar with the limits opened and closed."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pulsar
import pytest

from bridge.contract import partition_name
from bridge.errors import TerminalError
from bridge.intake.flow import Reading
from bridge.intake.metrics import LinkMetrics
from bridge.intake.partition_producers import PartitionProducers
from bridge.intake.provisioning import provision, verify_policies
from bridge.pulsar.admin import PulsarAdmin, rest_path
from bridge.pulsar.client import PulsarClient
from bridge.pulsar.provisioning_plan import subscription_step
from bridge.pulsar.wire.batches import Batch, encode, head_of
from bridge.settings.ingest import IngestSettings
from bridge.settings.pulsar import PulsarSettings
from pulsebridge.local.stack import LocalStack
from tests.support.ingest import stored
from tests.support.reading_back import quiet
from tests.support.stack import provisioned
from tests.support.waiting import poll_for

pytestmark = pytest.mark.stack

MEGABYTE = 1_000_000


@pytest.fixture
def one_partition(stack: LocalStack) -> PulsarSettings:
    return provisioned(stack, partitions=1, command_partitions=1)


@contextmanager
def bare_producer(settings: PulsarSettings, topic: str, **options: Any) -> Iterator[pulsar.Producer]:
    client = pulsar.Client(settings.service_url, logger=quiet())
    try:
        yield client.create_producer(topic, send_timeout_millis=0, batching_enabled=True, **options)
    finally:
        client.close()


class World:
    """PartitionProducers with the test as their loop: what they report as stored is kept in order."""

    def __init__(self, client: PulsarClient, admin: PulsarAdmin, *, max_pending: int = 100_000) -> None:
        settings = admin.settings
        self.topic = settings.readings_topic("parts")
        self.woken = threading.Event()
        self.stored: list[bytes] = []
        self.refused: list[tuple[bytes, str]] = []
        self.producers = PartitionProducers(
            client,
            admin,
            IngestSettings(),
            owner="parts",
            max_pending=max_pending,
            metrics=LinkMetrics("parts"),
            wake=self.woken.set,
            on_refused=lambda reading, why: self.refused.append((reading.payload[:20], why)),
        )
        self.clock = 0.0

    def put(self, payload: bytes) -> None:
        reading = Reading(1, 1, 0.0)
        reading.topic, reading.payload, reading.key, reading.event_ms = self.topic, payload, "k", 1
        reading.head = head_of("k", {})
        self.producers.put(reading)

    def turn(self) -> None:
        self.woken.wait(0.1)
        self.woken.clear()
        self.clock += 1.0  # waits before another try are over at once
        self.stored += [r.payload for r in self.producers.turn(self.clock)]

    def until(self, condition: Callable[[], bool], what: str, timeout: float = 60.0) -> None:
        def turned() -> bool:
            self.turn()
            return condition()

        poll_for(turned, timeout, what, every=0.0)


@contextmanager
def world(client: PulsarClient, settings: PulsarSettings, **options: Any) -> Iterator[World]:
    with PulsarAdmin(settings, timeout_s=30) as admin:
        made = World(client, admin, **options)
        try:
            yield made
        finally:
            made.producers.close()
            client.close()


def in_pulsar(settings: PulsarSettings) -> list[bytes]:
    return [m.payload for m in stored(settings, "parts")]


def assert_nothing_vouched_that_is_missing(one: World, settings: PulsarSettings) -> None:
    held = set(in_pulsar(settings))
    assert [p for p in one.stored if p not in held] == []


def test_h1_a_full_queue_refuses_silently_and_partition_producers_have_no_queue(
    one_partition: PulsarSettings,
) -> None:
    """(a) The hazard with the bare client; then partition producers with a turn above their bound: none is refused."""
    with PulsarAdmin(one_partition) as admin:
        admin.create_partitioned(one_partition.readings_topic("bare"), 1)
    answers: list[Any] = []
    with bare_producer(
        one_partition,
        one_partition.readings_topic("bare"),
        max_pending_messages=100,
        block_if_queue_full=False,
    ) as producer:
        for number in range(2000):
            producer.send_async(b"%d" % number, None)
        producer.flush()
        producer.send_async(b"last", lambda result, _id: answers.append(result))
        producer.flush()
    assert answers == [pulsar.Result.Ok]
    assert len(stored(one_partition, "bare")) < 2001  # refused silently, and the last receipt is Ok

    with world(PulsarClient(one_partition), one_partition, max_pending=100) as one:
        for number in range(2000):
            one.put(b"%04d" % number)
        one.until(lambda: len(one.stored) == 2000, "all of them")
        assert one.stored == [b"%04d" % n for n in range(2000)]
        assert one.refused == []
    assert in_pulsar(one_partition) == one.stored, "nothing was refused, and sent again"


def test_h1_a_batch_over_the_limit_vanishes_and_ours_never_get_there(one_partition: PulsarSettings) -> None:
    """(b) Eight legal megabytes in one batch: none stored, the next receipt Ok. With our limits all are stored."""
    with PulsarAdmin(one_partition) as admin:
        admin.create_partitioned(one_partition.readings_topic("bare"), 1)
    answers: list[Any] = []
    with bare_producer(
        one_partition,
        one_partition.readings_topic("bare"),
        batching_max_allowed_size_in_bytes=64 * MEGABYTE,
        batching_max_messages=8,  # the eighth sends the batch, and no timer before it
        batching_max_publish_delay_ms=600_000,
        max_pending_messages=1000,
    ) as producer:
        for number in range(8):
            producer.send_async(b"%d" % number * MEGABYTE, None)
        producer.send_async(b"next", lambda result, _id: answers.append(result))
        producer.flush()
    assert answers == [pulsar.Result.Ok]
    assert [m.payload for m in stored(one_partition, "bare")] == [b"next"]

    payloads = [b"%02d" % number + b"x" * MEGABYTE for number in range(20)] + [b"next"]
    with world(PulsarClient(one_partition), one_partition) as one:
        for payload in payloads:
            one.put(payload)
        one.until(lambda: len(one.stored) == 21, "all of them")
        assert one.stored == payloads
    assert in_pulsar(one_partition) == payloads


def test_h1_a_quota_that_raises_exceptions_loses_nothing_that_was_vouched_for(
    one_partition: PulsarSettings,
) -> None:
    """(c) The quota is reached while the producer is open; each failed reconnect fails all that it has pending."""
    s = one_partition
    namespace = f"/namespaces/{s.tenant}/{s.namespace}"
    with world(PulsarClient(s), s) as one, PulsarAdmin(s, timeout_s=30) as admin:
        admin.create_partitioned(one.topic, 1)
        admin.do(subscription_step(partition_name(one.topic, 0), "holds"))
        for number in range(100):
            one.put(b"%04d" % number)
        one.until(lambda: len(one.stored) == 100, "a first good receipt")

        quota = {"limitSize": 1, "limitTime": -1, "policy": "producer_exception"}
        admin.request("POST", f"{namespace}/backlogQuota?backlogQuotaType=destination_storage", body=quota)
        with pytest.raises(TerminalError, match="producer_request_hold"):
            verify_policies(admin)
        admin.request("PUT", f"/{rest_path(partition_name(one.topic, 0))}/unload")
        for number in range(100, 200):
            one.put(b"%04d" % number)
            one.turn()
        one.until(lambda: bool(list(one.producers.blocked())), "messages that Pulsar does not take", 30)
        assert_nothing_vouched_that_is_missing(one, s)

        provision(admin)
        # A topic that was being loaded while its namespace's policies changed may keep the old ones (Pulsar 4.0.8).
        admin.request("PUT", f"/{rest_path(partition_name(one.topic, 0))}/unload")
        one.until(lambda: len(one.stored) == 200, "all of them once the quota holds instead", 90)
        assert one.stored == [b"%04d" % n for n in range(200)]
    assert list(dict.fromkeys(in_pulsar(s))) == [b"%04d" % n for n in range(200)]


def test_h1_a_batch_that_was_damaged_on_its_way_is_refused_and_sent_again(
    one_partition: PulsarSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """(d) One byte of the second batch is turned: Pulsar refuses that one and stores the third, which came after it."""
    damaged = []

    def damage(*args: Any, **kwargs: Any) -> list[Batch]:
        batches = encode(*args, **kwargs)
        if any(b"-2" in batch.frame for batch in batches) and not damaged:
            frame = batches[0].frame
            batches[0] = batches[0]._replace(frame=frame[:-1] + bytes((frame[-1] ^ 1,)))
            damaged.append(batches[0].sequence)
        return batches

    monkeypatch.setattr("bridge.pulsar.wire.producer.encode", damage)
    with world(PulsarClient(one_partition), one_partition) as one:
        one.put(b"0-1")
        one.until(lambda: one.stored == [b"0-1"], "the first")
        for number in (2, 3):
            one.put(b"%d-%d" % (number, number))
            one.producers.turn(one.clock)  # a batch of its own; no receipt is read in between
        one.until(lambda: len(one.stored) == 3, "all of them")
        assert one.stored == [b"0-1", b"2-2", b"3-3"]
    assert len(damaged) == 1
    assert in_pulsar(one_partition)[-2:] == [b"2-2", b"3-3"], "sent again in order, by a successor"


def test_a_lost_connection_sends_again_what_was_not_confirmed_in_order(one_partition: PulsarSettings) -> None:
    client = PulsarClient(one_partition)
    with world(client, one_partition) as one:
        for number in range(3000):
            one.put(b"%04d" % number)
            if number % 100 == 0:
                one.turn()
            if number % 1000 == 500:
                for connection in client._wire._brokers._connections.values():
                    connection._sock.shutdown(socket.SHUT_RDWR)
        one.until(lambda: len(one.stored) == 3000, "all of them")
        assert one.stored == [b"%04d" % n for n in range(3000)]
    assert list(dict.fromkeys(in_pulsar(one_partition))) == [b"%04d" % n for n in range(3000)]


def test_a_terminated_topic_refuses_each_message_by_name(one_partition: PulsarSettings) -> None:
    with (
        world(PulsarClient(one_partition), one_partition) as one,
        PulsarAdmin(one_partition, timeout_s=30) as admin,
    ):
        one.put(b"before")
        one.until(lambda: one.stored == [b"before"], "the first")
        admin.request("POST", f"/{rest_path(one.topic)}/terminate/partitions")
        for number in range(3):
            one.put(b"after-%d" % number)
        for _ in range(30):
            one.turn()
        assert one.stored == [b"before"]  # refused or waiting, never taken for stored
