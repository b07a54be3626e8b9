"""The contract between the tiers: topics, properties, columns and their versions.

Both sides of an interface import this package and nothing else of each other. It contains names, forms, and their
encoding and decoding. Pure.

====================  =======================================  =====================================================
interface             written by                               read by
====================  =======================================  =====================================================
readings topics       ``bridge`` (ingest)                      ``sources``
source offset         ``sources``                              ``sources`` after a restart, ``streaming``
commands topic        ``sinks``                                ``bridge`` (push, ``commands``)
command cursors       ``bridge`` (push)                        ``bridge`` (push, ``devices``)
command receipts      ``bridge`` (push)                        ``bridge`` (``commands``), ``sources``, ``streaming``
alerts                ``sinks``                                ``streaming``, other programs
group commands, …     ``sinks`` (members as well)              ``bridge`` (push)
group roster          ``bridge`` (push)                        ``bridge`` (push, ``commands``)
dead letters          ``bridge``, ``sinks``                    operators, ``sources``
instances             ``bridge`` (ingest)                      ``bridge`` (ingest, ``status``)
device presence       ``bridge`` (ingest)                      ``bridge`` (push, ``devices``)
device resume         ``bridge`` (ingest)                      ``bridge`` (push)
====================  =======================================  =====================================================

A change that an older reader cannot read raises the version of its interface.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from bridge.contract.decoding import (
    LAST_US,
    checked_fields,
    checked_text,
    checked_whole,
    decodes,
    json_of_record,
    json_record,
)

# --- versions -----------------------------------------------------------------------------------------------

ENVELOPE_VERSION: Final = "1"
OFFSET_VERSION: Final = 1
COMMAND_VERSION: Final = "1"
ENTRY_VERSION: Final = "2"  # of an index entry: a command whose payload is in a group command
GROUP_COMMAND_VERSION: Final = "1"
GROUP_ROSTER_VERSION: Final = 1
RECEIPT_VERSION: Final = "3"
CURSOR_VERSION: Final = 2  # also of the separate record of ids
SEGMENT_VERSION: Final = 1
PRESENCE_VERSION: Final = 1
"""Of a record on ``PRESENCE_TOPIC``; ``bridge/contract/presence.py`` defines its form."""
INSTANCE_VERSION: Final = 1
"""Of a record on ``INSTANCES_TOPIC``; ``bridge/protocols/records.py`` defines its form."""

# --- Pulsar topics ------------------------------------------------------------------------------------------
# Readings have a separate namespace, so that no MQTT topic can name one of these topics.

COMMANDS_TOPIC: Final = "commands"
CURSORS_TOPIC: Final = "command-cursors"
RECEIPTS_TOPIC: Final = "command-receipts"
DEAD_LETTERS_TOPIC: Final = "dead-letters"
ALERTS_TOPIC: Final = "alerts"
"""Alerts as JSON with the columns of the table ``alerts``, each at least once; keyed by the command's device, if any.
"""
INSTANCES_TOPIC: Final = "protocol-instances"
"""The running ingest processes: one partition, compacted, keyed by instance; see ``bridge.protocols``."""
PARKED_TOPIC: Final = "parked-commands"
"""Copies of commands for devices that are offline for long, with as many partitions as ``COMMANDS_TOPIC``. The cursors
partition has the position of each copy."""
PRESENCE_TOPIC: Final = "device-presence"
"""The last sign of life of each device: compacted, keyed by device. It has the partitions and the hash of the commands.
So the owner of a commands partition finds its devices in the partition of that number (H31)."""
# One partition each, so that all devices get the commands to groups in one order; the two others are compacted.
GROUP_COMMANDS_TOPIC: Final = "group-commands"
GROUP_MEMBERS_TOPIC: Final = "group-members"  # the members of groups, by Spark; see ``bridge.contract.groups``
GROUP_ROSTER_TOPIC: Final = "group-roster"  # the state of their expander; see ``bridge.push.groups.roster``
RESUME_TOPIC: Final = "device-resume"  # resume requests, keyed and partitioned as the commands (H27)

GENERATION_TOPICS: Final = frozenset({COMMANDS_TOPIC, CURSORS_TOPIC, PARKED_TOPIC, PRESENCE_TOPIC, RESUME_TOPIC})
"""They have as many partitions as the commands. Another number is another generation of them, under other names (H28)."""

TENANT: Final = "public"
NAMESPACE: Final = "pulsebridge"
"""The default tenant and namespace of the readings topics; ``pulsar.tenant`` and ``pulsar.namespace`` set others."""

MOVES_TOPIC: Final = "pulsebridge/moves"
"""Prefix of ingest's own MQTT topics, by which it finds the end of a session that it drains."""

