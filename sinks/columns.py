"""Columns that the sinks read, with their Spark SQL types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

__all__ = ["COMMAND_COLUMNS", "GROUP_MEMBER_COLUMNS", "MQTT_SINK_COLUMNS", "TOPIC_SINK_COLUMNS"]

COMMAND_COLUMNS: Final[tuple[tuple[str, str], ...]] = (
    ("command_id", "string"),
    ("device", "string"),
    ("mqtt_topic", "string"),
    ("payload", "binary"),
    ("qos", "int"),
    ("retain", "boolean"),
    ("expires_at", "timestamp"),
    ("emitted_at", "timestamp"),
    ("cause", "string"),
    ("group", "string"),
    ("link", "string"),
    ("broadcast", "boolean"),
)
"""Columns of a command row, in order, with Spark SQL types. ``command_id``, ``payload`` and either ``device`` with
``mqtt_topic`` or ``group`` are required; the others may be absent or null (``qos`` 1, ``retain`` false, no expiry)."""

GROUP_MEMBER_COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "group": ("string",),
    "device": ("string",),
    "member": ("boolean",),
}
"""Columns of ``format("pulsebridge_groups")``. ``group`` and ``device`` are required. Only ``member`` false removes the
device from the group."""

TOPIC_SINK_COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "value": ("binary", "string"),
    "payload": ("binary", "string"),
    "__key": ("string", "binary"),
    "__orderingKey": ("string",),
    "__topic": ("string",),
    "__eventTime": ("timestamp", "bigint"),
    "__messageProperties": ("map<string,string>",),
}
"""The columns that ``format("pulsebridge")`` writes, with their types. ``value`` or ``payload`` is required; null in it
is a tombstone. A ``__eventTime`` that is a number is in ms since the epoch. The other columns of the source contain the
position of a row, or repeat values of ``__messageProperties``."""

MQTT_SINK_COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "mqtt_topic": ("string",),
    "payload": ("binary", "string"),
    "qos": ("int",),
    "retain": ("boolean",),
    "content_type": ("string",),
    "response_topic": ("string",),
    "correlation_data": ("binary",),
    "user_properties": ("array<struct<name:string,value:string>>",),
    "payload_format": ("int",),
    "expiry_s": ("int", "bigint"),
}
"""Columns of ``format("pulsebridge_mqtt")``, with the source's names if it has them. ``payload`` is required, and
``mqtt_topic`` without the option ``topic``; from ``content_type`` on they need MQTT 5."""
