"""Names and meanings of the sinks' options, by format. ``sinks.options`` gives the values types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from bridge.settings.mqtt import MqttSettings
from bridge.spark.connection_options import CONNECTION_OPTIONS

__all__ = ["COMMANDS", "GROUPS", "MQTT", "MQTT_SETTINGS", "NO_EFFECT", "OPTIONS", "TOPICS"]

TOPICS: Final = "pulsebridge"
COMMANDS: Final = "pulsebridge_commands"
GROUPS: Final = "pulsebridge_groups"
MQTT: Final = "pulsebridge_mqtt"

_PULSAR: Final[Mapping[str, str]] = {
    **CONNECTION_OPTIONS,
    "tenant": "Tenant of the system namespace; default public.",
    "system.namespace": "Namespace of commands and dead letters; default pulsebridge-system.",
    "partitions": "Partitions of a topic that is created; default 4.",
    "command.generation": "Which commands topic is in force, pulsar.command_generation of the other tiers; default 0.",
    "provision": "Whether missing topics and namespaces are created, true (default) or false.",
    "badRows": "deadletter (default): a row that cannot be written goes to the dead letters with row, field and reason, and the other rows are written; fail: it fails the task.",
    "sendTimeoutMs": "How long a task waits without any receipt from Pulsar before it fails, in ms (default 60000).",
    "maxNameBytes": "Longest device, group, command id and key, in bytes of UTF-8 (default 1024); a row with a longer one is bad. Use max_name_bytes of the other tiers.",
}

MQTT_SETTINGS: Final = (
    "host", "port", "protocol", "username", "password", "tls", "tls_ca", "tls_certificate", "tls_private_key",
    "tls_validate_hostname", "keep_alive", "connect_timeout",
)  # fmt: skip
"""Settings of the section ``mqtt`` that are options under their own names."""

OPTIONS: Final[Mapping[str, Mapping[str, str]]] = {
    TOPICS: {
        "topic": "The topic for all rows; it must exist. Without this option the column __topic names each row's topic.",
        **_PULSAR,
        "keyEncoding": "text (default: __key is stored as it is); base64: __key is binary and stored as base64, which the source reads with the same option.",
        "pulsar.producer.batchingEnabled": "Whether messages are sent in batches (default true); false for consumers of type Key_Shared, because one consumer receives a whole batch.",
        "pulsar.producer.chunkingEnabled": "Whether payloads above Pulsar's limit are sent in chunks (default false: such rows are bad); this disables batches.",
    },
    COMMANDS: {
        "topic": "Commands topic: commands (default), in the system namespace, or its full name if a push with another namespace reads it. Any other topic is refused, because push does not read it.",
        **_PULSAR,
        "namespace": "Namespace of the readings, created with the system namespace; default pulsebridge.",
    },
    GROUPS: {
        **_PULSAR,
        "namespace": "Namespace of the readings, created with the system namespace; default pulsebridge.",
    },
    MQTT: {
        "topic": "MQTT topic for rows without mqtt_topic (null, or no such column).",
        **{
            f"mqtt.{name}": MqttSettings.description_of(name)
            + (f" Default: {getattr(default, 'text', default)}." if default is not None else "")
            for name in MQTT_SETTINGS
            for default in [MqttSettings.model_fields[name].default]
        },
        "mqtt.password_file": "File of the password, read at each connect, on the executors.",
        "mqtt.client_id": "Beginning of the client ids; each task adds its own. Default pb-sink.",
        "window": "Most unconfirmed publishes of a task; default 1000. Their payloads have at most 64 MiB.",
        "sendTimeoutMs": "How long a task waits without any confirmation from the broker before it fails, in ms (default 60000).",
        "badRows": "deadletter (default): a row that cannot be published, or that the broker refuses, is published to deadLetterTopic with row, field and reason, and the other rows are published; fail: it fails the task.",
        "deadLetterTopic": "MQTT topic of the bad rows, JSON at QoS 1; default pulsebridge/dead-letters.",
        "allowLoopback": "Whether ingest may read these publishes (default false: with MQTT 5 the sink marks them, and ingest leaves them out).",
    },
}
"""Every option of each format with its meaning and unit. Names are as documented, and compare case-insensitively."""

NO_EFFECT: Final[Mapping[str, str]] = {
    f"pulsar.producer.{name}": "tunes the Java client"
    for name in (
        "batchingMaxBytes", "batchingMaxMessages", "batchingMaxPublishDelayMicros", "blockIfQueueFull",
        "maxPendingMessages", "maxPendingMessagesAcrossPartitions", "producerName", "sendTimeoutMs",
    )
}  # fmt: skip
"""Producer options of StreamNative's connector that are accepted without effect."""
