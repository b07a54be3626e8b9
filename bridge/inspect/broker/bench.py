"""The clients of one check of a broker: they use client ids and topics of their own, and limited time.

Safe at a broker in use: each client id begins with ``pulsebridge-check-``, each topic with ``pulsebridge-check/`` and a
random level. Nothing else is read or written. ``tidy`` deletes the sessions and the retained messages.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, Literal

from bridge.errors import PulsebridgeError, TransientError
from bridge.mqtt.client import Link
from bridge.mqtt.refusals import NOT_AUTHORIZED, subscriber
from bridge.mqtt.types import Connected, Disconnected, LinkHandler, Message, Subscription
from bridge.settings import MqttSettings, Settings
from bridge.settings.units import Duration

__all__ = ["PATIENCE_S", "Bench", "LostError", "NotTriedError", "Peer", "Version"]

Version = Literal["3.1", "3.1.1", "5"]

PATIENCE_S: Final = 3.0
"""Time for one answer of the broker, in seconds."""
_KEPT_S: Final = 900
"""Expiry of the sessions of a check, in seconds: a session that a killed check leaves ends by itself."""
_FAILED_FROM: Final = 0x80


class NotTriedError(PulsebridgeError):
    """Raised if a try is not possible: the broker denies it, lacks the version, or the time is over."""


class LostError(TransientError):
    """Raised if the broker refuses or closes a connection of the check, or does not answer."""


class Peer(LinkHandler):
    """One MQTT client, which runs only while a method of it waits."""

    def __init__(self, bench: Bench, link: Callable[[LinkHandler], Link], *, holds: bool) -> None:
        self.messages: list[Message] = []
        self.granted: Connected | None = None
        self.holds = holds
        """Whether the client does not acknowledge what it receives."""
        self.lost: Disconnected | None = None
        self._bench = bench
        self._link = link(self)
        self._codes: list[int] = []
        self._acks: list[int] = []
        self._closed = False

    def connect(self) -> Connected:
        """Return the CONNACK. Raises LostError if the broker refuses the connection."""
        self.wait(lambda: self.granted is not None)
        if self.granted is None:
            raise LostError("the broker does not answer CONNECT")
        return self.granted

    def subscribe(self, topic_filter: str, qos: int = 1) -> int:
        """Subscribe and return the code of SUBACK. Raises NotTriedError if the broker denies it, LostError without it."""
        self._codes.clear()
        self._link.subscribe([Subscription(topic_filter, qos, retain_handling=0)])
        if not self.wait(lambda: bool(self._codes)):
            raise LostError(f"the broker does not answer SUBSCRIBE to {topic_filter}")
        code = self._codes[0]
        if code >= _FAILED_FROM:
            raise NotTriedError(
                f"the broker refuses SUBSCRIBE to {topic_filter} (0x{code:02X})", remedy=self._bench.rights("read")
            )
        return code

    def publish(self, topic: str, payload: bytes, qos: int = 1, *, retain: bool = False) -> int:
        """Publish one message and return the reason of its PUBACK or PUBREC."""
        return self.publish_all(topic, [payload], qos, retain=retain)[0]

    def publish_all(self, topic: str, payloads: Sequence[bytes], qos: int = 1, *, retain: bool = False) -> list[int]:
        """Publish without a wait between two messages; return the reasons in the order of the confirmations.

        Raises NotTriedError if the broker denies it, LostError if it does not confirm all or closes the connection.
        """
        reasons: list[int] = []
        if retain and any(payloads):
            self._bench.retained.add(topic)
        for payload in payloads:
            self._link.publish(topic, payload, qos=qos, retain=retain, confirmed=reasons.append)
        before = -1
        while before < len(reasons) < len(payloads):  # as long as some of them are confirmed
            before = len(reasons)
            self.wait(lambda: len(reasons) == len(payloads))
        if NOT_AUTHORIZED in reasons:
            self._bench.retained.discard(topic)
            raise NotTriedError(f"the broker denies PUBLISH to {topic} (0x87)", remedy=self._bench.rights("write"))
        if len(reasons) < len(payloads):
            raise LostError(f"the broker confirms {len(reasons)} of {len(payloads)} messages to {topic}")
        return reasons

    def receive(self, count: int, silence_s: float = PATIENCE_S) -> list[bytes]:
        """Return the payloads of all messages, when there are ``count`` or none came for ``silence_s``."""
        seen = -1
        while seen < len(self.messages) < count:
            seen = len(self.messages)
            self.wait(partial(self._has_more, seen), silence_s)
        self.wait(lambda: not self._acks, silence_s)
        return [message.payload for message in self.messages]

    def _has_more(self, seen: int) -> bool:
        return len(self.messages) > seen

    def wait(self, condition: Callable[[], bool], patience_s: float = PATIENCE_S) -> bool:
        """Run until the condition; return False after ``patience_s``. Raises LostError and NotTriedError."""
        until = time.monotonic() + patience_s
        while not condition():
            if self.lost is not None:
                raise LostError(self.lost.why, remedy=self.lost.remedy)
            now = time.monotonic()
            self._bench.check_time(now)
            if now >= until:
                return False
            self._link.turn(min(0.1, until - now))
        return True

    def vanish(self) -> None:
        """Close the connection without DISCONNECT."""
        self._closed = True
        self._link.drop("the check closed it")
        self._link.close()

    def close(self) -> None:
        """Send DISCONNECT and close the connection."""
        if not self._closed:
            self._link.disconnect()
            self._link.close()

    def on_connected(self, event: Connected) -> None:
        """Note the limits of the broker."""
        self.granted = event

    def on_disconnected(self, event: Disconnected) -> None:
        """Note the end: the client does not reconnect."""
        self.lost = event

    def on_subscribed(self, codes: list[int]) -> None:
        """Note the codes of SUBACK."""
        self._codes += codes

    def on_message(self, message: Message) -> None:
        """Keep the message, and acknowledge it in this turn, or not."""
        self.messages.append(message)
        if message.mid and not self.holds:
            self._acks.append(message.mid)

    def on_turn(self, now: float) -> None:
        """Send the acknowledgements of the turn."""
        if self._acks:
            self._link.acknowledge(self._acks, self._link.epoch)
            self._acks.clear()

    def acknowledge(self) -> None:
        """Acknowledge what was received, and from now on all."""
        self.holds = False
        self._acks += [message.mid for message in self.messages if message.mid]


class Bench:
    """What one check uses at one broker, and what it has to delete there."""

    def __init__(self, settings: Settings, mqtt: MqttSettings, *, messages: int, time_limit_s: float) -> None:
        self.settings = settings
        self.mqtt = mqtt
        self.messages = messages
        """How many messages the largest try publishes."""
        self.protocol: Version = "5"
        """The version that most tries use."""
        self.versions: list[Version] = []
        """The versions that the broker accepts."""
        self.time_limit_s = time_limit_s
        self._run = secrets.token_hex(4)
        self._until = time.monotonic() + time_limit_s
        self._sessions: dict[str, Version] = {}
        self.retained: set[str] = set()
        """Topics that may have a retained message."""

    def topic(self, *levels: str) -> str:
        """Return a topic of this check."""
        return "/".join(("pulsebridge-check", self._run, *levels))

    def client_id(self, name: str) -> str:
        """Return a client id of this check."""
        return f"pulsebridge-check-{self._run}-{name}"

    def rights(self, what: str) -> str:
        """Return the remedy for a denied operation."""
        return f"allow {subscriber(self.mqtt, self.client_id('…'))} to {what} pulsebridge-check/#"

    def check_time(self, now: float) -> None:
        """Raise NotTriedError if the time is over."""
        if now >= self._until:
            raise NotTriedError(f"the time limit of {self.time_limit_s:g} s was over", remedy="raise --time-limit")

    @contextmanager
    def more_time(self, seconds: float) -> Iterator[None]:
        """Give what follows ``seconds``, also after the time limit."""
        before, self._until = self._until, time.monotonic() + seconds
        try:
            yield
        finally:
            self._until = before

    @contextmanager
    def peer(
        self, name: str, version: Version | None = None, *, persistent: bool = False, **more: Any
    ) -> Iterator[Peer]:
        """Connect a client; ``more`` are ``holds``, ``expiry_s`` and ``receive_maximum``.

        A session that is not ``persistent`` ends with its connection, and its CONNECT deletes a former one.
        """
        peer = self._peer(name, version or self.protocol, persistent=persistent, **more)
        try:
            peer.connect()
            yield peer
        finally:
            peer.close()

    def _peer(
        self,
        name: str,
        version: Version,
        *,
        persistent: bool,
        holds: bool = False,
        expiry_s: int = _KEPT_S,
        receive_maximum: int = 65_535,
    ) -> Peer:
        # MQTT 3.1 allows at most 23 characters.
        client_id = (
            f"pulsebridge-check-{self._run[:5]}" if version == "3.1" else f"pulsebridge-check-{self._run}-{name}"
        )
        if persistent:
            self._sessions[name] = version
        update = {"protocol": version, "session_expiry": Duration(expiry_s)}
        settings = self.mqtt.model_copy(update=update)

        def link(handler: LinkHandler) -> Link:
            return Link(settings, handler, client_id=client_id, persistent=persistent, receive_maximum=receive_maximum)

        return Peer(self, link, holds=holds)

    def tidy(self) -> list[str]:
        """Delete all sessions and retained messages of this check; return those that may be left, with the reason."""
        left: list[str] = []
        with self.more_time(2 * PATIENCE_S):
            for topic in sorted(self.retained):
                try:
                    with self.peer("tidy") as peer:
                        peer.publish(topic, b"", retain=True)
                except PulsebridgeError as e:
                    left.append(f"the retained message of {topic} ({e.what})")
            for name, version in self._sessions.items():
                try:
                    with self.peer(name, version):
                        pass
                except PulsebridgeError as e:
                    left.append(f"the session {self.client_id(name)} ({e.what})")
        self._sessions.clear()
        self.retained.clear()
        return left
