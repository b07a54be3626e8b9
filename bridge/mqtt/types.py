"""Data types of the MQTT client and its users, without a socket or a thread.

Modules without I/O (mapping, envelope, acks) use them, so that they can be tested and reused without a connection.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

__all__ = [
    "DISCONNECT_TAKEN_OVER",
    "Connected",
    "Disconnected",
    "LinkHandler",
    "Message",
    "PublishProperties",
    "Subscription",
    "Will",
]

DISCONNECT_TAKEN_OVER = 0x8E
"""MQTT 5 DISCONNECT reason "Session taken over": another process connected with the same client id."""


class PublishProperties(NamedTuple):
    """Properties of an MQTT 5 PUBLISH (MQTT 5, 3.3.2.3). None or empty if the packet lacks them."""

    user: tuple[tuple[str, str], ...] = ()
    """User properties in the order of the packet, repeats kept."""
    content_type: str | None = None
    response_topic: str | None = None
    correlation_data: bytes | None = None
    payload_format: int | None = None
    expiry_s: int | None = None
    """Message Expiry Interval, in seconds, that remains when the packet arrives."""


class Message(NamedTuple):
    """A PUBLISH as it arrived. ``mid`` is its packet identifier, 0 if it needs no acknowledgement.

    ``properties`` is None if it lacks them. A reason in ``malformed`` marks a packet that MQTT forbids. Its ``payload``
    is the body (the bytes after the fixed header), and its ``topic`` the readable part, with invalid bytes escaped.
    """

    topic: str
    payload: bytes
    qos: int
    retain: bool
    dup: bool
    mid: int
    properties: PublishProperties | None
    malformed: str = ""


class Will(NamedTuple):
    """The message that the broker publishes at QoS 1 when a connection ends without a DISCONNECT (MQTT 5, 3.1.2.5)."""

    topic: str
    payload: bytes
    retain: bool
    delay_s: int = 0
    """How long a client may take to reconnect before that, in seconds (MQTT 5, 3.1.3.2.2); at once before MQTT 5."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """One filter of a SUBSCRIBE. The last two fields exist in MQTT 5 only (MQTT 5, 3.8.3.1)."""

    filter: str
    qos: int = 1
    retain_as_published: bool = True
    """Keep the RETAIN flag that the publisher set, instead of clearing it on forwarding."""
    retain_handling: int = 1
    """0 send retained messages at each subscribe, 1 only when the subscription is new, 2 never."""


@dataclass(frozen=True, slots=True)
class Connected:
    """A CONNACK that accepted us. ``epoch`` numbers the connections of one link from 1 on."""

    epoch: int
    session_present: bool
    receive_maximum: int = 65_535
    """Unconfirmed QoS 1 and 2 publishes that the broker accepts (MQTT 5), else 65535."""
    maximum_packet_size: int = 0
    """The largest packet that the broker accepts, in bytes (MQTT 5, 3.2.2.3.6); 0 if it states none."""
    maximum_qos: int = 2
    """The highest QoS that the broker accepts (MQTT 5, 3.2.2.3.4)."""
    retain_available: bool = True
    """Whether the broker accepts retained messages (MQTT 5, 3.2.2.3.5)."""
    keep_alive_s: int | None = None
    """The keep-alive that the broker sets instead of ours, in seconds (MQTT 5, 3.2.2.3.14)."""
    session_expiry_s: int | None = None
    """The session expiry that the broker uses instead of ours, in seconds (MQTT 5, 3.2.2.3.2)."""
    topic_alias_maximum: int = 0
    """The highest topic alias that the broker accepts (MQTT 5, 3.2.2.3.8)."""
    wildcards_available: bool = True
    """Whether the broker accepts wildcard subscriptions (MQTT 5, 3.2.2.3.11)."""
    shared_available: bool = True
    """Whether the broker accepts shared subscriptions (MQTT 5, 3.2.2.3.13)."""


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The end of a connection, or of an attempt: ``epoch`` is 0 if no CONNACK accepted us.

    ``reason`` is the MQTT 5 reason code if the broker sent one, in DISCONNECT or in the CONNACK that refused us, else
    None. ``closed_by_peer`` marks a connection that the other side closed without a DISCONNECT. Neither is set if we
    closed it: for a packet that we cannot read (``why`` names its type), a silence, or because a caller dropped it.
    """

    epoch: int
    why: str
    reason: int | None = None
    closed_by_peer: bool = False
    remedy: str | None = None
    """The change without which a retry cannot succeed: credentials, certificates. None if it can."""
    unanswered: bool = False
    """CONNECT was sent and no CONNACK came: the broker may have begun a new session, without subscriptions."""


class LinkHandler:
    """The callbacks of a link, always on its loop thread. An exception from any of them stops the link's loop."""

    @property
    def piece(self) -> int:
        """How many messages ``on_messages`` accepts next; between two pieces the link checks whether it was paused."""
        return 1

    def on_connected(self, event: Connected) -> None:
        """Called after a CONNACK that accepted us, before any message of that connection. Subscribe here."""

    def on_disconnected(self, event: Disconnected) -> None:
        """Called when a connection ended or an attempt failed. Raise to give up; else the link retries."""

    def on_subscribed(self, codes: list[int]) -> None:
        """Called with SUBACK's codes, in the order of the filters: 0 to 2 the granted QoS, from 0x80 refused."""

    def on_message(self, message: Message) -> None:
        """Called for each PUBLISH that arrives. ``Link.acknowledge`` alone acknowledges it, at QoS 2 with PUBREC."""

    def on_messages(self, messages: Sequence[Message]) -> None:
        """Called with the messages of one piece, in order; by default it calls ``on_message`` for each."""
        for message in messages:
            self.on_message(message)

    def on_turn(self, now: float) -> None:
        """Called at the end of each turn with the monotonic clock, at least once a second."""
