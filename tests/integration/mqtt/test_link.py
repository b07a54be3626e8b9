"""The link on a real broker: epochs, redelivery, order, and what a pause does."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from bridge.mqtt.client import Link
from bridge.mqtt.device import DeviceClient, probe
from bridge.mqtt.types import Connected, Disconnected, LinkHandler, Message, Subscription
from pulsebridge.local.readiness import mqtt_round_trip
from pulsebridge.local.stack import LocalStack
from tests.support.ingest import device
from tests.support.stack import mqtt_settings
from tests.support.tcp_proxy import TcpProxy
from tests.support.waiting import patient, poll_for

pytestmark = pytest.mark.stack


@contextmanager
def turning(link: Link) -> Iterator[None]:
    """Turn the link in a thread until the block exits."""
    stopping = threading.Event()

    def run() -> None:
        while not stopping.is_set():
            link.turn()
        link.disconnect()
        link.close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        link.wake()
        thread.join(patient(10))
        assert not thread.is_alive()


class Recorder(LinkHandler):
    """Records events; acknowledges only on request, on the loop thread."""

    def __init__(self) -> None:
        self.link: Link | None = None
        self.connected: list[Connected] = []
        self.lost: list[Disconnected] = []
        self.messages: list[tuple[int, Message]] = []
        self.granted: list[int] = []
        self.to_ack: list[tuple[list[int], int]] = []
        self.acked: list[bool] = []
        self.filters: list[Subscription] = []

    def on_connected(self, event: Connected) -> None:
        assert self.link is not None
        self.connected.append(event)
        if not event.session_present:
            self.link.subscribe(self.filters)

    def on_disconnected(self, event: Disconnected) -> None:
        self.lost.append(event)

    def on_subscribed(self, codes: list[int]) -> None:
        self.granted += codes

    def on_message(self, message: Message) -> None:
        assert self.link is not None
        self.messages.append((self.link.epoch, message))

    def on_turn(self, now: float) -> None:
        assert self.link is not None
        while self.to_ack:
            self.acked.append(self.link.acknowledge(*self.to_ack.pop(0)))

    def payloads(self, epoch: int) -> list[bytes]:
        return [m.payload for e, m in self.messages if e == epoch]

    def ack(self, mids: list[int], epoch: int) -> bool:
        assert self.link is not None
        before = len(self.acked)
        self.to_ack.append((mids, epoch))
        self.link.wake()
        poll_for(lambda: len(self.acked) > before, 10, "the acknowledgement")
        return self.acked[before]


@pytest.mark.parametrize("protocol", ["3.1.1", "5"])
def test_h2_a_late_ack_does_not_meet_another_message(stack: LocalStack, protocol: str) -> None:
    mqtt = mqtt_settings(stack, protocol=protocol)
    with TcpProxy(stack.mqtt_host, stack.mqtt_port) as proxy:
        seen = Recorder()
        through = mqtt.model_copy(update={"port": proxy.port})
        seen.link = link = Link(through, seen)
        seen.filters = [Subscription(f"{mqtt.client_id}/#")]
        with turning(link), device(mqtt, "dev") as dev:
            poll_for(lambda: seen.granted == [1], 20, "SUBACK")
            for number in range(5):
                dev.publish(f"{mqtt.client_id}/x", b"%d" % number)
            poll_for(lambda: len(seen.payloads(1)) == 5, 20, "five messages")
            old = [m.mid for _, m in seen.messages]

            proxy.cut()  # the receipts arrive after this
            poll_for(lambda: len(seen.payloads(2)) == 5, 30, "the five again")
            assert seen.connected[1].session_present
            assert seen.lost[0].epoch == 1
            assert seen.ack(old, 1) is False  # nothing was written

            proxy.cut()
            poll_for(lambda: len(seen.payloads(3)) == 5, 30, "the five a third time: none was acknowledged")
            assert seen.ack([m.mid for e, m in seen.messages if e == 3], 3) is True
            dev.publish(f"{mqtt.client_id}/x", b"new")
            poll_for(lambda: seen.payloads(3)[5:] == [b"new"], 20, "a new message")
            proxy.cut()
            poll_for(lambda: seen.payloads(4), 30, "what was not acknowledged")
            assert seen.payloads(4) == [b"new"]


def test_h3_a_link_that_does_not_read_reconnects_all_the_same(stack: LocalStack) -> None:
    mqtt = mqtt_settings(stack, protocol="3.1.1", keep_alive="5s")
    with TcpProxy(stack.mqtt_host, stack.mqtt_port) as proxy:
        seen = Pausing()
        seen.link = link = Link(mqtt.model_copy(update={"port": proxy.port}), seen)
        seen.filters = [Subscription(f"{mqtt.client_id}/#")]
        with turning(link), device(mqtt, "dev") as dev:
            poll_for(lambda: seen.granted == [1], 20, "SUBACK")
            for number in range(10):
                dev.publish(f"{mqtt.client_id}/x", b"%d" % number)
            poll_for(lambda: link.paused, 20, "a pause")
            assert len(seen.messages) == 1  # the rest stays in the buffer
            proxy.cut()
            link.publish(f"{mqtt.client_id}-other", b"finds out that the connection is gone")
            poll_for(lambda: len(seen.connected) >= 2, 60, "a new connection")
            assert link.paused
            assert len(seen.messages) == 1
            link.paused = False
            link.wake()
            poll_for(lambda: len(seen.messages) >= 2, 20, "reading to go on")


class Pausing(Recorder):
    def on_message(self, message: Message) -> None:
        super().on_message(message)
        assert self.link is not None
        self.link.paused = True


def test_a_device_resends_what_was_not_confirmed(stack: LocalStack) -> None:
    mqtt = mqtt_settings(stack, protocol="3.1.1")
    received: list[bytes] = []
    confirmed: list[int] = []
    with TcpProxy(stack.mqtt_host, stack.mqtt_port) as proxy:
        through = mqtt.model_copy(update={"port": proxy.port})
        with (
            device(mqtt, "sub", on_message=lambda m: received.append(m.payload)) as subscriber,
            # One at a time: Artemis may route several that are in flight out of order.
            device(through, "pub", window=1) as publisher,
        ):
            subscriber.subscribe(f"{mqtt.client_id}/t")
            link = publisher.link
            for number in range(1500):
                link.publish(f"{mqtt.client_id}/t", b"%d" % number, confirmed=lambda _: confirmed.append(link.epoch))
            for cuts in range(3):
                poll_for(lambda cuts=cuts: len(confirmed) > 400 * (cuts + 1), 60, "a flow")  # type: ignore[misc]
                proxy.cut()
            assert publisher.flush(60)
            poll_for(lambda: len(set(received)) == 1500, 60, "all messages")
    assert len(confirmed) == 1500
    assert confirmed[-1] == 4
    assert list(dict.fromkeys(received)) == [b"%d" % n for n in range(1500)]


def test_a_refused_connection_says_why(stack: LocalStack) -> None:
    assert isinstance(probe(mqtt_settings(stack)), Connected)
    closed = probe(mqtt_settings(stack, port=1))
    assert isinstance(closed, Disconnected)
    assert "connecting to" in closed.why
    mqtt_round_trip(stack.mqtt_host, stack.mqtt_port, timeout_s=10)


def test_many_devices_share_a_broker(stack: LocalStack) -> None:
    mqtt = mqtt_settings(stack)
    inbox: list[Message] = []
    devices = [DeviceClient(mqtt, f"{mqtt.client_id}-{n}") for n in range(20)]
    with device(mqtt, "sub", on_message=inbox.append) as subscriber:
        subscriber.subscribe(f"{mqtt.client_id}/#")
        for one in devices:
            one.connect(30)
            one.publish(f"{mqtt.client_id}/{one.link.client_id}", b"x", qos=0)
        poll_for(lambda: len(inbox) == 20, 30, "one message of each")
        for one in devices:
            one.close()


class _AcksAll(Recorder):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def on_message(self, message: Message) -> None:
        assert self.link is not None
        self.count += 1
        self.to_ack.append(([message.mid], self.link.epoch))


@pytest.mark.timeout(300)
@pytest.mark.long
def test_a_paused_link_before_mqtt_5_leaves_the_broker_packet_identifiers(private_stack: LocalStack) -> None:
    """Artemis fills the buffers; with 65,535 unacknowledged messages it searches for a free identifier without end.

    On a stack of its own: one that hangs keeps a core busy until it restarts.
    """
    count = 70_000
    mqtt = mqtt_settings(private_stack, protocol="3.1.1")
    seen = _AcksAll()
    seen.link = link = Link(mqtt, seen)
    seen.filters = [Subscription(mqtt.client_id)]
    with turning(link):
        poll_for(lambda: seen.granted == [1], 20, "SUBACK")
        link.paused = True
        with device(mqtt, "dev") as dev:
            for _ in range(count):
                dev.publish(mqtt.client_id, b"x")
            assert dev.flush(120)
        assert seen.count < 65_535
        link.paused = False
        link.wake()
        poll_for(lambda: seen.count >= count, 60, "all of them")
