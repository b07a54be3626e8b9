"""MQTT 3.1.1 by hand over a socket: a second opinion that shares no code with the product or with paho."""

from __future__ import annotations

import socket
import struct
from types import TracebackType
from typing import TypeVar

from bridge.settings.mqtt import MqttSettings

_Connection = TypeVar("_Connection", bound="RawMqtt")


def text(value: str | bytes) -> bytes:
    """A text or binary data behind its length."""
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("!H", len(data)) + data


def variable(number: int) -> bytes:
    """A Variable Byte Integer."""
    out = b""
    while True:
        number, digit = divmod(number, 128)
        out += bytes([digit | (0x80 if number else 0)])
        if not number:
            return out


def packet(kind: int, body: bytes) -> bytes:
    """A packet of this first byte."""
    return bytes([kind]) + variable(len(body)) + body


class RawMqtt:
    """One connection. ``session_present`` is the flag of CONNACK."""

    def __init__(self, host: str, port: int, client_id: str, *, clean: bool, timeout: float = 30.0) -> None:
        hello = packet(0x10, text("MQTT") + bytes([4, 2 if clean else 0]) + b"\0\0" + text(client_id))
        self._dial(host, port, hello, timeout)
        kind, body = self.read()
        assert (kind, body[1]) == (0x20, 0), (kind, body)
        self.session_present = bool(body[0])

    def _dial(self, host: str, port: int, hello: bytes, timeout: float = 30.0) -> None:
        self._socket = socket.create_connection((host, port), timeout=timeout)
        self._file = self._socket.makefile("rb")
        self._socket.sendall(hello)

    def __enter__(self: _Connection) -> _Connection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        self._socket.close()

    def read(self) -> tuple[int, bytes]:
        head = self._file.read(1)
        if not head:
            raise ConnectionError("the broker closed the connection")
        length = shift = 0
        while True:
            digit = self._file.read(1)[0]
            length |= (digit & 127) << shift
            shift += 7
            if digit < 128:
                return head[0], self._file.read(length)

    def subscribe(self, topic: str) -> None:
        """Subscribe at QoS 1; nothing comes before SUBACK."""
        before = self.subscribe_to_retained(topic)
        assert not before, before

    def subscribe_to_retained(self, topic: str) -> list[bytes]:
        """Subscribe at QoS 1, and return the PUBLISHes that came before SUBACK, which MQTT 3.1.1 allows (3.8.4)."""
        self._socket.sendall(packet(0x82, b"\0\1" + text(topic) + b"\1"))
        before = []
        while True:
            kind, body = self.read()
            if kind == 0x90:
                assert body[-1] == 1, (kind, body)
                return before
            assert kind & 0xF0 == 0x30, (kind, body)
            before.append(body)

    def publish(self, topic: str, payload: bytes, mid: int, *, retain: bool = False) -> None:
        """Publish at QoS 1 and wait for the PUBACK."""
        self._socket.sendall(packet(0x32 | retain, text(topic) + struct.pack("!H", mid) + payload))
        kind, body = self.read()
        assert (kind, body) == (0x40, struct.pack("!H", mid)), (kind, body)

    def receive(self) -> bytes:
        """Wait for the next PUBLISH at QoS 1, acknowledge it and return its payload."""
        kind, body = self.read()
        assert kind & 0xF6 == 0x32, (kind, body)
        start = 2 + struct.unpack("!H", body[:2])[0]
        self._socket.sendall(packet(0x40, body[start : start + 2]))
        return body[start + 2 :]


def at_broker(mqtt: MqttSettings, client_id: str) -> bool:
    """Whether the broker has a session; one that this look would leave is ended."""
    with RawMqtt(mqtt.host, mqtt.port, client_id, clean=False) as look:
        present = look.session_present
    if not present:
        with RawMqtt(mqtt.host, mqtt.port, client_id, clean=True):
            pass
    return present
