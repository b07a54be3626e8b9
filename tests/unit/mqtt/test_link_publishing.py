"""What a link does with its own publishes, against a broker by hand that answers them in its own way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.mqtt.client import Link
from bridge.mqtt.packets import misfit, publish_size
from bridge.mqtt.types import Connected, Disconnected, LinkHandler, PublishProperties
from bridge.settings.mqtt import MqttSettings
from tests.support.raw_broker import RawBroker
from tests.support.waiting import poll_for


class Events(LinkHandler):
    def __init__(self) -> None:
        self.connected: list[Connected] = []
        self.lost: list[Disconnected] = []

    def on_connected(self, event: Connected) -> None:
        self.connected.append(event)

    def on_disconnected(self, event: Disconnected) -> None:
        self.lost.append(event)


@contextmanager
def linked(broker: RawBroker) -> Iterator[tuple[Link, Events]]:
    events = Events()
    link = Link(MqttSettings(port=broker.port, protocol="5", reconnect_min="10ms"), events)
    try:
        turns(link, lambda: link.connected)
        yield link, events
    finally:
        link.disconnect()
        link.close()


def turns(link: Link, done: Callable[[], bool]) -> None:
    def turned() -> bool:
        link.turn(0.01)
        return done()

    poll_for(turned, 30, "the link got that far", every=0.0)


@pytest.mark.parametrize("reason", [0, 0x10, 0x87, 0x97])
@pytest.mark.parametrize("qos", [1, 2])
def test_h26_a_publish_ends_with_the_reason_that_the_broker_gave(reason: int, qos: int) -> None:
    """At QoS 2 it is in PUBREC; PUBCOMP, which follows one below 0x80, has no reason about subscribers."""
    with RawBroker(lambda _: reason) as broker, linked(broker) as (link, _):
        confirmed: list[int] = []
        for _ in range(2):
            link.publish("t", b"", qos=qos, confirmed=confirmed.append)
            turns(link, lambda: link.unconfirmed == 0)
        assert confirmed == [reason, reason]
        # MQTT-4.3.3-4: a PUBREL follows a PUBREC below 0x80 alone.
        assert broker.released == [one.mid for one in broker.came if qos == 2 and reason < 0x80]


def test_a_publish_that_makes_no_packet_is_refused_and_the_next_one_goes() -> None:
    with RawBroker(lambda _: 0) as broker, linked(broker) as (link, events):
        confirmed: list[int] = []
        too_long = PublishProperties(user=(("command-id", "x" * 65_536),))
        link.publish("t", b"1", properties=too_long, confirmed=confirmed.append)
        link.publish("t", b"2", confirmed=confirmed.append)
        turns(link, lambda: link.unconfirmed == 0)
        assert confirmed == [0x83, 0]
        assert [one.payload for one in broker.taken] == [b"2"]
        assert not events.lost


def test_connack_says_what_the_broker_takes() -> None:
    granted = b"\x21\0\7" + b"\x24\1" + b"\x25\0" + b"\x27\0\0\3\xe8"
    with RawBroker(lambda _: 0, granted) as broker, linked(broker) as (link, events):
        assert events.connected == [Connected(1, False, 7, 1000, 1, False)]
        assert link.granted == events.connected[0]
    with RawBroker(lambda _: 0) as broker, linked(broker) as (link, events):
        assert link.granted == Connected(1, False, 65535, 0, 2, True)


def test_a_dropped_connection_is_reported_and_re_created() -> None:
    with RawBroker(lambda _: 0) as broker, linked(broker) as (link, events):
        link.drop("because")
        turns(link, lambda: link.connected)
        assert [(one.epoch, one.why, one.closed_by_peer) for one in events.lost] == [(1, "because", False)]
        assert link.epoch == 2


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)


@settings(max_examples=60, deadline=None)
@given(
    texts.filter(lambda topic: topic and not set("+#\0") & set(topic)), st.integers(0, 300),
    st.builds(
        PublishProperties, user=st.lists(st.tuples(texts, texts), max_size=3).map(tuple),
        content_type=st.none() | texts, response_topic=st.none() | st.just("a/b"),
        correlation_data=st.none() | st.binary(max_size=20), payload_format=st.none() | st.just(1),
        expiry_s=st.none() | st.integers(1, 1000),
    ),
)  # fmt: skip
def test_the_size_of_a_publish_is_that_of_its_packet(topic: str, length: int, properties: PublishProperties) -> None:
    size = publish_size(topic, length, properties)
    peer = Connected(1, False, 10, maximum_packet_size=size)
    assert misfit(peer, topic, length, 1, retain=False, properties=properties) is None
    assert "at most" in (misfit(peer, topic, length + 1, 1, retain=False, properties=properties) or "")
    with RawBroker(lambda _: 0) as broker, linked(broker) as (link, _):
        link.publish(topic, bytes(length), properties=properties)
        turns(link, lambda: link.unconfirmed == 0)
        assert broker.sizes == [size]


@pytest.mark.parametrize(
    ("qos", "retain", "user", "why"),
    [
        (2, False, "x", "Maximum QoS"),
        (1, True, "x", "Retain Available"),
        (1, False, "x" * 65_536, "more than 65535 bytes"),
        (1, False, "x" * 1000, "Maximum Packet Size"),
        (1, False, "x", None),
    ],
)
def test_what_a_broker_does_not_take_is_named(qos: int, retain: bool, user: str, why: str | None) -> None:
    small = Connected(1, False, 10, maximum_packet_size=1000, maximum_qos=1, retain_available=False)
    found = misfit(small, "t", 1, qos, retain=retain, properties=PublishProperties(user=(("u", user),)))
    assert (found is None) if why is None else (found is not None and why in found)
