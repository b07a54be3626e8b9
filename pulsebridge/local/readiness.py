"""Readiness of the servers: a health URL and a round trip of a message, never a sleep."""

from __future__ import annotations

import os
import socket
import threading
from urllib.parse import urlsplit

__all__ = ["check_listener", "mqtt_address", "mqtt_round_trip", "pulsar_healthy", "pulsar_round_trip"]

_READY_TOPIC = "persistent://public/default/pulsebridge-ready"


def mqtt_address(url: str) -> tuple[str, int]:
    """Return host and port of ``mqtt://host:port`` or ``host:port`` (default port: 1883)."""
    parts = urlsplit(url if "://" in url else f"mqtt://{url}")
    return parts.hostname or "127.0.0.1", parts.port or 1883


def check_listener(host: str, port: int, timeout_s: float) -> None:
    """Connect by TCP to a running MQTT broker, which may require a login or TLS. Raises TransientError if that fails."""
    from bridge.errors import TransientError

    try:
        socket.create_connection((host, port), timeout_s).close()
    except OSError as e:
        raise TransientError(
            f"the MQTT broker at {host}:{port} cannot be reached: {e}",
            remedy="start it, or correct local.mqtt_url (--mqtt)",
        ) from e


def pulsar_healthy(admin_url: str, timeout_s: float) -> bool:
    """Return whether the broker passes its health check, which produces and reads a message."""
    from bridge.pulsar.admin import PulsarAdmin
    from bridge.settings.pulsar import PulsarSettings

    with PulsarAdmin(PulsarSettings(admin_url=admin_url), timeout_s=timeout_s) as admin:
        return admin.healthy()


def pulsar_round_trip(service_url: str, admin_url: str) -> None:
    """Send one message to Pulsar and receive it. Raises TransientError if that fails.

    Afterwards the topic retains no message, and Pulsar deletes it once it is idle.
    """
    from bridge.pulsar.client import MessageId, PulsarClient, our_errors
    from bridge.settings.pulsar import PulsarSettings

    settings = PulsarSettings(service_url=service_url, admin_url=admin_url, operation_timeout="10s")
    text = os.urandom(8).hex().encode()
    with PulsarClient(settings) as client, our_errors(f"round trip through {service_url}"):
        reader = client.reader(_READY_TOPIC, MessageId.latest)
        producer = client.producer(_READY_TOPIC, batching=False)
        producer.send(text)
        while reader.read_next(10_000).data() != text:
            continue  # the message of another process
        producer.close()
        reader.close()


def mqtt_round_trip(host: str, port: int, timeout_s: float) -> None:
    """Publish one QoS 1 message to the broker and receive it. Raises TransientError if that fails."""
    from bridge.errors import TransientError
    from bridge.mqtt.device import DeviceClient
    from bridge.settings.mqtt import MqttSettings

    token = os.urandom(8).hex()
    arrived = threading.Event()
    # Short waits: a server that starts refuses connections first.
    settings = MqttSettings(host=host, port=port, protocol="3.1.1", reconnect_min="50ms", reconnect_max="250ms")
    client = DeviceClient(settings, f"pb-ready-{token[:8]}", on_message=lambda _message: arrived.set())
    client.connect(timeout_s)
    try:
        client.subscribe(f"pulsebridge-ready/{token}", timeout=timeout_s)
        client.publish(f"pulsebridge-ready/{token}", b"ready")
        if not arrived.wait(timeout_s):
            raise TransientError(
                f"the MQTT broker at {host}:{port} accepted a message and did not deliver it in {timeout_s:g} s"
            )
    finally:
        client.close()
