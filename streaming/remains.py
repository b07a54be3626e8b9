"""What is left of a forgotten device outside of the tables' rows, and until when, in words.

Pulsar's part is asked of its admin: the policies decide, not our settings, which an operator may have overruled. The
texts are made by pure functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, Final

from bridge.contract import (
    COMMANDS_TOPIC,
    CURSORS_TOPIC,
    DEAD_LETTERS_TOPIC,
    GROUP_MEMBERS_TOPIC,
    GROUP_ROSTER_TOPIC,
    PARKED_TOPIC,
    PRESENCE_TOPIC,
    RECEIPTS_TOPIC,
    RESUME_TOPIC,
    partition_name,
)
from bridge.errors import PulsebridgeError

if TYPE_CHECKING:
    from bridge.pulsar_admin import PulsarAdmin
    from bridge.settings.pulsar import PulsarSettings
    from streaming.forgetting import Forgotten

__all__ = ["in_lakehouse", "in_pulsar", "kept_for"]

_COMPACTED: Final = (CURSORS_TOPIC, PRESENCE_TOPIC, GROUP_MEMBERS_TOPIC, GROUP_ROSTER_TOPIC)
_MESSAGES: Final = (COMMANDS_TOPIC, PARKED_TOPIC, RECEIPTS_TOPIC, RESUME_TOPIC, DEAD_LETTERS_TOPIC)
_ROLLOVER: Final = (
    "and up to 4 hours (managedLedgerMaxLedgerRolloverTimeMinutes) until their ledger is closed"
)


def in_lakehouse(done: Forgotten) -> list[str]:
    """Return what is left below the tables, and how it goes."""
    lines = [
        f"{name}: old files keep the deleted rows, for time travel, until VACUUM {done.sql[name]} is run more than "
        f"{done.kept[name]} after the deletion"
        for name in done.deleted
    ]
    if lines:
        lines.append(
            "the bounds of columns in the tables' logs name the device until delta.logRetentionDuration (30 days by "
            "default) has passed; the state of the query alerts keeps the newest reading of each of its metrics until the device "
            "was away for streaming.alert_state_days"
        )
    return lines


def kept_for(policies: Mapping[str, Any], now: datetime) -> str:
    """Return until when a namespace with these policies keeps what every subscription has read."""
    retention = policies.get("retention_policies") or {}
    minutes, size = retention.get("retentionTimeInMinutes") or 0, retention.get("retentionSizeInMB") or 0
    if not minutes or not size:
        return "goes once every subscription has read it"
    limit = f", or until a topic has {size} MB of it" if size > 0 else ""
    if minutes < 0:
        return f"stays for ever{limit} (retention without end: pulsar-admin namespaces set-retention)"
    until = (now + timedelta(minutes=minutes)).astimezone(timezone.utc)
    return (
        f"stays {minutes} minutes after it was written: the last of it until {until:%Y-%m-%d %H:%M} UTC{limit}, "
        f"{_ROLLOVER}"
    )


def in_pulsar(pulsar: PulsarSettings, subscription: str, admin: PulsarAdmin, now: datetime) -> list[str]:
    """Return what Pulsar keeps: of readings, of commands, of compacted topics. ``subscription`` is bronze's."""
    lines = []
    for namespace in pulsar.all_namespaces:
        try:
            policies = admin.request("GET", f"/namespaces/{namespace}")
            lines.append(f"Pulsar {namespace}: what every subscription has read {kept_for(policies, now)}")
            topics = set(admin.topics(namespace))
            if namespace in pulsar.readings_namespaces:
                lines += _unread(namespace, _backlog(admin, topics, subscription), subscription)
            else:
                lines += _system(pulsar, topics)
        except PulsebridgeError as e:
            lines.append(f"Pulsar {namespace}: not known, its admin does not say: {e.what}")
    return lines


def _unread(namespace: str, backlog: int, subscription: str) -> list[str]:
    if not backlog:
        return []
    return [
        f"Pulsar {namespace}: {backlog} messages that {subscription} has not read will come into bronze, the device's "
        "among them: run this again when they have"
    ]


def _backlog(admin: PulsarAdmin, topics: set[str], subscription: str) -> int:
    found = 0
    for topic in topics:
        for n in range(admin.partition_count(topic)):
            subscriptions = admin.stats(partition_name(topic, n)).get("subscriptions", {})
            found += int(subscriptions.get(subscription, {}).get("msgBacklog", 0))
    return found


def _system(pulsar: PulsarSettings, topics: set[str]) -> list[str]:
    messages = [name for name in _MESSAGES if pulsar.system_topic(name) in topics]
    compacted = [name for name in _COMPACTED if pulsar.system_topic(name) in topics]
    lines = []
    if messages:
        lines.append(
            f"Pulsar {', '.join(messages)}: what was for the device or came of it goes with that retention once it is "
            "delivered, answered or expired"
        )
    if compacted:
        lines.append(
            f"Pulsar {', '.join(compacted)}: compacted, the newest records of the device stay without end; an empty "
            "message under each of their keys takes them away, once the device is gone for good"
        )
    return lines