PUSH_SUBSCRIPTION: Final = "pulsebridge-push"
"""The durable subscription of the push tier on the commands topic."""

GROUPS_SUBSCRIPTION: Final = "pulsebridge-groups"
"""The durable subscription on the group commands; its position is before the oldest unexpired one."""

# --- envelope of a reading (Pulsar message properties) --------------------------------------------------------
# Payload: as received. Key: the device if a rule names it, else the full MQTT topic.
# Event time: arrival at ingest, ms since the epoch.

# Each property costs time and space in every message. So one property has all values that are the same for all messages
# of a topic, and default values are left out. ``full_envelope`` restores them all under the names that follow.

P_INGEST: Final = "pb.ingest"
"""The writer and the route of the topic: a JSON object of ``v``, ``link``, ``protocol`` and, if a rule names them,
``rule``, ``device`` and ``command_topic``. In the full envelope they are the six properties that follow; a separate
property takes precedence. On every reading."""
P_VERSION: Final = "pb.v"
P_LINK: Final = "pb.link"
P_PROTOCOL: Final = "mqtt.protocol"
"""Protocol of the link: ``3.1``, ``3.1.1``, ``5`` or ``http``."""
P_RULE: Final = "pb.rule"
P_DEVICE: Final = "pb.device"
P_COMMAND_TOPIC: Final = "pb.command_topic"
P_RETAINED: Final = "pb.retained"
"""``1`` if the broker sent the message because of a SUBSCRIBE, not of a new PUBLISH."""
P_TOPIC: Final = "mqtt.topic"
P_QOS: Final = "mqtt.qos"
"""Left out if it is ``1``."""
P_RETAIN: Final = "mqtt.retain"
"""Left out if it is ``0``."""
P_DUP: Final = "mqtt.dup"
"""Left out if it is ``0``."""
P_CONTENT_TYPE: Final = "mqtt.content_type"
P_RESPONSE_TOPIC: Final = "mqtt.response_topic"
P_CORRELATION: Final = "mqtt.correlation_data"
"""Correlation data, base64."""
P_PAYLOAD_FORMAT: Final = "mqtt.payload_format"
P_EXPIRY: Final = "mqtt.expiry_s"
P_USER: Final = "mqtt.user"
"""User properties as a JSON array of ``[name, value]`` pairs: order and repeats are kept."""

# Reserved user property on every publish of push; ingest never treats such a message as a reading (H8).
ORIGIN_PROPERTY: Final = "pulsebridge-origin"
ORIGIN_PUSH: Final = "push"
ORIGIN_SINK: Final = "sink"
"""On publishes of ``format("pulsebridge_mqtt")`` without its option for loopback."""

# --- dead letters (in addition to the envelope's properties) --------------------------------------------------

P_DEAD_REASON: Final = "pb.dead.reason"
DEAD_MALFORMED: Final = "malformed PUBLISH: "
"""Begin of the reason of a malformed PUBLISH; the payload of its dead letter is the packet after its fixed header."""
P_DEAD_TOPIC: Final = "pb.dead.topic"
"""The Pulsar topic (with partition) of the message; empty if no rule named one."""
P_DEAD_AT: Final = "pb.dead.at_us"
P_DEAD_LENGTH: Final = "pb.dead.length"
"""Length in bytes of the original payload, if only its head could be stored (H5)."""
P_DEAD_SHA256: Final = "pb.dead.sha256"
P_DEAD_CUT: Final = "pb.dead.cut"
"""JSON object of properties that were cut or left out: name → [length in bytes, SHA-256]; not all of many."""
P_DEAD_KEY: Final = "pb.dead.key"
"""The key of the message; absent if the dead letter has the same key."""
P_DEAD_NOTE: Final = "pb.dead.note"
"""On a message of the dead letter topic that is not a dead letter: its kind."""
NOTE_REPLAYED: Final = "replayed"
"""The payload is a JSON array: ``ledger:entry`` of replayed dead letters in the same partition."""
NOTE_PROBE: Final = "probe"
"""Ingest tests whether Pulsar accepts messages. ``P_DEAD_TOPIC`` does not, because of ``P_DEAD_REASON``."""
P_REPLAYED: Final = "pb.replayed"
"""On a message that was replayed from a dead letter: the id of the dead letter, ``partition:ledger:entry``."""

