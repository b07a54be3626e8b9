"""Reads packets from the bytes of a link's socket.

It confirms the link's publishes and answers the handshake of QoS 2. The link processes everything else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import structlog

from bridge.mqtt import packets
from bridge.mqtt.buffered_socket import BufferedSocket
from bridge.mqtt.outbox import Outbox
from bridge.mqtt.packets import NAMES, MalformedError, short_packet
from bridge.mqtt.publishes import BAD, MORE, PublishDecoder, packet_length
from bridge.mqtt.types import Connected, Message

__all__ = ["FAILED_FROM", "Broken", "ExactlyOnce", "Packet", "PacketReader"]

log = structlog.get_logger("mqtt")

FAILED_FROM: Final = 0x80
"""Reason codes from here on are failures (MQTT 5, 2.4)."""


class Packet(NamedTuple):
    """A packet of the type ``kind`` that concerns the link."""

    kind: int
    reason: int = 0
    codes: list[int] | None = None
    """Those of a SUBACK, empty if it answers no SUBSCRIBE of ours."""
    granted: Connected | None = None
    """The content of a CONNACK."""


class Broken(NamedTuple):
    """No further packet can be read: the broker sent ``what``, or the stream has ended (None)."""

    what: str | None


class ExactlyOnce:
    """The QoS 2 messages that a broker sends us, from PUBLISH to PUBREL (MQTT 5, 4.3.3).

    PUBREC is sent when the receiver of the message acknowledges it, as PUBACK at QoS 1. Until then the broker keeps the
    message, and resends it after a lost connection. From PUBREC on the message is ours: a repetition of the same
    PUBLISH gets another PUBREC and is not delivered a second time. Packet identifiers bound it to 65,535.
    """

    def __init__(self) -> None:
        self._delivered: set[int] = set()  # on this connection, and not acknowledged
        self._received: set[int] = set()  # PUBREC was sent, and no PUBREL came

    def connected(self, *, session_present: bool) -> None:
        """Begin a connection. The broker resends unacknowledged messages, or has lost the session."""
        self._delivered.clear()
        if not session_present:
            self._received.clear()

    def arrived(self, messages: Sequence[Message]) -> tuple[list[Message], list[int]]:
        """Return the messages to deliver, and the packet identifiers that get PUBREC at once.

        Only a PUBLISH with DUP is a repetition (MQTT-3.3.1-1); any other one is a new message.
        """
        new: list[Message] = []
        repeated: list[int] = []
        for message in messages:
            if message.qos == 2 and message.mid:
                if message.dup and message.mid in self._received:
                    repeated.append(message.mid)
                    continue
                if message.dup and message.mid in self._delivered:
                    continue
                self._received.discard(message.mid)
                self._delivered.add(message.mid)
            new.append(message)
        return new, repeated

    def acknowledgements(self, mids: Sequence[int]) -> bytes | None:
        """Return the packets that acknowledge messages, in order; None if all of them are of QoS 1."""
        if not self._delivered:
            return None
        written: list[bytes] = []
        for mid in mids:
            two = mid in self._delivered
            if two:
                self._delivered.discard(mid)
                self._received.add(mid)
            written.append(short_packet(packets.PUBREC if two else packets.PUBACK, mid))
        return b"".join(written)

    def released(self, mid: int) -> None:
        """Note PUBREL: the packet identifier is free."""
        self._received.discard(mid)


class PacketReader:
    """Reads the packets of one link.

    ``epoch`` is the number of the connection, 0 before its CONNACK. Until then no other packet is allowed.
    """

    def __init__(self, client_id: str, protocol: str, outbox: Outbox) -> None:
        self.exactly_once = ExactlyOnce()
        self.mqtt5 = protocol == "5"
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
        log.warning(  # nothing of ours subscribes at QoS 2
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
                reason, granted = packets.connack(body, mqtt5=mqtt5)
                packet = Packet(kind, reason, granted=granted)
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
            self._acknowledged(sock, kind, mid, reason)
        return packet

    def _acknowledged(self, sock: BufferedSocket, kind: int, mid: int, reason: int) -> None:
        if kind == packets.PUBREL:
            self.exactly_once.released(mid)
            sock.send(short_packet(packets.PUBCOMP, mid))  # also for an unknown one (MQTT-4.3.3-11)
        elif kind == packets.PUBREC and reason < FAILED_FROM:  # a failure completes the publish (MQTT-4.3.3-4)
            if self._outbox.received(mid, reason):
                sock.send(short_packet(packets.PUBREL, mid))
        else:
            ended = self._outbox.confirmed(mid, reason)
            if ended is not None and ended[0].confirmed is not None:
                ended[0].confirmed(ended[1])
