"""The one module that imports paho: links to an MQTT broker that live for ever, whatever their connections do.

``Link`` is one MQTT session, reconnected with jittered backoff until it is stopped. It decides how bytes and
packets move; what a message means, when it is acknowledged and what is fatal is decided by its ``LinkHandler``.

Threads
-------
- A link belongs to ONE loop thread: the one that calls ``turn()`` or ``run()``, or its own after ``start()``.
- All of the handler's methods and all confirmation callbacks run on that thread. They must not block.
- From any thread: ``publish``, ``wake``, ``stop``, ``join``, ``unconfirmed``. On the loop thread only: all else.
- An exception in a handler ends the loop: see ``loop_thread``.
"""

from __future__ import annotations

import random
import struct
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from paho.mqtt import MQTTException
from paho.mqtt import client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from bridge.errors import ConfigError
from bridge.mqtt.buffered_socket import BufferedSocket, limited, secured
from bridge.mqtt.keepalive import KeepAlive, backoff_s
from bridge.mqtt.loop_thread import LoopThread
from bridge.mqtt.outbox import Outbox, Outgoing
from bridge.mqtt.publishes import MORE, PublishDecoder, packet_length
from bridge.mqtt.refusals import not_connected, refused
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

_VERSIONS: Final = {"3.1": paho.MQTTv31, "3.1.1": paho.MQTTv311, "5": paho.MQTTv5}
_NO_PROPERTIES: Final = len(vars(Properties(PacketTypes.PUBLISH)))  # type: ignore[no-untyped-call]
_FILLS: Final = 4
"""How often the socket is read in one turn, so that acknowledgements do not wait for its end."""
_FAILED_FROM: Final = 0x80
_IMPLEMENTATION: Final = 0x83
"""Reason "Implementation specific error" (MQTT 5, 2.4): here of what paho cannot make a packet of."""
_PUBACK: Final = 0x4002_0000
"""Type and length of a PUBACK; its packet identifier is the second half."""


class _Paho(paho.Client):
    """paho's client behind a buffered socket. paho writes through us, never by itself in a callback."""

    settings: MqttSettings
    received: dict[int, int]
    """Reason codes of PUBREC other than 0, by packet identifier: paho looks at that of PUBCOMP alone."""

    def _create_socket(self) -> Any:
        return BufferedSocket(secured(limited(super()._create_socket(), self.settings), self.settings))

    def _handle_pubrel(self) -> Any:
        mid = int.from_bytes(self._in_packet["packet"][:2], "big")
        return super()._handle_pubrel() or self._send_pubcomp(mid)  # paho leaves that to us (MQTT-4.3.3-11)

    def _handle_pubrec(self) -> Any:
        body = self._in_packet["packet"]
        if self._protocol == paho.MQTTv5 and len(body) > 2 and body[2]:  # left out where it is 0
            mid = int.from_bytes(body[:2], "big")
            self.received[mid] = body[2]
            if body[2] >= _FAILED_FROM:  # that ends it, and PUBREL is for the others alone (MQTT-4.3.3-4)
                if mid not in self._out_messages:
                    return MQTTErrorCode.MQTT_ERR_SUCCESS
                none = Properties(PacketTypes.PUBCOMP)  # type: ignore[no-untyped-call]
                return self._do_on_publish(mid, ReasonCode(PacketTypes.PUBCOMP), none)
        return super()._handle_pubrec()


