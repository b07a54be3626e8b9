"""A publisher on bare paho, of any MQTT version and QoS: a second opinion beside the product's own client."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from paho.mqtt import client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from bridge.settings.mqtt import MqttSettings
from tests.support.waiting import poll_for

__all__ = ["bare_publisher", "publish", "retain_all"]

VERSIONS = {"3.1": paho.MQTTv31, "3.1.1": paho.MQTTv311, "5": paho.MQTTv5}
WAIT_S = 30.0


@contextmanager
def bare_publisher(
    mqtt: MqttSettings, name: str, protocol: str = "3.1.1", in_flight: int = 20, will: tuple[str, bytes] | None = None
) -> Iterator[paho.Client]:
    """A connected paho client with its loop running; the client id is derived from ingest's."""
    client = paho.Client(
        CallbackAPIVersion.VERSION2,
        client_id=f"{mqtt.client_id[:14]}-{name}",  # MQTT 3.1 takes at most 23 characters
        protocol=VERSIONS[protocol],
    )
    client.max_inflight_messages_set(in_flight)
    if will is not None:
        client.will_set(*will, qos=1)
    client.connect(mqtt.host, mqtt.port)
    client.loop_start()
    try:
        poll_for(client.is_connected, WAIT_S, "CONNACK")
        yield client
    finally:
        client.disconnect()
        client.loop_stop()


def publish(
    client: paho.Client, topic: str, payload: bytes, *, qos: int, retain: bool = False, **properties: Any
) -> None:
    """Publish and wait until the handshake of its QoS is over; ``properties`` by their names in paho (MQTT 5)."""
    sent = None
    if properties:
        sent = Properties(PacketTypes.PUBLISH)
        for name, value in properties.items():
            setattr(sent, name, value)
    info = client.publish(topic, payload, qos, retain, sent)
    info.wait_for_publish(WAIT_S)
    assert info.is_published(), f"{topic} was not confirmed"


def retain_all(client: paho.Client, topics: Sequence[str], payload: bytes) -> None:
    """Publish one retained message on each topic, with many in flight; an empty payload takes them away."""
    sent = [client.publish(topic, payload, 1, retain=True) for topic in topics]
    for info in sent:
        info.wait_for_publish(WAIT_S)
        assert info.is_published()