# --- a command (Pulsar message on COMMANDS_TOPIC; payload: as the device gets it; key: device) ---------------

C_VERSION: Final = "pb.v"
C_ID: Final = "command.id"
C_DEVICE: Final = "command.device"
C_TOPIC: Final = "command.mqtt_topic"
C_QOS: Final = "command.qos"
C_RETAIN: Final = "command.retain"
C_EXPIRES: Final = "command.expires_at_ms"
C_EMITTED: Final = "command.emitted_at_us"
C_CAUSE: Final = "command.cause"
"""Identity of the cause of the command, for example ``rule/reading id``."""
C_LINK: Final = "command.link"
"""Name of a link: at its MQTT broker the device gets the command if push does not know where the device is."""
C_RESEND_OF: Final = "command.resend_of"
"""On a resent copy of a failed command: the first id of the command. The copy has the id ``ID~2``, ``ID~3``, …"""
C_MOVED_FROM: Final = "command.moved_from"
"""On a copy that `pulsebridge commands move` wrote: the former position, as ``CommandPosition.encode``."""

C_GROUP: Final = "command.group"  # on a group command (also its key); on its index entries, as the three that follow
C_GROUP_ID: Final = "command.group_command_id"  # the ``C_ID`` of the group command
C_REF: Final = "command.ref"  # position of the group command, which has the payload: ``ledger:entry:index``
C_SIZE: Final = "command.size"  # length of that payload in bytes
C_BROADCAST: Final = "command.broadcast"  # ``1`` on a group command that is broadcast, and on its index entries
C_AFTER: Final = "command.after"
"""On a broadcast itself: position of the group's previous command, ``ledger:entry:index``; -1 each without one."""

ANSWER_FAILED_PROPERTY: Final = "failed"
"""User property of a device's answer; with ``1`` the device has failed to execute the command, and push resends it."""

# User properties that a device sees on a command over MQTT 5.
COMMAND_ID_PROPERTY: Final = "command-id"
COMMAND_POSITION_PROPERTY: Final = "position"
COMMAND_REPEAT_PROPERTY: Final = "repeat"
"""``1`` on a command that may have reached the device before (H26)."""
# On a command to a group, and on a broadcast instead of ``COMMAND_POSITION_PROPERTY``.
GROUP_PROPERTY: Final = "group"
GROUP_POSITION_PROPERTY: Final = "group-position"
AFTER_PROPERTY: Final = "after"
"""On a broadcast: the position of the group's previous command, or ``none``; a device without it ignores the broadcast."""

# Levels of topics instead, for devices that cannot read properties.
ANSWER_FAILED_LEVEL: Final = "failed"
COMMAND_REPEAT_LEVEL: Final = "repeat"

# --- a receipt (Pulsar message on RECEIPTS_TOPIC; payload: JSON of these fields; key: device) -------------------

