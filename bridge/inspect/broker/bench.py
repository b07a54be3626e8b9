"""The clients of one check of a broker, and what they leave there.

Safe at a broker in use: each client id begins with ``pb-check-``, each topic with ``pulsebridge-check/`` and a random
level. Nothing else is read or written. ``tidy`` deletes the sessions and the retained messages.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final, Literal

from bridge.errors import PulsebridgeError, TransientError
from bridge.mqtt.client import Link
from bridge.mqtt.refusals import NOT_AUTHORIZED, subscriber
from bridge.mqtt.types import Connected, Disconnected, LinkHandler, Message, Subscription
from bridge.settings import MqttSettings, Settings
from bridge.settings.units import Duration

__all__ = ["PATIENCE_S", "REFUSED", "Bench", "LostError", "NotTriedError", "Peer", "Version"]

Version = Literal["3.1", "3.1.1", "5"]

PATIENCE_S: Final = 10.0
"""Time for one answer of the broker, in seconds: a busy one may need more than three."""
REFUSED: Final = 0x80
"""The first reason code that refuses (MQTT 5, 2.4)."""
_KEPT_S: Final = 900
"""Expiry of the sessions of a check, in seconds: a session that a killed check leaves ends by itself."""


class NotTriedError(PulsebridgeError):
    """Raised if a try is not possible: the broker denies it, or lacks the version of MQTT."""


class LostError(TransientError):
    """Raised if the broker refuses or closes a connection of the check, or does not answer."""


class Peer(LinkHandler):
    """One MQTT client, which runs only while a method of it waits. It does not reconnect."""

    def __init__(
        self, bench: Bench, settings: MqttSettings, *, persistent: bool, holds: bool, receive_maximum: int
    ) -> None:
        """``holds``: it does not acknowledge messages before ``acknowledge``."""
        self.messages: list[Message] = []
        self.granted = Connected(0, False)
        """The content of the CONNACK."""
        self.lost: Disconnected | None = None
        """The end of the connection."""
        self._bench = bench
        self._link = Link(settings, self, persistent=persistent, receive_maximum=receive_maximum)
        self._holds = holds
        self._codes: list[int] = []

    def subscribe(self, topic_filter: str, qos: int = 1) -> int:
        """Subscribe; return the granted QoS. Raises NotTriedError if the broker denies it, LostError without an answer."""
        self._codes.clear()
        self._link.subscribe([Subscription(topic_filter, qos, retain_handling=0)])
        if not self.wait(lambda: bool(self._codes)):
            raise LostError(f"the broker does not answer SUBSCRIBE to {topic_filter}")
        code = self._codes[0]
        if code >= REFUSED:
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
        if retain:
            self._bench.retained.add(topic)
        for payload in payloads:
            self._link.publish(topic, payload, qos=qos, retain=retain, confirmed=reasons.append)
        self._gather(reasons, len(payloads))
        if NOT_AUTHORIZED in reasons:
            self._bench.retained.discard(topic)
            raise NotTriedError(f"the broker denies PUBLISH to {topic} (0x87)", remedy=self._bench.rights("write"))
        if len(reasons) < len(payloads):
            raise LostError(f"the broker confirms {len(reasons)} of {len(payloads)} messages to {topic}")
        return reasons

    def receive(self, count: int, silence_s: float = PATIENCE_S) -> list[bytes]:
        """Return the payloads of all messages, when there are ``count`` or none came for ``silence_s``."""
        self._gather(self.messages, count, silence_s)
        return [message.payload for message in self.messages]

    def _gather(self, found: Sequence[object], count: int, silence_s: float = PATIENCE_S) -> None:
        seen = -1
        while seen < len(found) < count:
            seen = len(found)
            self.wait(lambda: len(found) > seen, silence_s)  # noqa: B023

    def wait(self, condition: Callable[[], bool], patience_s: float = PATIENCE_S) -> bool:
        """Run until the condition; return False after ``patience_s``. Raises LostError if the connection ends."""
        until = time.monotonic() + patience_s
        while not condition():
            if self.lost is not None:
                raise LostError(self.lost.why, remedy=self.lost.remedy)
            left = until - time.monotonic()
            if left <= 0:
                return False
            self._link.turn(min(0.1, left))
        return True

    def acknowledge(self) -> None:
        """Acknowledge what was received, and from now on all."""
        self._holds = False
        self._link.acknowledge([message.mid for message in self.messages], self._link.epoch)

    def vanish(self) -> None:
        """Close the connection without DISCONNECT."""
        self._link.drop("the check closed it")

    def close(self) -> None:
        """Send DISCONNECT and close the connection."""
        self._link.disconnect()
        self._link.close()

    def on_connected(self, event: Connected) -> None:
        """Note the limits of the broker."""
        self.granted = event

    def on_disconnected(self, event: Disconnected) -> None:
        """Note the end."""
        self.lost = event

    def on_subscribed(self, codes: list[int]) -> None:
        """Note the codes of SUBACK."""
        self._codes += codes

    def on_message(self, message: Message) -> None:
        """Note the message, and acknowledge it."""
        self.messages.append(message)
        if message.mid and not self._holds:
            self._link.acknowledge([message.mid], self._link.epoch)


class Bench:
    """What one check uses at one broker, and what it has to delete there."""

    def __init__(self, settings: Settings, mqtt: MqttSettings, *, messages: int) -> None:
        self.settings = settings
        self.mqtt = mqtt.model_copy(update={"connect_timeout": Duration(PATIENCE_S)})
        self.messages = messages
        """How many messages the largest try publishes."""
        self.versions: list[Version] = ["5"]
        """The versions that the broker accepts; most tries use the last one."""
        self.retained: set[str] = set()
        """Topics that may have a retained message."""
        self._sessions: dict[str, Version] = {}
        self._run = secrets.token_hex(2)

    def topic(self, *levels: str) -> str:
        """Return a topic of this check."""
        return "/".join(("pulsebridge-check", self._run, *levels))

    def client_id(self, name: str) -> str:
        """Return a client id of this check. MQTT 3.1 allows at most 23 characters: 9 for the name."""
        return f"pb-check-{self._run}-{name}"

    def rights(self, what: str) -> str:
        """Return the remedy for a denied operation."""
        return f"allow {subscriber(self.mqtt, self.client_id('…'))} to {what} pulsebridge-check/#"

    @contextmanager
    def peer(
        self,
        name: str,
        version: Version | None = None,
        *,
        persistent: bool = False,
        holds: bool = False,
        expiry_s: int = _KEPT_S,
        receive_maximum: int = 65_535,
    ) -> Iterator[Peer]:
        """Connect a client. Raises LostError if the broker refuses it.

        A session that is not ``persistent`` ends with its connection, and its CONNECT deletes a former one.
        """
        version = version or self.versions[-1]
        if persistent:
            self._sessions[name] = version
        settings = self.mqtt.model_copy(
            update={"client_id": self.client_id(name), "protocol": version, "session_expiry": Duration(expiry_s)}
        )
        peer = Peer(self, settings, persistent=persistent, holds=holds, receive_maximum=receive_maximum)
        try:
            if not peer.wait(lambda: peer.granted.epoch > 0, 2 * PATIENCE_S):
                raise LostError("the broker does not answer CONNECT")
            yield peer
        finally:
            peer.close()

    def tidy(self) -> list[str]:
        """Delete the retained messages and sessions of this check; return those that may be left."""
        with suppress(PulsebridgeError):
            for topic in sorted(self.retained):
                with self.peer("tidy") as peer:
                    peer.publish(topic, b"", retain=True)
                self.retained.discard(topic)
            for name, version in list(self._sessions.items()):
                with self.peer(name, version):
                    del self._sessions[name]
        left = [f"the retained message of {topic}" for topic in sorted(self.retained)]
        return left + [f"the session {self.client_id(name)}" for name in self._sessions]
