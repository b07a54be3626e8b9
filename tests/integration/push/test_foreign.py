"""What devices and brokers may send, through push: it skips that, and the commands of all devices go on."""

from __future__ import annotations

import pytest

from bridge.settings import MqttSettings, PulsarSettings
from bridge.settings.push import PresenceRule
from pulsebridge.local.stack import LocalStack
from tests.support.mqtt_packets import Delivered
from tests.support.push import (
    Devices,
    all_acknowledged,
    command,
    parking_settings,
    provision,
    push_in_thread,
    push_settings,
    receipts,
    write_commands,
)
from tests.support.raw_broker import RawBroker
from tests.support.raw_mqtt import packet, text
from tests.support.raw_mqtt5 import BOM, RawMqtt5

pytestmark = pytest.mark.stack


def test_h33_a_retained_birth_message_with_a_byte_order_mark_stops_no_partition(
    broker: LocalStack, namespaces: PulsarSettings
) -> None:
    settings = parking_settings(broker, namespaces)
    provision(settings)
    mqtt = settings.mqtt
    topic = f"{settings.push.client_id}/poison/status"
    with RawMqtt5(mqtt.host, mqtt.port, f"{mqtt.client_id}-dev") as poison:
        assert poison.send(topic, BOM, b"online", 1, retain=True) < 0x80
        sent = [command(settings, "honest", number) for number in range(3)]
        write_commands(settings, sent)
        with Devices(settings, answering=lambda *_: True) as devices, push_in_thread(settings):
            devices.await_all(sent)
            all_acknowledged(settings)
        assert poison.send(topic, b"", b"", 2, retain=True) < 0x80  # leave nothing behind at the broker
    assert [receipts(settings)[one.command_id][-1].state for one in sent] == ["answered"] * 3


def test_h34_what_no_one_can_read_is_no_evidence_against_a_command(
    stack: LocalStack, namespaces: PulsarSettings
) -> None:
    """Malformed answers, and a presence topic that is not UTF-8 (H42), while commands are in flight."""
    bad = packet(0x32, text("poison/answers/0/0") + b"\0\1\x07\x26" + text("k") + text("\0"))
    bad += packet(0x32, text("poison/d/status") + b"\0\2\x08\x03" + text("a") + b"\x03" + text("b") + b"online")
    bad += packet(0x32, b"\0\x0fpoison/\xff/status" + b"\0\3\0online")
    bad += packet(0x36, text("poison/d/status") + b"\0\4\0online")

    def answer(one: Delivered) -> int:
        return 0x01  # H49: mochi's success

    with RawBroker(answer, forwards=bad) as broker:
        mqtt = MqttSettings(port=broker.port, client_id="poison", protocol="5", reconnect_max="500ms")
        rule = PresenceRule(filter="poison/+device/status")
        settings = push_settings(namespaces, mqtt, presence={"rules": (rule,)})
        provision(settings)
        sent = [command(settings, device, number) for number in range(3) for device in ("a", "b")]
        write_commands(settings, sent)
        with push_in_thread(settings):
            all_acknowledged(settings)
        assert broker.connections == 1
        assert {mid for _, mid in broker.acked} == {1, 2, 3}
    assert [receipts(settings)[one.command_id][-1].state for one in sent] == ["delivered"] * 6
