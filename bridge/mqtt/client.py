"""Links to an MQTT broker, which reconnect until they are stopped.

``Link`` is one MQTT session, reconnected with jittered backoff. It sends and receives packets. Its ``LinkHandler``
decides what a message means, when it is acknowledged and what is fatal.

Threads
-------
- A link belongs to ONE loop thread: the one that calls ``turn()``.
- All methods of the handler and all confirmation callbacks run on that thread. They must not block.
- From any thread: ``publish``, ``wake``, ``unconfirmed``. On the loop thread only: all else.
- An exception in a handler leaves ``turn``.
"""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from bridge.mqtt import packets
from bridge.mqtt.buffered_socket import MAX_PACKET_BYTES, BufferedSocket, dialled
from bridge.mqtt.dialling import DIAL_ERRORS, Dialler
from bridge.mqtt.keepalive import KeepAlive, Reconnects
from bridge.mqtt.outbox import Outbox, Outgoing
from bridge.mqtt.packet_reader import FAILED_FROM, Broken, Packet, PacketReader
from bridge.mqtt.refusals import not_connected, refused
from bridge.mqtt.turns import turn_all
from bridge.mqtt.types import Connected, Disconnected, LinkHandler, PublishProperties, Subscription, Will
from bridge.poller import Poller
from bridge.settings.mqtt import MqttSettings

__all__ = ["Link", "LinkHandler", "run"]

_FILLS: Final = 4
"""Maximum reads of the socket in one turn, so that acknowledgements are not delayed."""
_IMPLEMENTATION: Final = 0x83
"""Reason "Implementation specific error" (MQTT 5, 2.4): here of a publish that MQTT cannot encode."""
_PUBACK: Final = 0x4002_0000
"""Type and length of a PUBACK; its packet identifier is the second half."""