class Link(LoopThread):
    """One MQTT session with one broker.

    ``receive_maximum`` bounds what the broker may send unacknowledged (MQTT 5, 3.1.2.11.3). ``persistent`` keeps
    the session at the broker while we are away; links that only publish are better off without. Publishes that
    were unconfirmed when a connection ended are sent again, in order, on the next one. ``window`` bounds the
    QoS 1 publishes that are sent and unconfirmed; the broker's own Receive Maximum is kept as well.
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
    ) -> None:
        self.settings = settings
        self.client_id = settings.client_id if client_id is None else client_id
        super().__init__(f"mqtt-{self.client_id}")
        self.handler = handler
        self.epoch = 0
        """Number of the last connection that a CONNACK accepted; an ack belongs to the epoch of its message."""
        self.granted = Connected(0, False, 65535)
        """What the last CONNACK that accepted us said."""
        self.connected = False
        self.paused = False
        self.receive_maximum = receive_maximum  # from the next CONNECT on
        self._persistent = persistent
        self._outbox = Outbox(window)
        self._accepted = 0  # the epoch of the present connection, 0 before its CONNACK
        self._attempt = 0
        self._next_attempt = 0.0
        self._connack_deadline = 0.0
        self._lost: Disconnected | None = None
        self._broke: OSError | None = None
        self.keepalive = KeepAlive(float(settings.keep_alive_s))
        self._turning = 0  # the thread that is in ``on_turn``
        self._sock: BufferedSocket | None = None
        self._poller = Poller()
        self._decoder = PublishDecoder(mqtt5=settings.protocol == "5")
        self._paho = self._make_client(will)

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
        """Queue a publish. On the loop thread, ``sent`` is called each time that it goes out, ``confirmed`` at its end.

        The queue is not bounded here, but by the caller. Properties are left out before MQTT 5. Raises ValueError.
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
        """Make the loop thread take its next turn at once."""
        self._poller.wake()

    # --- the loop ---

    def turn(self, timeout: float = 1.0) -> None:
        """Take one turn: connect when that is due, wait for bytes, a wake-up or the time-out, read, hand over, write."""
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
        self._turning = 0  # what is published from here on wakes the next turn
        self._send_waiting()
        if self._sock is not None:
            self._write()

    def _patience(self, now: float) -> float:
        if self._sock is None:
            return max(0.0, self._next_attempt - now)
        if not self._holding and (self._sock.readable or not self._sock.drained):
            return 0.0
        return self.keepalive.next_in(now) if self.connected else max(0.0, self._connack_deadline - now)

    def _select(self, timeout: float) -> bool:
        sock = self._sock
        if sock is None:
            return self._poller.wait(None, timeout, read=False, write=False)
        write = bool(sock.unsent) or self._paho.want_write()
        return self._poller.wait(sock, timeout, read=not self._holding, write=write)

    @property
    def _holding(self) -> bool:
        return self.paused and self.connected  # CONNACK is read in any case

    def _read(self, arrived: bool) -> None:
        sock = self._sock
        assert sock is not None
        self._consume(sock)
        for _ in range(_FILLS):
            if (sock.drained and not arrived) or self._holding or self._sock is not sock:
                return
            if sock.fill():
                self.keepalive.received(time.monotonic())
            self._consume(sock)
            arrived = False

    def _consume(self, sock: BufferedSocket) -> None:
        # The handler may pause in the middle: what is buffered stays for the turn after ``resume``.
        while not self._holding and self._sock is sock and sock.readable:
            if sock.lent == 0:
                self._take_publishes(sock)
                continue
            ended = sock.pending() == 0  # paho finds the end of the stream, or the error
            self._paho.loop_read()
            if ended:
                break

    def _take_publishes(self, sock: BufferedSocket) -> None:
        """Hand over the plain PUBLISH packets that come next; lend paho the packet on which that ends."""
        if self.connected:
            found: list[Message] = []
            at, theirs = self._decoder.decode(sock.data, sock.at, self.handler.piece, found)
            sock.taken(at)
            if found:
                self.handler.on_messages(found)
        else:  # CONNACK comes first
            theirs = packet_length(sock.data, sock.at)
        if theirs == MORE:
            sock.wants_more()
        elif sock.data[sock.at : sock.at + 1] == b"\0":  # paho loses its place in one that comes in pieces
            self._drop("the broker sent a packet of type 0, which MQTT forbids")
        elif theirs:
            self.keepalive.met(sock.data[sock.at])
            sock.lend(theirs)

    def _write(self) -> None:
        assert self._sock is not None
        self._paho.loop_write()
        if self._sock is not None and self._sock.unsent:
            self._sock.flush()
            self.keepalive.sent(time.monotonic())

    def _check_time(self, now: float) -> None:
        assert self._sock is not None
        if not self.connected:
            if now >= self._connack_deadline:
                self._drop(f"no CONNACK within {self.settings.connect_timeout_s:g} s")
            return
        if self._holding and self._sock.relieve(now):
            self.keepalive.received(now)
        if self._sock.failure is not None and self._holding:
            self._drop(f"the connection broke: {self._sock.failure}")
            return
        self.keepalive.judged(now, caught_up=not self._holding and self._sock.drained)
        if self.keepalive.dead(now):
            self._drop(f"no answer to PINGREQ within the keep-alive of {self.keepalive.interval_s:g} s")
        elif self.keepalive.ping_due(now):
            self.ping()

    # --- connecting ---

    def _make_client(self, will: Will | None) -> _Paho:
        s = self.settings
        version = _VERSIONS[s.protocol]
        client = _Paho(
            CallbackAPIVersion.VERSION2,
            client_id=self.client_id,
            protocol=version,
            reconnect_on_failure=False,
            manual_ack=True,
            clean_session=None if version == paho.MQTTv5 else not self._persistent,
        )
        client.settings = s
        client.received = {}
        client.connect_timeout = s.connect_timeout_s
        client.max_inflight_messages_set(0)  # the window is ours
        if will is not None:
            client.will_set(will.topic, will.payload, will.qos, will.retain)
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_message = self._on_message
        client.on_publish = self._on_publish
        client.on_subscribe = self._on_subscribe
        client.on_socket_close = self._on_socket_close
        client.on_socket_register_write = lambda *_: None  # paho queues, the loop writes once a turn
        return client

    def _connect(self) -> None:
        s = self.settings
        self._paho.drop_out_messages()  # resent by us, in order
        self._paho.received.clear()
        options: dict[str, Any] = {}
        if s.protocol == "5":
            properties: Any = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
            properties.ReceiveMaximum = self.receive_maximum
            if self._persistent:
                properties.SessionExpiryInterval = s.session_expiry_s
            options = {"clean_start": not self._persistent, "properties": properties}
        self._lost = None
        self._accepted = 0
        try:
            self._paho.username_pw_set(*s.credentials())
            self._paho.connect(s.host, s.port, keepalive=s.keep_alive_s, **options)
        except (OSError, ValueError, ConfigError) as e:
            self._lost = not_connected(e, s)
            self._report_loss()
            return
        sock: Any = self._paho.socket()
        if sock is None:
            self._lost = Disconnected(
                0, f"connecting to {s.host}:{s.port}: closed at once", closed_by_peer=True
            )
            return
        self._sock = sock
        self._connack_deadline = time.monotonic() + s.connect_timeout_s
        self._write()

    def _drop(self, why: str) -> None:
        self._lost = Disconnected(self._accepted, why)
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
        self._attempt = 0 if event.epoch else self._attempt + 1
        self._next_attempt = time.monotonic() + backoff_s(
            self._attempt, self.settings.reconnect_min_s, self.settings.reconnect_max_s, random.random()
        )
        self.handler.on_disconnected(event)

    # --- paho's callbacks, on the loop thread ---

    def _on_connect(
        self, client: Any, _data: object, flags: Any, reason: ReasonCode, properties: Any
    ) -> None:
        if reason.is_failure:
            self._lost = refused(str(reason), reason.value, self.settings, self.client_id)
            return
        self._accepted = self.epoch = self.epoch + 1
        self.connected = True
        told = {} if properties is None else vars(properties)
        self.granted = Connected.of_names(self.epoch, bool(flags.session_present), told)
        self._outbox.connected(self.granted.receive_maximum)
        self.keepalive.opened(time.monotonic(), float(client.keepalive))
        self.handler.on_connected(self.granted)

    def _on_disconnect(
        self, _client: Any, _data: object, flags: Any, reason: ReasonCode, _props: Any
    ) -> None:
        if self._lost is not None:
            return  # a refused CONNACK has said why
        epoch = self._accepted
        if flags.is_disconnect_packet_from_server:
            self._lost = Disconnected(epoch, f"the broker sent DISCONNECT: {reason}", reason.value)
        elif not epoch and self._broke is not None:
            self._lost = not_connected(self._broke, self.settings)  # TLS 1.3 judges our certificate last
        else:
            self._lost = Disconnected(epoch, "the connection was closed", closed_by_peer=True)

    def _on_socket_close(self, _client: Any, _data: object, sock: Any) -> None:
        self.connected = False
        self._broke = getattr(sock, "failure", None)
        if self._sock is sock:
            self._sock = None
        self._poller.forget(sock)

    def _on_message(self, _client: Any, _data: object, packet: paho.MQTTMessage) -> None:
        try:
            topic = packet.topic
        except UnicodeDecodeError:
            topic = packet._topic.decode("utf-8", "surrogateescape")
        properties = packet.properties
        ours = None
        if properties is not None and len(vars(properties)) > _NO_PROPERTIES:
            ours = PublishProperties.of_names(vars(properties))
        flags = (packet.qos, packet.retain, packet.dup)
        self.handler.on_messages([Message(topic, bytes(packet.payload), *flags, packet.mid, ours)])

    def _on_publish(self, _client: Any, _data: object, mid: int, reason: ReasonCode, _props: Any) -> None:
        outgoing = self._outbox.confirmed(mid)
        received = self._paho.received.pop(mid, 0)
        if outgoing is not None and outgoing.confirmed is not None:
            outgoing.confirmed(Confirmation(reason.value or received, mid, self.epoch))

    def _on_subscribe(
        self, _client: Any, _data: object, _mid: int, codes: Iterable[ReasonCode], _p: Any
    ) -> None:
        self.handler.on_subscribed([code.value for code in codes])

    # --- on the loop thread ---

    def acknowledge(self, mids: Sequence[int], epoch: int) -> bool:
        """Write PUBACK for QoS 1 messages of connection ``epoch``, in this order, in one piece.

        Returns False, and writes nothing, when that connection is no longer open: the broker will send those
        messages again, perhaps under packet identifiers that mean other messages now (H2).
        """
        if self._sock is None or not self.connected or epoch != self.epoch:
            return False
        # A reason code of 0 and no properties may be left out (MQTT 5, 3.4.2.1): the same four bytes in all versions.
        self._sock.send(struct.pack(f"!{len(mids)}I", *[_PUBACK | mid for mid in mids]))
        return True

    def subscribe(self, subscriptions: Sequence[Subscription]) -> None:
        """Send one SUBSCRIBE; ``on_subscribed`` gets the answer."""

        def how(s: Subscription) -> Any:
            options = SubscribeOptions(s.qos, False, s.retain_as_published, s.retain_handling)
            return options if self.settings.protocol == "5" else s.qos

        self._paho.subscribe([(s.filter, how(s)) for s in subscriptions])

    def unsubscribe(self, filters: Sequence[str]) -> None:
        """Send one UNSUBSCRIBE."""
        self._paho.unsubscribe(list(filters))

    def ping(self) -> int:
        """Send PINGREQ. Returns its number on this connection; the broker answers in order."""
        assert self._sock is not None
        self._sock.send(b"\xc0\x00")
        return self.keepalive.pinged(time.monotonic())

    def pause(self) -> None:
        """Stop reading from the socket; the connection is kept alive, and PINGRESP not judged, until ``resume``."""
        self.paused = True

    def resume(self) -> None:
        """Read again."""
        self.paused = False

    def abandon(self) -> int:
        """Drop every publish that is not confirmed, without confirmation. Returns how many."""
        return self._outbox.abandon()

    def drop(self, why: str) -> None:
        """Close the connection without DISCONNECT; the next turn tells the handler, and connects anew."""
        if self._sock is not None:
            self._drop(why)

    def disconnect(self) -> None:
        """Send DISCONNECT and close the socket. The session stays at the broker if it is persistent."""
        if self._sock is not None:
            if self.connected:
                self._sock.lingers = True  # so that the last acknowledgements arrive
                self._paho.disconnect()
                self._paho.loop_write()
            self._close_socket()
        self._lost = None

    def close(self) -> None:
        """Free the wake-up pipe and the selector; the link cannot be used any more."""
        self._stopping.set()
        self._close_socket()
        self._poller.close()

    def _send_waiting(self) -> None:
        while self.connected and (outgoing := self._outbox.next()) is not None:
            try:
                properties = self._properties(outgoing.properties)
                packet = (outgoing.topic, outgoing.payload, outgoing.qos, outgoing.retain)
                info = self._paho.publish(*packet, properties)
            except (MQTTException, ValueError, TypeError, struct.error):
                # Nothing of it was sent, and nothing ever will be: it must not end what all the others wait for.
                if outgoing.confirmed is not None:
                    outgoing.confirmed(Confirmation(_IMPLEMENTATION, 0, self.epoch))
                continue
            if info.rc in (MQTTErrorCode.MQTT_ERR_SUCCESS, MQTTErrorCode.MQTT_ERR_NO_CONN):
                self._outbox.sent(info.mid, outgoing)
            else:
                self._outbox.put_back(outgoing)
                self._drop(f"a publish could not be sent: {paho.error_string(info.rc)}")

    def _properties(self, ours: PublishProperties | None) -> Properties | None:
        if ours is None or self.settings.protocol != "5":
            return None
        properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
        for name, value in ours.by_name().items():
            setattr(properties, name, value)
        return properties
