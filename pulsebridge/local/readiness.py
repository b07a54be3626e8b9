"""Readiness of the servers: a health URL and a round trip of a message, never a sleep."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import httpx

from bridge.errors import TransientError

__all__ = ["mqtt_address", "mqtt_round_trip", "pulsar_healthy", "pulsar_round_trip"]

_READY_TOPIC = "persistent://public/default/pulsebridge-ready"


def mqtt_address(url: str) -> tuple[str, int]:
    """Return host and port of ``mqtt://host:port`` or ``host:port`` (default port: 1883)."""
    parts = urlsplit(url if "://" in url else f"mqtt://{url}")
    return parts.hostname or "127.0.0.1", parts.port or 1883


def pulsar_healthy(admin_url: str, timeout_s: float) -> bool:
    """Return whether the broker passes its health check, which produces and reads a message."""
    try:
        answer = httpx.get(f"{admin_url}/admin/v2/brokers/health", timeout=timeout_s, trust_env=False)
    except httpx.HTTPError:
        return False
    return answer.status_code == 200


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


# --- minimal MQTT 3.1.1: four packets, no session, no thread; the real client is bridge.mqtt.client -----------


def _packet(kind: int, body: bytes) -> bytes:
    assert len(body) < 128
    return bytes((kind, len(body))) + body


def _text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("!H", len(data)) + data


def _exactly(link: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = link.recv(count - len(data))
        if not more:
            raise ConnectionError("the broker closed the connection")
        data += more
    return data


def _read(link: socket.socket) -> tuple[int, bytes]:
    kind, length = _exactly(link, 2)
    if length > 127:
        raise ConnectionError("the broker sent a packet of another size")
    return kind, _exactly(link, length)


@contextmanager
def _our_errors(host: str, port: int) -> Iterator[None]:
    try:
        yield
    except OSError as e:
        raise TransientError(f"MQTT broker at {host}:{port}: {e}") from e


def mqtt_round_trip(host: str, port: int, timeout_s: float) -> None:
    """Publish one QoS 1 message to the broker and receive it. Raises TransientError if that fails."""
    name = f"pulsebridge-ready-{os.urandom(4).hex()}"
    with _our_errors(host, port), socket.create_connection((host, port), timeout=timeout_s) as link:
        link.settimeout(timeout_s)
        # clean session, keep-alive 60 s
        link.sendall(_packet(0x10, _text("MQTT") + b"\x04\x02\x00\x3c" + _text(name)))
        kind, body = _read(link)
        if kind != 0x20 or body[1] != 0:
            raise ConnectionError(f"CONNECT was answered with {kind:#x} {body.hex()}")
        link.sendall(_packet(0x82, b"\x00\x01" + _text(name) + b"\x00"))
        kind, body = _read(link)
        if kind != 0x90 or body[-1] > 2:
            raise ConnectionError(f"SUBSCRIBE was answered with {kind:#x} {body.hex()}")
        link.sendall(_packet(0x32, _text(name) + b"\x00\x02" + b"ready"))
        kinds = {_read(link)[0] & 0xF0 for _ in range(2)}
        if kinds != {0x30, 0x40}:
            raise ConnectionError(f"PUBLISH was answered with {sorted(map(hex, kinds))}")
        link.sendall(b"\xe0\x00")
