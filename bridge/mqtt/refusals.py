"""The meaning of a refused MQTT connection or publish: whether a retry can succeed, and what to change.

Reason codes are those of MQTT 5 (3.2.2.2) in all versions.
"""

from __future__ import annotations

from typing import Final

from bridge.errors import ConfigError
from bridge.mqtt.packets import reason_name
from bridge.mqtt.types import Disconnected
from bridge.settings.mqtt import MqttSettings
from bridge.tls import handshake_problem

__all__ = [
    "AT_ONCE_S",
    "NOT_AUTHORIZED",
    "not_connected",
    "perhaps_for_a_packet",
    "refused",
    "subscriber",
    "subscription_remedy",
    "what_to_check",
]

NOT_AUTHORIZED: Final = 0x87

AT_ONCE_S: Final = 5.0
"""Time, in seconds, within which a broker closes the connection if it rejects a packet."""

_PASSING: Final = frozenset({0x80, 0x83, 0x88, 0x89, 0x97, 0x9F})
"""Unspecified, implementation specific, unavailable, busy, quota exceeded, connection rate exceeded: retry."""

_OF_THE_BROKER: Final = frozenset({0x00, 0x04, 0x88, 0x89, 0x8B, 0x8D, 0x8E, 0x96, 0x97, 0x98, 0x9C, 0x9D, 0x9F, 0xA0})
"""Reasons of DISCONNECT (MQTT 5, 3.14.2.1) that no single packet of ours causes: unavailable, busy, shutting down, keep-alive,
session takeover, rate, quota, administrative action, moved, connect time.
"""


def perhaps_for_a_packet(event: Disconnected) -> bool:
    """Return whether the broker may have closed a connection because of our packet (MQTT 5, 4.13)."""
    if not event.epoch:
        return False
    return event.closed_by_peer if event.reason is None else event.reason not in _OF_THE_BROKER


def not_connected(error: Exception, settings: MqttSettings) -> Disconnected:
    """Return the loss that follows if ``error`` prevented the CONNACK."""
    where = f"{settings.host}:{settings.port}"
    if isinstance(error, ConfigError):  # a file that the settings name cannot be used now
        return Disconnected(0, error.what, remedy=error.remedy or "make it readable")
    problem = handshake_problem(error, settings, "mqtt", where)
    if problem is not None:
        return Disconnected(0, problem.what, remedy=problem.remedy)
    return Disconnected(0, f"connecting to {where}: {error}")


def refused(reason: int, settings: MqttSettings) -> Disconnected:
    """Return the loss that follows a CONNACK with ``reason``."""
    why = f"the MQTT broker at {settings.host}:{settings.port} refused the connection: {reason_name(reason)}"
    return Disconnected(0, why, reason, remedy=_connect_remedy(reason, settings))


def _connect_remedy(reason: int, settings: MqttSettings) -> str | None:
    """Return the necessary change after a CONNACK with ``reason``, None if a retry can succeed."""
    if reason in _PASSING:
        return None
    client_id = settings.client_id
    credentials = (
        "it requires credentials: set mqtt.username and mqtt.password (or password_file), or a client certificate"
        if settings.username is None
        else f"check mqtt.username ({settings.username!r}) and mqtt.password or password_file, and that this user may "
        f"connect as {client_id!r}"
    )
    moved = "the broker has moved: set mqtt.host and mqtt.port to its new address"
    remedies = {
        0x84: f"it does not speak MQTT {settings.protocol}: set mqtt.protocol to another of 3.1, 3.1.1 and 5",
        0x85: f"it does not accept the client id {client_id!r}: set another (mqtt.client_id, push.client_id)",
        0x86: credentials,
        NOT_AUTHORIZED: credentials,
        0x8A: f"the broker has banned {client_id!r}: ask its operator",
        0x8C: credentials,
        0x9C: moved,
        0x9D: moved,
    }
    return remedies.get(reason, "check mqtt.username, mqtt.password, mqtt.protocol and mqtt.client_id")


def subscriber(settings: MqttSettings, client_id: str) -> str:
    """Return the broker's name of this client, for a request for rights."""
    return f"the client id {client_id!r}" if settings.username is None else f"mqtt.username {settings.username!r}"


def subscription_remedy(settings: MqttSettings, client_id: str) -> str:
    """Return the necessary change after the broker refused a subscription."""
    # NATS gives 0x80 when the max_ack_pending of a session's subscriptions exceed 65,535 together (server/mqtt.go).
    return (
        f"allow {subscriber(settings, client_id)} to read it; a NATS server also refuses it when a session has too many "
        "subscriptions for its mqtt max_ack_pending: lower that"
    )


def what_to_check(event: Disconnected) -> str:
    """Return what to check after the end of a connection that is retried."""
    if event.remedy is not None:
        return event.remedy
    if event.epoch and event.closed_by_peer:
        # Before MQTT 5 a broker does not report that another connection took the session over, so this is possible.
        return "check that it runs, and that no other process uses this MQTT client id"
    return "check that it runs"