DELIVERIES: Final = "delivered", "answered"
FAILURES: Final = "expired", "rejected", "overflowed"
"""Receipt states after which ``commands resend`` writes the command again."""
BROADCAST_STATE: Final = "broadcast"
REMARKS: Final = "duplicate", BROADCAST_STATE
"""Receipt states about a second message of a command, and about the one publish of a broadcast; they do not end it."""
RECEIPT_STATES: Final = (*DELIVERIES, *FAILURES, *REMARKS, "expanded")
"""docs/guides/push.md has their meaning, CONTRIBUTING.md the steps to add one. A reader takes an unknown state as text."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """The result of one command. Times are µs since the epoch, 0 if the step did not happen."""

    command_id: str
    device: str
    mqtt_topic: str
    state: str
    reason: str = ""
    position: str = ""
    attempts: int = 0
    emitted_at_us: int = 0
    pushed_at_us: int = 0
    confirmed_at_us: int = 0
    answered_at_us: int = 0
    answer: bytes = b""
    """The device's answer, in the record as base64; its head if ``answer_length``, in bytes, is more."""
    answer_length: int = 0
    resend_of: str = ""
    """The first id of the command if this one is a resent copy; empty for all others."""
    group: str = ""
    """The group of the command. On a group command's receipt ``group_command_id`` is ``command_id``."""
    group_command_id: str = ""
    members: int = 0
    """Of a group command: its number of devices."""

    def encode(self) -> bytes:
        """Return the receipt as the JSON payload of its Pulsar message."""
        body = {"v": RECEIPT_VERSION} | {name: getattr(self, name) for name in self.__annotations__}
        body["answer"] = base64.b64encode(self.answer).decode("ascii")
        return json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode()

    @classmethod
    @decodes("a command receipt")
    def decode(cls, payload: bytes) -> Receipt:
        """Read a receipt. Raises ContractError if the payload is not one of a known version."""
        body = json_record(payload, "receipt", [RECEIPT_VERSION])
        known = checked_fields(body, {n: k for n, k in cls.__annotations__.items() if n != "answer"})
        for name in ("emitted_at_us", "pushed_at_us", "confirmed_at_us", "answered_at_us"):
            checked_whole(known.get(name, 0), 0, LAST_US)
        return cls(**known, answer=base64.b64decode(body.get("answer", ""), validate=True))


RECEIPT_COLUMNS: Final = (
    ("v", "string"),
    *(
        (name, ("bigint" if name.endswith("_us") else "int") if kind == "int" else "string")
        for name, kind in Receipt.__annotations__.items()
    ),
)
"""Columns of a receipt, with Spark SQL types."""


# --- columns of the source ------------------------------------------------------------------------------------

SOURCE_COLUMNS: Final[tuple[tuple[str, str], ...]] = (
    # as StreamNative's connector names them
    ("value", "binary"),
    ("__key", "string"),
    ("__topic", "string"),
    ("__messageId", "binary"),
    ("__publishTime", "timestamp"),
    ("__eventTime", "timestamp"),
    ("__messageProperties", "map<string,string>"),
    # position of the row, for exact joins: partition number, ledger, entry, index in the batch (0 if unbatched)
    ("partition", "int"),
    ("ledger_id", "bigint"),
    ("entry_id", "bigint"),
    ("batch_index", "int"),
    # the MQTT view
    ("mqtt_topic", "string"),
    ("device", "string"),
    ("payload", "binary"),
    ("qos", "int"),
    ("retain", "boolean"),
    ("retained", "boolean"),
    ("arrival_time", "timestamp"),
    ("command_topic", "string"),
    ("content_type", "string"),
    ("response_topic", "string"),
    ("correlation_data", "binary"),
    ("user_properties", "array<struct<name:string,value:string>>"),
)
"""Columns of ``format("pulsebridge")``, in order, with Spark SQL types. ``payload`` is ``value`` by its MQTT name."""


# --- topic names ------------------------------------------------------------------------------------------------

_PARTITION: Final = "-partition-"
"""Pulsar's separator between a topic and the number of its partition."""


class Position(NamedTuple):
    """An entry-aligned position in a partition: the next entry to read is ``entry`` of ``ledger``."""

    ledger: int
    entry: int

    @classmethod
    def parse(cls, text: str) -> Position:
        """Read ``ledger:entry``, as Pulsar's admin writes it. Raises ValueError."""
        ledger, _, entry = str(text).partition(":")
        return cls(int(ledger), int(entry))


def topic_name(tenant: str, namespace: str, local: str) -> str:
    """Return the full name of a persistent topic, for example ``persistent://public/pulsebridge/plant``."""
    return f"persistent://{tenant}/{namespace}/{local}"


def namespace_of(topic: str) -> str:
    """Return ``tenant/namespace`` of a topic's full name."""
    return "/".join(topic.partition("://")[2].split("/")[:2])


