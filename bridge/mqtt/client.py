"""Links to an MQTT broker, which reconnect until they are stopped.

``Link`` is one MQTT session, reconnected with jittered backoff. It sends and receives packets. Its ``LinkHandler``
decides what a message means, when it is acknowledged and what is fatal.

Threads
-------
- A link belongs to ONE loop thread: the one that calls ``turn()`` or ``run()``, or its own after ``start()``.
- All methods of the handler and all confirmation callbacks run on that thread. They must not block.
- From any thread: ``publish``, ``wake``, ``stop``, ``join``, ``unconfirmed``. On the loop thread only: all else.
- An exception in a handler stops the loop: see ``loop_thread``.
"""

from __future__ import annotations

import random
import struct
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import structlog

from bridge.backoff import backoff_s
from bridge.errors import ConfigError
from bridge.mqtt import handshakes, packets
from bridge.mqtt.buffered_socket import MAX_PACKET_BYTES, BufferedSocket, dialled
from bridge.mqtt.exactly_once import ExactlyOnce
from bridge.mqtt.keepalive import KeepAlive
from bridge.mqtt.loop_thread import LoopThread
from bridge.mqtt.outbox import Outbox, Outgoing
from bridge.mqtt.publishes import BAD, MORE, PublishDecoder, packet_length
from bridge.mqtt.refusals import AT_ONCE_S, not_connected, refused
from bridge.mqtt.types import (
    Confirmation,
    Connected,
    Disconnected,
    LinkHandler,
    Message,
    PublishProperties,
    Subscription,
    Will,
)
from bridge.poller import Poller
from bridge.settings.mqtt import MqttSettings

__all__ = ["Link", "LinkHandler"]

log = structlog.get_logger("mqtt")

_SOON_S: Final = 1.0
"""Longest wait, in seconds, before a reconnect to a broker that accepted the last connection."""
_FILLS: Final = 4
"""Maximum reads of the socket in one turn, so that acknowledgements are not delayed."""
_FAILED_FROM: Final = 0x80
_IMPLEMENTATION: Final = 0x83
"""Reason "Implementation specific error" (MQTT 5, 2.4): here of a publish that MQTT cannot encode."""
_PUBACK: Final = 0x4002_0000
"""Type and length of a PUBACK; its packet identifier is the second half."""