class Link:
    """One MQTT session with one broker.

    ``receive_maximum`` bounds the unacknowledged messages that the broker may send (MQTT 5, 3.1.2.11.3).
    ``persistent`` keeps the session at the broker while we are offline; links that only publish do not need it. A new
    connection resends the unconfirmed publishes of the last one, in order. ``window`` bounds the QoS 1 publishes that
    are sent and unconfirmed; the broker's own Receive Maximum applies as well. Of a PUBLISH of more than
    ``max_packet_bytes`` only the beginning is kept, and it arrives as malformed. ``poller`` is one that other links of the same
    thread share (``turn_all``); such a link dials in a thread of its own, so that it does not delay the others.
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
        max_packet_bytes: int = MAX_PACKET_BYTES,
        poller: Poller | None = None,
        will: Will | None = None,
    ) -> None:
        self.settings = settings if client_id is None else settings.model_copy(update={"client_id": client_id})
        self.handler = handler
        self.epoch = 0
        """Number of the last connection that a CONNACK accepted; an ack belongs to the epoch of its message."""
        self.granted = Connected(0, False)
        """The content of the last CONNACK that accepted us."""
        self.connected = False
        self.paused = False
        """Whether the link stops reading. It keeps the connection alive and ignores a missing PINGRESP."""
        self.receive_maximum = receive_maximum  # from the next CONNECT on
        self.reconnects = Reconnects()
        self.keepalive = KeepAlive(settings.keep_alive)
        self._outbox = Outbox(window)
        self._reader = PacketReader(self.client_id, settings.protocol, self._outbox)
        self._turning = 0  # the thread that is in ``on_turn``
        self._sock: BufferedSocket | None = None
        self._poller = poller or Poller()
        dial = partial(_dial, self.settings, persistent=persistent, max_packet_bytes=max_packet_bytes, will=will)
        self._dialler = Dialler(dial, None if poller is None else poller.wake)

    @property
    def client_id(self) -> str:
        """The client id of the session."""
        return self.settings.client_id

    # --- from any thread ---

    def publish(
        self,
        topic: str,
        payload: bytes,
        *,
        qos: int = 1,
        retain: bool = False,
        properties: PublishProperties | None = None,
        confirmed: Callable[[int], None] | None = None,
        sent: Callable[[], None] | None = None,
    ) -> None:
        """Queue a publish. The loop thread calls ``sent`` each time that it is sent, ``confirmed`` at its end.

        The argument of ``confirmed`` is PUBACK's reason code (MQTT 5, 3.4.2.1): below 0x80 the broker has the message
        (0x10: it has no subscriber), from 0x80 on it refused. Always 0 before MQTT 5, and at QoS 0, which only confirms
        that the socket got the packet. 0x83 for a publish that MQTT cannot encode, because a text is not UTF-8 or too
        long.

        The caller bounds the queue. Properties are left out before MQTT 5. Raises ValueError for a topic that is empty,
        too long or not UTF-8, or has a wildcard.
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
        turn_all([self], self._poller, timeout, self.handler.on_turn)

    def steps(self) -> Generator[float, Collection[int], None]:
        """Run one turn in steps (``turn_all``). Yield for how many seconds nothing is due, get the descriptors that can be read,
        yield a second time before the handler's turn.
        """
        now = time.monotonic()
        if self._dialler.under_way or (
            self._sock is None and self.reconnects.lost is None and now >= self.reconnects.due
        ):
            try:
                self._sock = self._dialler.dial(self.receive_maximum)
                self.reconnects.due = time.monotonic() + self.settings.connect_timeout
            except DIAL_ERRORS as e:
                self.reconnects.lost = not_connected(e, self.settings)
                self._report_loss()
            now = time.monotonic()
        patience, fd = self._patience(now), -1
        if self._sock is not None:
            fd = self._sock.fileno()
            self._poller.watch(self._sock, read=not self._reading_paused, write=bool(self._sock.unsent))
        readable = yield patience
        if self._sock is not None:
            self._read(fd in readable)
        if self._sock is not None:
            self._check_time(time.monotonic())
        if self.reconnects.lost is not None:
            self._report_loss()
        self._turning = threading.get_ident()
        yield 0.0
        self._turning = 0  # later publishes wake the next turn
        self._send_waiting()
        if self._sock is not None and self._sock.unsent:
            self._sock.flush()
            self.keepalive.sent(time.monotonic())

    def _patience(self, now: float) -> float:
        if self._dialler.under_way:
            return 1.0
        if self._sock is None:
            return max(0.0, self.reconnects.due - now)
        if not self._reading_paused and (self._sock.readable or not self._sock.drained):
            return 0.0
        return self.keepalive.next_in(now) if self.connected else max(0.0, self.reconnects.due - now)

    @property
    def _reading_paused(self) -> bool:
        stuck = self._sock is not None and self._sock.stuck  # a broker that reads no answers is not read
        return self.connected and (self.paused or stuck)  # CONNACK is read in any case

    def _read(self, arrived: bool) -> None:
        sock, reader, handler = self._sock, self._reader, self.handler
        assert sock is not None
        for fills in range(_FILLS + 1):
            # The handler may pause in the middle: the buffered packets then wait until it is not ``paused``.
            while not self._reading_paused and self._sock is sock and sock.readable:
                found, packet = reader.read(sock, handler.piece, self.epoch if self.connected else 0)
                if found:
                    handler.on_messages(found)
                if packet is not None and self._sock is sock:
                    self._take(packet)
            if fills == _FILLS or (sock.drained and not arrived) or self._reading_paused or self._sock is not sock:
                return
            if sock.fill():
                self.keepalive.received(time.monotonic())
            arrived = False

    def _take(self, packet: Packet | Broken) -> None:
        """Process one packet from the reader, or close a connection that cannot be read (MQTT 5, 4.13)."""
        assert self._sock is not None
        if isinstance(packet, Broken):
            if packet.what is not None:
                self.drop(f"the broker sent {packet.what}")
            elif not self.connected and self._sock.failure is not None:
                # TLS 1.3 verifies our certificate last.
                self._lose(replace(not_connected(self._sock.failure, self.settings), unanswered=True))
            else:
                self.drop("the connection was closed", closed_by_peer=True)
        elif packet.granted is not None:
            self._take_connack(packet.reason, packet.granted)
        elif packet.codes:
            self.handler.on_subscribed(packet.codes)
        elif packet.kind == packets.PINGRESP:
            self.keepalive.pong()
        elif packet.kind == packets.DISCONNECT:
            self.drop(f"the broker sent DISCONNECT: {packets.reason_name(packet.reason)}", packet.reason)

    def _take_connack(self, reason: int, granted: Connected) -> None:
        if reason >= FAILED_FROM:
            self._lose(refused(reason, self.settings))
            return
        self.epoch += 1
        self.connected = True
        self.granted = replace(granted, epoch=self.epoch)
        self._outbox.connected(self.granted.receive_maximum)
        self._reader.exactly_once.connected(session_present=self.granted.session_present)
        keep_alive_s = self.settings.keep_alive if granted.keep_alive_s is None else granted.keep_alive_s
        self.keepalive.opened(time.monotonic(), float(keep_alive_s))
        self.handler.on_connected(self.granted)

    def _check_time(self, now: float) -> None:
        assert self._sock is not None
        if not self.connected:
            if now >= self.reconnects.due:
                self.drop(f"no CONNACK within {self.settings.connect_timeout:g} s")
            return
        if self._reading_paused and self._sock.make_room(now):
            self.keepalive.received(now)
        if self._sock.failure is not None and self._reading_paused:
            self.drop(f"the connection broke: {self._sock.failure}")
            return
        self.keepalive.note_reading(now, caught_up=not self.paused and (self._sock.stuck or self._sock.drained))
        if self.keepalive.dead(now):
            self.drop(f"no answer to PINGREQ within the keep-alive of {self.keepalive.interval_s:g} s")
        elif self.keepalive.ping_due(now):
            self.ping()

    # --- connecting ---

    def _lose(self, event: Disconnected) -> None:
        self.reconnects.lost = event
        self._close_socket()

    def _close_socket(self) -> None:
        self._dialler.cancel()
        sock, self._sock = self._sock, None
        self.connected = False
        self.reconnects.due = 0.0
        if sock is not None:
            self._poller.forget(sock)
            sock.close()

    def _report_loss(self) -> None:
        event = self.reconnects.take_loss(time.monotonic(), self.keepalive.opened_at, self.settings)
        if event is not None:
            self._outbox.connection_lost()
            self.handler.on_disconnected(event)

    # --- on the loop thread ---

    def acknowledge(self, mids: Sequence[int], epoch: int) -> bool:
        """Write PUBACK, or PUBREC at QoS 2, for messages of connection ``epoch``, in this order, in one piece.

        Returns False, and writes nothing, if that connection is no longer open. The broker resends those messages,
        perhaps with other packet identifiers, and these ones may be of other messages now (H2).
        """
        if self._sock is None or not self.connected or epoch != self.epoch:
            return False
        packed = self._reader.exactly_once.acknowledgements(mids)
        if packed is None:
            # A reason code of 0 and no properties may be left out (MQTT 5, 3.4.2.1): the same four bytes in all versions.
            packed = struct.pack(f"!{len(mids)}I", *[_PUBACK | mid for mid in mids])
        self._sock.send(packed)
        return True

    def subscribe(self, subscriptions: Sequence[Subscription]) -> None:
        """Send one SUBSCRIBE; ``on_subscribed`` gets the answer."""
        if self._sock is not None:
            mid = self._outbox.request_mid(len(subscriptions))
            self._sock.send(packets.subscribe_packet(mid, subscriptions, mqtt5=self._reader.mqtt5))

    def unsubscribe(self, filters: Sequence[str]) -> None:
        """Send one UNSUBSCRIBE."""
        if self._sock is not None:
            self._sock.send(packets.unsubscribe_packet(self._outbox.request_mid(), filters, mqtt5=self._reader.mqtt5))

    def ping(self) -> int:
        """Send PINGREQ. Returns its number on this connection; the broker answers in order."""
        assert self._sock is not None
        self._sock.send(b"\xc0\x00")
        return self.keepalive.pinged(time.monotonic())

    def abandon(self) -> int:
        """Drop every unconfirmed publish, without confirmation. Returns how many."""
        return self._outbox.abandon()

    def drop(self, why: str, reason: int | None = None, *, closed_by_peer: bool = False) -> None:
        """Close the connection without DISCONNECT; the next turn notifies the handler and reconnects."""
        if self._sock is not None:
            epoch = self.epoch if self.connected else 0
            self._lose(Disconnected(epoch, why, reason, closed_by_peer, unanswered=not self.connected))

    def disconnect(self) -> None:
        """Send DISCONNECT and close the socket. The session stays at the broker if it is persistent."""
        if self._sock is not None:
            if self.connected:
                self._sock.lingers = True  # so that the last acknowledgements arrive
                self._sock.send(packets.DISCONNECT_PACKET)
            self._close_socket()
        self._dialler.cancel()
        self.reconnects.lost = None

    def close(self) -> None:
        """Free the wake-up pipe and the selector, also if other links share them; the link cannot be used afterwards."""
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
                    mqtt5=self._reader.mqtt5,
                )
            except ValueError:
                # It was not sent and never will be. It must not close the connection that the others need.
                if outgoing.confirmed is not None:
                    outgoing.confirmed(_IMPLEMENTATION)
                continue
            sock.send(packet)
            self._outbox.sent(mid, outgoing)
            if not mid and outgoing.confirmed is not None:
                outgoing.confirmed(0)


def run(link: Link, over: Callable[[], bool], timeout: float = 1.0) -> None:
    """Take turns until it is ``over``, then disconnect and close the link."""
    try:
        while not over():
            link.turn(timeout)
    finally:
        link.disconnect()
        link.close()


def _dial(
    settings: MqttSettings, receive_maximum: int, *, persistent: bool, max_packet_bytes: int, will: Will | None
) -> BufferedSocket:
    """Return a socket to the broker on which CONNECT was sent. Raises as ``dialled``, and ValueError."""
    packet = packets.connect_packet(settings, persistent=persistent, receive_maximum=receive_maximum, will=will)
    sock = dialled(settings, max_packet_bytes)
    sock.send(packet)
    sock.flush()
    return sock
