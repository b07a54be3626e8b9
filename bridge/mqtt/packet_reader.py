"""Reads packets from the bytes of a link's socket.

It confirms the link's publishes and answers the handshake of QoS 2. The link processes everything else.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import structlog

from bridge.mqtt import handshakes, packets
from bridge.mqtt.buffered_socket import BufferedSocket
from bridge.mqtt.exactly_once import ExactlyOnce
from bridge.mqtt.outbox import Outbox
from bridge.mqtt.packets import NAMES, MalformedError, short_packet
from bridge.mqtt.publishes import BAD, MORE, PublishDecoder, packet_length
from bridge.mqtt.types import Confirmation, Message

__all__ = ["FAILED_FROM", "Broken", "Packet", "PacketReader"]

log = structlog.get_logger("mqtt")

FAILED_FROM: Final = 0x80
"""Reason codes from here on are failures (MQTT 5, 2.4)."""


class Packet(NamedTuple):
    """A packet of the type ``kind`` that concerns the link."""

    kind: int
    reason: int = 0
    codes: list[int] | None = None
    """Those of a SUBACK, empty if it answers no SUBSCRIBE of ours."""
    connack: handshakes.Connack | None = None


class Broken(NamedTuple):
    """No further packet can be read: the broker sent ``what``, or the stream has ended (None)."""

    what: str | None


class PacketReader:
    """Reads the packets of one link.

    ``epoch`` is the number of the connection, 0 before its CONNACK. Until then no other packet is allowed.
    """

    def __init__(self, client_id: str, protocol: str, outbox: Outbox) -> None:
        self.exactly_once = ExactlyOnce()
        self.mqtt5 = protocol == "5"
        self.asked_qos = 0
        """The highest QoS of all subscriptions."""
        self._client_id = client_id
        self._protocol = protocol
        self._outbox = outbox
        self._decoder = PublishDecoder(mqtt5=self.mqtt5)

    def read(self, sock: BufferedSocket, limit: int, epoch: int) -> tuple[list[Message], Packet | Broken | None]:
        """Read the next messages, at most ``limit`` in one piece, or one other packet, or the stream's end.

        The stream's end may follow messages. An incomplete packet waits in the socket.
        """
        data, at = sock.data, sock.at
        found: list[Message] = []
        if not epoch:
            length = packet_length(data, at)
            length = MORE if length > len(data) - at else length
        elif sock.cut is not None:
            found, length = [self._decoder.head_of(data, *sock.cut)], 0
            sock.consumed(len(data))
        else:
            at, length = self._decoder.decode(data, at, limit, found)
            sock.consumed(at)
        if found:
            if self._decoder.met_qos_2:
                found = self._arrived(sock, found)
            if length != MORE:
                return found, None  # the link may pause now: the next call reads the rest
        if length == BAD:
            return found, Broken("a packet whose length has no end")
        if length == MORE:
            return found, self._incomplete(sock, packet_length(data, at), epoch)
        return found, self._other(sock, length, epoch) if length else None

    def _incomplete(self, sock: BufferedSocket, total: int, epoch: int) -> Broken | None:
        kind = 0 if total == MORE else sock.data[sock.at] >> 4
        if sock.over:
            return Broken(None)
        if total > sock.limit and (kind != packets.PUBLISH or not epoch):
            return Broken(f"{NAMES[kind]} of {total} bytes")
        sock.wants_more(total)
        return None

    def _arrived(self, sock: BufferedSocket, found: list[Message]) -> list[Message]:
        self._decoder.met_qos_2 = False
        found, repeated = self.exactly_once.arrived(found)
        sock.send(b"".join(short_packet(packets.PUBREC, mid) for mid in repeated))
        if self.asked_qos < 2:
            log.warning(
                "the MQTT broker sends QoS 2 on a subscription of a lower QoS, no message is lost. Action: none",
                client_id=self._client_id,
                shown=1,
            )
        return found

    def _other(self, sock: BufferedSocket, length: int, epoch: int) -> Packet | Broken | None:
        """Process one complete packet that is not a PUBLISH."""
        kind = sock.data[sock.at] >> 4
        name, mqtt5, body = NAMES[kind], self.mqtt5, packets.body_of(sock.data, sock.at, length)
        if (epoch > 0) != (kind != packets.CONNACK):  # MQTT-3.2.0-1, MQTT-3.2.0-2
            return Broken(f"{name} {'after' if epoch else 'before'} CONNACK")
        packet: Packet | None = None
        mid = reason = 0
        try:
            if packets.PUBACK <= kind <= packets.PUBCOMP:
                mid, reason = packets.acknowledged(body, mqtt5=mqtt5)
            elif kind == packets.CONNACK:
                packet = Packet(kind, connack=handshakes.connack(body, mqtt5=mqtt5))
            elif kind == packets.SUBACK:
                packet = Packet(kind, codes=self._outbox.answered(*packets.subscribed(body, mqtt5=mqtt5)))
            elif kind == packets.DISCONNECT and mqtt5:
                packet = Packet(kind, body[0] if body else 0)
            elif kind == packets.PINGRESP:
                packet = Packet(kind)
            elif kind != packets.UNSUBACK:
                return Broken(f"{name}, which MQTT {self._protocol} does not allow it to send")
        except MalformedError as e:
            return Broken(f"a malformed {name}: {e}")
        sock.consumed(sock.at + length)
        if packets.PUBACK <= kind <= packets.PUBCOMP:
            self._acknowledged(sock, kind, mid, reason, epoch)
        return packet

    def _acknowledged(self, sock: BufferedSocket, kind: int, mid: int, reason: int, epoch: int) -> None:
        if kind == packets.PUBREL:
            self.exactly_once.released(mid)
            sock.send(short_packet(packets.PUBCOMP, mid))  # also for an unknown one (MQTT-4.3.3-11)
        elif kind == packets.PUBREC and reason < FAILED_FROM:  # a failure completes the publish (MQTT-4.3.3-4)
            if self._outbox.received(mid, reason):
                sock.send(short_packet(packets.PUBREL, mid))
        else:
            ended = self._outbox.confirmed(mid, reason)
            if ended is not None and ended[0].confirmed is not None:
                ended[0].confirmed(Confirmation(ended[1], mid, epoch))
