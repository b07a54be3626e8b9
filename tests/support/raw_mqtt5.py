"""MQTT 5 by hand over a socket, for the properties that client libraries refuse."""

from __future__ import annotations

import struct

from tests.support.mqtt_packets import CONNACK, PUBACK, connect
from tests.support.raw_mqtt import RawMqtt, packet, text

__all__ = ["BOM", "RawMqtt5"]

BOM = b"\x26" + text("\ufeffk") + text("v\ufeff") + b"\x03" + text("\ufefftext/plain")
"""A user property and a content type with U+FEFF, which MQTT allows (MQTT-1.5.4-3) and paho refuses."""


class RawMqtt5(RawMqtt):
    """A device that writes its own MQTT 5 packets."""

    def __init__(self, host: str, port: int, client_id: str) -> None:
        self._dial(host, port, connect(client_id, "5", clean=True, keep_alive=0))
        kind, body = self.read()
        assert (kind, body[1]) == (CONNACK, 0)

    def send(self, topic: str, properties: bytes, payload: bytes, mid: int, *, retain: bool = False) -> int:
        """Publish at QoS 1 and return the reason of PUBACK."""
        body = text(topic) + struct.pack("!H", mid) + bytes([len(properties)]) + properties + payload
        self._socket.sendall(packet(0x33 if retain else 0x32, body))
        kind, answer = self.read()
        assert kind == PUBACK
        return answer[2] if len(answer) > 2 else 0
