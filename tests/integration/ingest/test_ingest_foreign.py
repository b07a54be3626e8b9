"""What devices and brokers may send, through ingest: each message is stored or a dead letter, and ingest goes on."""

from __future__ import annotations

from collections import Counter

import pytest

from bridge import contract
from bridge.mqtt.device import DeviceClient
from bridge.settings import MqttSettings, PulsarSettings
from pulsebridge.local.stack import LocalStack
from tests.support.ingest import dead_letters, ingest_settings, rule_for, running_ingest, stored, wait_for, worker_of
from tests.support.mqtt_streams import plain_publish
from tests.support.raw_broker import RawBroker
from tests.support.raw_mqtt import packet, text
from tests.support.raw_mqtt5 import BOM, RawMqtt5
from tests.support.stack import mqtt_settings
from tests.support.waiting import poll_for

pytestmark = pytest.mark.stack


def test_h33_a_byte_order_mark_in_a_property_is_stored_and_ingest_goes_on(
    broker: LocalStack, namespaces: PulsarSettings
) -> None:
    mqtt = mqtt_settings(broker, protocol="5")
    root = mqtt.client_id
    with running_ingest(ingest_settings(mqtt, namespaces, routes=(rule_for(root),))) as service:
        with RawMqtt5(mqtt.host, mqtt.port, f"{root}-dev") as dev:
            assert dev.send(f"{root}/w-1/x", BOM, b"marked", 1) < 0x80
            assert dev.send(f"{root}/w-1/x", b"", b"honest", 2) < 0x80
        found = wait_for(namespaces, 2)
        assert worker_of(service).link.epoch == 1
    assert [m.payload for m in found] == [b"marked", b"honest"]
    properties = found[0].properties
    assert contract.decode_user_properties(properties[contract.P_USER]) == [("\ufeffk", "v\ufeff")]
    assert properties[contract.P_CONTENT_TYPE] == "\ufefftext/plain"


def test_h33_what_is_malformed_is_a_dead_letter_with_its_puback(stack: LocalStack, namespaces: PulsarSettings) -> None:
    """No broker at hand forwards these, so a socket plays one."""
    topic = text("plant/w-1/x")
    bodies = {
        "contains U+0000": topic + b"\0\1\x07\x26" + text("k") + text("\0") + b"p",
        "properties is not UTF-8": topic + b"\0\2\x07\x26" + text("k") + b"\0\1\xff" + b"p",
        "property 3 twice": topic + b"\0\3\x08\x03" + text("a") + b"\x03" + text("b") + b"p",
        "topic alias": topic + b"\0\4\x03\x23\0\1p",
        "its topic is empty": b"\0\0\0\5\0p",
        "its topic is not UTF-8": b"\0\3a/\xff" + b"\0\6\0p",
        "longer than the packet": topic + b"\0\7\x7f",
    }
    sent = b"".join(packet(0x32, body) for body in bodies.values())
    sent += packet(0x36, topic + b"\0\x08\0p") + packet(0x32, topic + b"\0\0\0p")  # QoS 3, packet identifier 0
    sent += plain_publish("plant/w-1/x", b"honest", 9, protocol="5")
    sent += packet(0x34, topic + b"\0\x0a\0two")
    with RawBroker(forwards=sent) as broker:
        mqtt = MqttSettings(port=broker.port, client_id="foreign", protocol="5")
        rule = rule_for("plant")
        with running_ingest(ingest_settings(mqtt, namespaces, routes=(rule,), resume_topic=None)):
            poll_for(lambda: len(broker.acked) >= 10, 60, "every acknowledgement")
            found = wait_for(namespaces, 2)
        assert broker.connections == 1
    assert [m.payload for m in found] == [b"honest", b"two"]
    # H51: PUBREC in its turn, then PUBCOMP; nothing for what has no packet identifier.
    assert broker.acked == [*((4, mid) for mid in range(1, 8)), (4, 9), (5, 10), (7, 10)]
    dead = dead_letters(namespaces)
    reasons = Counter(m.properties[contract.P_DEAD_REASON] for m in dead)
    for why, body in bodies.items():
        assert [m.payload for m in dead if why in m.properties[contract.P_DEAD_REASON]] == [body], reasons
    assert len(dead) == len(bodies) + 2
    assert all(reason.startswith("malformed PUBLISH: ") for reason in reasons)


def test_h50_a_broker_that_closes_right_after_connack_does_not_end_ingest(
    stack: LocalStack, namespaces: PulsarSettings
) -> None:
    sent = plain_publish("plant/w-1/x", b"honest", 9, protocol="5")
    with RawBroker(forwards=sent, closes=5) as broker:
        mqtt = MqttSettings(port=broker.port, client_id="flapping", protocol="5", reconnect_max="200ms")
        with running_ingest(ingest_settings(mqtt, namespaces, routes=(rule_for("plant"),), resume_topic=None)):
            (found,) = wait_for(namespaces, 1)
    assert found.payload == b"honest"
    assert broker.connections == 6


@pytest.mark.parametrize("protocol", ["3.1", "3.1.1"])
def test_h50_a_taken_over_session_is_no_end_before_mqtt_5(
    stack: LocalStack, namespaces: PulsarSettings, protocol: str
) -> None:
    """These brokers do not report a takeover: ingest reconnects without end, and stores the published messages."""
    mqtt = mqtt_settings(stack, protocol=protocol)
    root = mqtt.client_id
    with running_ingest(ingest_settings(mqtt, namespaces, routes=(rule_for(root),))) as service:
        for number in range(4):
            worker = worker_of(service)
            epoch = worker.link.epoch
            with DeviceClient(mqtt, root, persistent=True):  # connects, and goes
                pass
            poll_for(lambda: worker.link.connected and worker.link.epoch > epoch, 60, "the session back")  # noqa: B023
            with DeviceClient(mqtt, f"{root}-d{number}") as dev:
                dev.publish(f"{root}/w-1/x", b"%d" % number)
                assert dev.flush()
        poll_for(lambda: len({m.payload for m in stored(namespaces, "fleet")}) == 4, 60, "all four", every=0.3)
        assert not service.ended.is_set()