def full_name(name: str) -> str:
    """Return the full name of a persistent topic. Raises ValueError with a message for other names."""
    domain, mark, rest = name.partition("://")
    if mark and domain != "persistent":
        raise ValueError(f"topic {name!r}: a {domain} topic keeps nothing to replay; give a persistent one")
    parts = (rest if mark else name).split("/")
    if not all(parts) or len(parts) not in (1, 3):
        raise ValueError(f"topic {name!r}: give persistent://tenant/namespace/name, or a name in public/default")
    return topic_name(*parts) if len(parts) == 3 else topic_name("public", "default", parts[0])


def partition_name(topic: str, partition: int) -> str:
    """Return the name of one partition of a partitioned topic."""
    return f"{topic}{_PARTITION}{partition}"


def partition_names(topic: str, partitions: int) -> list[str]:
    """Return the names of a topic's partitions; the topic's name if it is not partitioned."""
    return [partition_name(topic, number) for number in range(partitions)] or [topic]


def base_topic(name: str) -> str:
    """Return the topic of a partition; any other name as it is."""
    base, found, number = name.rpartition(_PARTITION)
    return base if found and number.isdecimal() else name


def partition_number(name: str, without: int = 0) -> int:
    """Return the number of a partition, ``without`` if the name has no number."""
    _, found, number = name.rpartition(_PARTITION)
    return int(number) if found and number.isdecimal() else without


_INGEST: Final = {
    "v": P_VERSION,
    "link": P_LINK,
    "protocol": P_PROTOCOL,
    "rule": P_RULE,
    "device": P_DEVICE,
    "command_topic": P_COMMAND_TOPIC,
}
_DEFAULTS: Final = {P_QOS: "1", P_RETAIN: "0", P_DUP: "0"}


def encode_ingest(**fields: str | None) -> str:
    """Encode ``P_INGEST`` from its fields; None is left out. The version is added."""
    assert fields.keys() <= _INGEST.keys()
    body = {"v": ENVELOPE_VERSION} | {name: value for name, value in fields.items() if value is not None}
    return json.dumps(body, separators=(",", ":"), ensure_ascii=False)


@decodes(f"the JSON object of property {P_INGEST}")
def decode_ingest(text: str) -> dict[str, str]:
    """Decode ``P_INGEST`` into the properties of the full envelope.

    Raises ContractError if it is not a JSON object of this version.
    """
    body = json_record(text, "envelope", [ENVELOPE_VERSION])
    return {_INGEST[name]: checked_text(value) for name, value in body.items() if name in _INGEST}


def full_envelope(properties: Mapping[str, str]) -> dict[str, str]:
    """Return a reading's properties with all folded and default ones; those of other messages as they are.

    Raises ContractError if ``P_INGEST`` is not valid.
    """
    ingest = properties.get(P_INGEST)
    return dict(properties) if ingest is None else _DEFAULTS | decode_ingest(ingest) | dict(properties)


def folded_envelope(full: Mapping[str, str]) -> dict[str, str]:
    """Return a full envelope in its stored form, as before ``full_envelope``."""
    if P_INGEST not in full:
        return dict(full)
    ingest = {short: full.get(name) for short, name in _INGEST.items() if short != "v"}
    kept = {
        name: value for name, value in full.items() if name not in _INGEST.values() and _DEFAULTS.get(name) != value
    }
    return kept | {P_INGEST: encode_ingest(**ingest)}


_quoted: Final = json.encoder.encode_basestring


def encode_user_properties(pairs: Sequence[tuple[str, str]]) -> str:
    """Encode MQTT 5 user properties for ``P_USER``; order and repeats are kept."""
    return "[" + ",".join([f"[{_quoted(name)},{_quoted(value)}]" for name, value in pairs]) + "]"


@decodes(f"the JSON array of pairs of property {P_USER}")
def decode_user_properties(text: str) -> list[tuple[str, str]]:
    """Decode ``P_USER``. Raises ContractError if it is not an array of pairs of strings."""
    return [(checked_text(name), checked_text(value)) for name, value in json_of_record(text)]


def encode_correlation(data: bytes) -> str:
    """Encode MQTT 5 correlation data for ``P_CORRELATION``."""
    return base64.b64encode(data).decode("ascii")


@decodes(f"the base64 of property {P_CORRELATION}")
def decode_correlation(text: str) -> bytes:
    """Decode ``P_CORRELATION``. Raises ContractError if it is not base64."""
    return base64.b64decode(text, validate=True)