class Link(LoopThread):
    """One MQTT session with one broker.

    ``receive_maximum`` bounds the unacknowledged messages that the broker may send (MQTT 5, 3.1.2.11.3).
    ``persistent`` keeps the session at the broker while we are offline; links that only publish do not need it. A new
    connection resends the unconfirmed publishes of the last one, in order. ``window`` bounds the QoS 1 publishes that
    are sent and unconfirmed; the broker's own Receive Maximum applies as well. Of a PUBLISH of more than
    ``max_packet_bytes`` only the beginning is kept, and it arrives as malformed.
    """

    def __init__(
        self,
        settings: MqttSettings,
        handler: LinkHandler,
        *,
        client_id: str | None = None,
        persistent: bool = True,
        receive_maximum: int = 65535,
        window: int = 65535,
        will: Will | None = None,
        max_packet_bytes: int = MAX_PACKET_BYTES,
    ) -> None:
        self.settings = settings
        self.client_id = settings.client_id if client_id is None else client_id
        super().__init__(f"mqtt-{self.client_id}")
        self.handler = handler
        self.epoch = 0
        """Number of the last connection that a CONNACK accepted; an ack belongs to the epoch of its message."""
        self.granted = Connected(0, False)
        """The content of the last CONNACK that accepted us."""
        self.connected = False
        self.paused = False
        self.receive_maximum = receive_maximum  # from the next CONNECT on
        self._outbox = Outbox(window)
        self._accepted = 0  # the epoch of the current connection, 0 before its CONNACK
        self.attempts = 0
        """How many attempts in a row failed, or brought a connection that ended within ``AT_ONCE_S``."""
        self._next_attempt = 0.0
        self._connack_deadline = 0.0
        self._lost: Disconnected | None = None
        self._accepted_at = 0.0
        self._asked_qos = 0
        self._exactly_once = ExactlyOnce()
        self._max_packet_bytes = max_packet_bytes
        self.keepalive = KeepAlive(settings.keep_alive)
        self._turning = 0  # the thread that is in ``on_turn``
        self._sock: BufferedSocket | None = None
        self._poller = Poller()
        self._mqtt5 = settings.protocol == "5"
        self._decoder = PublishDecoder(mqtt5=self._mqtt5)
        self._persistent, self._will = persistent, will

    # --- from any thread ---

    def publish(
        self,
        topic: str,
        payload: bytes,
        *,
        qos: int = 1,
        retain: bool = False,
        properties: PublishProperties | None = None,
        confirmed: Callable[[Confirmation], None] | None = None,
        sent: Callable[[], None] | None = None,
    ) -> None:
        """Queue a publish. The loop thread calls ``sent`` each time that it is sent, ``confirmed`` at its end.

        The caller bounds the queue. Properties are left out before MQTT 5. A publish that MQTT cannot encode, because
        a text is not UTF-8 or too long, is confirmed with 0x83. Raises ValueError for a topic that is empty, too long
        or not UTF-8, or has a wildcard.
        """
        if not topic or "+" in topic or "#" in topic or "\0" in topic or len(topic.encode()) > 65535:
            raise ValueError(f"not a topic to publish to: {topic[:80]!r}")
        self._outbox.put(Outgoing(topic, payload, qos, retain, properties, confirmed, sent))
        if self._turning != threading.get_ident():  # else it is sent at the end of this turn
            self.wake()

    @property
    def unconfirmed(self) -> int:
        """How many publishes are queued or sent and not yet confirmed."""
        return self._outbox.unconfirmed

    def wake(self) -> None:
        """Make the loop thread run its next turn at once."""
        self._poller.wake()

    # --- the loop ---

    def turn(self, timeout: float = 1.0) -> None:
        """Run one turn: connect if that is due, wait for bytes, a wake-up or the time-out, read, deliver, write."""
        if self._sock is None and self._lost is None and time.monotonic() >= self._next_attempt:
            self._connect()
        arrived = self._select(min(timeout, self._patience(time.monotonic())))
        if self._sock is not None:
            self._read(arrived)
        if self._sock is not None:
            self._check_time(time.monotonic())
        self._report_loss()
        self._turning = threading.get_ident()
        self.handler.on_turn(time.monotonic())
        self._turning = 0  # later publishes wake the next turn
        self._send_waiting()
        if self._sock is not None:
            self._write()

    def _patience(self, now: float) -> float:
        if self._sock is None:
            return max(0.0, self._next_attempt - now)
        if not self._reading_paused and (self._sock.readable or not self._sock.drained):
            return 0.0
        return self.keepalive.next_in(now) if self.connected else max(0.0, self._connack_deadline - now)

    def _select(self, timeout: float) -> bool:
        sock = self._sock
        if sock is None:
            return self._poller.wait(None, timeout, read=False, write=False)
        return self._poller.wait(sock, timeout, read=not self._reading_paused, write=bool(sock.unsent))

    @property
    def _reading_paused(self) -> bool:
        stuck = self._sock is not None and self._sock.stuck  # a broker that reads no answers is not read
        return self.connected and (self.paused or stuck)  # CONNACK is read in any case

    def _read(self, arrived: bool) -> None:
        sock = self._sock
        assert sock is not None
        self._consume(sock)
        for _ in range(_FILLS):
            if (sock.drained and not arrived) or self._reading_paused or self._sock is not sock:
                return
            if sock.fill():
                self.keepalive.received(time.monotonic())
            self._consume(sock)
            arrived = False

    def _consume(self, sock: BufferedSocket) -> None:
        # The handler may pause in the middle: the buffered packets then wait for the turn after ``resume``.
        while not self._reading_paused and self._sock is sock and sock.readable:
            self._take(sock)

    def _take(self, sock: BufferedSocket) -> None:
        """Process the next PUBLISH packets in one piece, one other packet, or the stream's end."""
        data, at = sock.data, sock.at
        found: list[Message] = []
        if not self.connected:
            length = packet_length(data, at)
            length = MORE if length > len(data) - at else length
        elif sock.cut is not None:
            found, length = [self._decoder.head_of(data, *sock.cut)], 0
            sock.consumed(len(data))
        else:
            at, length = self._decoder.decode(data, at, self.handler.piece, found)
            sock.consumed(at)
        if found:
            self._deliver(found)
            if length != MORE or self._sock is not sock:
                return  # the handler may have paused: the next call processes the rest
        if length == BAD:
            self._broke("a packet whose length has no end")
        elif length == MORE:
            self._await(sock, packet_length(data, at))
        elif length:
            self._take_other(sock, data[at] >> 4, length)

    def _await(self, sock: BufferedSocket, total: int) -> None:
        kind = 0 if total == MORE else sock.data[sock.at] >> 4
        if sock.over:
            self._ended(sock)
        elif total > self._max_packet_bytes and (kind != packets.PUBLISH or not self.connected):
            self._broke(f"{packets.NAMES[kind]} of {total} bytes")
        else:
            sock.wants_more(total)

    def _deliver(self, found: list[Message]) -> None:
        if self._decoder.met_qos_2:
            self._decoder.met_qos_2 = False
            found, repeated = self._exactly_once.arrived(found)
            self._answer(packets.PUBREC, repeated)
            if self._asked_qos < 2:
                log.warning(
                    "the MQTT broker sends QoS 2 on a subscription of a lower QoS, no message is lost. Action: none",
                    client_id=self.client_id,
                    shown=1,
                )
        if found:
            self.handler.on_messages(found)

    def _take_other(self, sock: BufferedSocket, kind: int, length: int) -> None:
        """Process one complete packet that is not a PUBLISH. An unreadable one closes the connection."""
        mqtt5, name = self._mqtt5, packets.NAMES[kind]
        body = packets.body_of(sock.data, sock.at, length)
        if self.connected != (kind != packets.CONNACK):  # MQTT-3.2.0-1, MQTT-3.2.0-2
            self._broke(f"{name} {'after' if self.connected else 'before'} CONNACK")
            return
        at = sock.at + length
        accepted: handshakes.Connack | None = None
        codes: list[int] = []
        mid = reason = 0
        try:
            if kind == packets.CONNACK:
                accepted = handshakes.connack(body, mqtt5=mqtt5)
            elif kind == packets.SUBACK:
                codes = self._outbox.answered(*packets.subscribed(body, mqtt5=mqtt5))
            elif packets.PUBACK <= kind <= packets.PUBCOMP:
                mid, reason = packets.acknowledged(body, mqtt5=mqtt5)
        except packets.MalformedError as e:
            self._broke(f"a malformed {name}: {e}")
            return
        sock.consumed(at)
        if accepted is not None:
            self._take_connack(accepted)
        elif kind in (packets.PUBACK, packets.PUBREC, packets.PUBCOMP):
            self._take_confirmation(kind, mid, reason)
        elif kind == packets.PUBREL:
            self._exactly_once.released(mid)
            self._answer(packets.PUBCOMP, [mid])  # also for an unknown one (MQTT-4.3.3-11)
        elif codes:
            self.handler.on_subscribed(codes)
        elif kind == packets.PINGRESP:
            self.keepalive.pong()
        elif kind == packets.DISCONNECT and mqtt5:
            code = body[0] if body else 0
            self._drop(f"the broker sent DISCONNECT: {handshakes.reason_name(code)}", code)
        elif kind not in (packets.SUBACK, packets.UNSUBACK):
            self._broke(f"{name}, which MQTT {self.settings.protocol} does not allow it to send")

    def _take_confirmation(self, kind: int, mid: int, reason: int) -> None:
        if kind == packets.PUBREC and reason < _FAILED_FROM:  # a failure completes the publish (MQTT-4.3.3-4)
            if self._outbox.received(mid, reason):
                self._answer(packets.PUBREL, [mid])
            return
        ended = self._outbox.confirmed(mid, reason)
        if ended is not None and ended[0].confirmed is not None:
            ended[0].confirmed(Confirmation(ended[1], mid, self.epoch))

    def _take_connack(self, connack: handshakes.Connack) -> None:
        if connack.reason >= _FAILED_FROM:
            self._lost = refused(handshakes.reason_name(connack.reason), connack.reason, self.settings, self.client_id)
            self._close_socket()
            return
        self._accepted = self.epoch = self.epoch + 1
        self._accepted_at = time.monotonic()
        self.connected = True
        self.granted = replace(connack.granted, epoch=self.epoch)
        self._outbox.connected(self.granted.receive_maximum)
        self._exactly_once.connected(session_present=self.granted.session_present)
        keep_alive_s = self.settings.keep_alive if connack.keep_alive_s is None else connack.keep_alive_s
        self.keepalive.opened(self._accepted_at, float(keep_alive_s))
        self.handler.on_connected(self.granted)

    def _write(self) -> None:
        assert self._sock is not None
        if self._sock.unsent:
            self._sock.flush()
            self.keepalive.sent(time.monotonic())

    def _check_time(self, now: float) -> None:
        assert self._sock is not None
        if not self.connected:
            if now >= self._connack_deadline:
                self._drop(f"no CONNACK within {self.settings.connect_timeout:g} s")
            return
        if self._reading_paused and self._sock.make_room(now):
            self.keepalive.received(now)
        if self._sock.failure is not None and self._reading_paused:
            self._drop(f"the connection broke: {self._sock.failure}")
            return
        self.keepalive.note_reading(now, caught_up=not self.paused and (self._sock.stuck or self._sock.drained))
        if self.keepalive.dead(now):
            self._drop(f"no answer to PINGREQ within the keep-alive of {self.keepalive.interval_s:g} s")
        elif self.keepalive.ping_due(now):
            self.ping()

    # --- connecting ---

    def _connect(self) -> None:
        s = self.settings
        self._lost = None
        self._accepted = 0
        try:
            packet = handshakes.connect_packet(
                s,
                self.client_id,
                persistent=self._persistent,
                will=self._will,
                receive_maximum=self.receive_maximum,
            )
            sock = dialled(s, self._max_packet_bytes)
        except (OSError, ValueError, ConfigError) as e:
            self._lost = not_connected(e, s)
            self._report_loss()
            return
        self._sock = sock
        self._connack_deadline = time.monotonic() + s.connect_timeout
        sock.send(packet)
        self._write()

    def _ended(self, sock: BufferedSocket) -> None:
        if not self._accepted and sock.failure is not None:
            self._lost = not_connected(sock.failure, self.settings)  # TLS 1.3 verifies our certificate last
        else:
            self._lost = Disconnected(self._accepted, "the connection was closed", closed_by_peer=True)
        self._close_socket()

    def _broke(self, what: str) -> None:
        """Close a connection because of the broker's bytes, which cannot be read (MQTT 5, 4.13)."""
        self._drop(f"the broker sent {what}")

    def _drop(self, why: str, reason: int | None = None) -> None:
        self._lost = Disconnected(self._accepted, why, reason)
        self._close_socket()

    def _close_socket(self) -> None:
        sock, self._sock = self._sock, None
        self.connected = False
        if sock is not None:
            self._poller.forget(sock)
            sock.close()

    def _report_loss(self) -> None:
        if self._lost is None:
            return
        event, self._lost = self._lost, None
        self.connected = False
        self._outbox.connection_lost()
        # A broker that accepts us and closes at once must not be redialled without a pause. One message that makes it
        # close must not delay the others as long as a broker that is down.
        lasted = event.epoch > 0 and time.monotonic() - self._accepted_at >= AT_ONCE_S
        self.attempts = 0 if lasted else self.attempts + 1
        shortest_s, longest_s = float(self.settings.reconnect_min), float(self.settings.reconnect_max)
        if event.epoch:
            longest_s = min(longest_s, max(shortest_s, _SOON_S))
        self._next_attempt = time.monotonic() + backoff_s(self.attempts, shortest_s, longest_s, random.random())
        self.handler.on_disconnected(event)

    # --- on the loop thread ---

    def acknowledge(self, mids: Sequence[int], epoch: int) -> bool:
        """Write PUBACK, or PUBREC at QoS 2, for messages of connection ``epoch``, in this order, in one piece.

        Returns False, and writes nothing, if that connection is no longer open. The broker resends those messages,
        perhaps with other packet identifiers, and these ones may be of other messages now (H2).
        """
        if self._sock is None or not self.connected or epoch != self.epoch:
            return False
        packed = self._exactly_once.acknowledgements(mids)
        if packed is None:
            # A reason code of 0 and no properties may be left out (MQTT 5, 3.4.2.1): the same four bytes in all versions.
            packed = struct.pack(f"!{len(mids)}I", *[_PUBACK | mid for mid in mids])
        self._sock.send(packed)
        return True

    def _answer(self, kind: int, mids: Sequence[int]) -> None:
        if self._sock is not None:
            self._sock.send(b"".join(packets.short_packet(kind, mid) for mid in mids))

    def subscribe(self, subscriptions: Sequence[Subscription]) -> None:
        """Send one SUBSCRIBE; ``on_subscribed`` gets the answer."""
        self._asked_qos = max(self._asked_qos, *(s.qos for s in subscriptions))
        if self._sock is not None:
            mid = self._outbox.request_mid(len(subscriptions))
            self._sock.send(handshakes.subscribe_packet(mid, subscriptions, mqtt5=self._mqtt5))

    def unsubscribe(self, filters: Sequence[str]) -> None:
        """Send one UNSUBSCRIBE."""
        if self._sock is not None:
            self._sock.send(handshakes.unsubscribe_packet(self._outbox.request_mid(), filters, mqtt5=self._mqtt5))

    def ping(self) -> int:
        """Send PINGREQ. Returns its number on this connection; the broker answers in order."""
        assert self._sock is not None
        self._sock.send(b"\xc0\x00")
        return self.keepalive.pinged(time.monotonic())

    def pause(self) -> None:
        """Stop reading until ``resume``. The link keeps the connection alive and ignores a missing PINGRESP."""
        self.paused = True

    def resume(self) -> None:
        """Resume reading from the socket."""
        self.paused = False

    def abandon(self) -> int:
        """Drop every unconfirmed publish, without confirmation. Returns how many."""
        return self._outbox.abandon()

    def drop(self, why: str) -> None:
        """Close the connection without DISCONNECT; the next turn notifies the handler and reconnects."""
        if self._sock is not None:
            self._drop(why)

    def disconnect(self) -> None:
        """Send DISCONNECT and close the socket. The session stays at the broker if it is persistent."""
        if self._sock is not None:
            if self.connected:
                self._sock.lingers = True  # so that the last acknowledgements arrive
                self._sock.send(handshakes.DISCONNECT_PACKET)
            self._close_socket()
        self._lost = None

    def close(self) -> None:
        """Free the wake-up pipe and the selector; the link cannot be used afterwards."""
        self._stopping.set()
        self._close_socket()
        self._poller.close()

    def _send_waiting(self) -> None:
        while self.connected and (sock := self._sock) is not None:
            if sock.full:
                sock.flush()
            if sock.full or (outgoing := self._outbox.next()) is None:
                return
            try:
                mid = self._outbox.free_mid() if outgoing.qos else 0
                packet = packets.publish_packet(
                    outgoing.topic,
                    outgoing.payload,
                    outgoing.qos,
                    mid,
                    retain=outgoing.retain,
                    properties=outgoing.properties,
                    mqtt5=self._mqtt5,
                )
            except ValueError:
                # It was not sent and never will be. It must not close the connection that the others need.
                if outgoing.confirmed is not None:
                    outgoing.confirmed(Confirmation(_IMPLEMENTATION, 0, self.epoch))
                continue
            sock.send(packet)
            self._outbox.sent(mid, outgoing)
            if not mid and outgoing.confirmed is not None:
                outgoing.confirmed(Confirmation(0, 0, self.epoch))
