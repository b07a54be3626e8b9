"""A command as it stands on the commands topic: what is valid, and how it becomes a Pulsar message and back.

The sink writes with `encode_command`, push reads with `decode_command`; both refuse with the same words, so that
a row which the sink accepts is never one that push rejects. Where a command goes and when it is acknowledged is
decided elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from bridge.contract import (
    C_CAUSE,
    C_DEVICE,
    C_EMITTED,
    C_EXPIRES,
    C_GROUP,
    C_GROUP_ID,
    C_ID,
    C_QOS,
    C_REF,
    C_RESEND_OF,
    C_RETAIN,
    C_SIZE,
    C_TOPIC,
    C_VERSION,
    COMMAND_VERSION,
    ENTRY_VERSION,
)
from bridge.decoding import checked_whole
from bridge.errors import ContractError
from bridge.names import MAX_NAME_BYTES, name_problem

__all__ = [
    "MAX_CAUSE_BYTES",
    "MAX_COMMAND_BYTES",
    "MAX_TEXT_BYTES",
    "NOWHERE",
    "Command",
    "CommandPosition",
    "GroupRef",
    "Problem",
    "command_problem",
    "decode_command",
    "encode_command",
    "mqtt_name_problem",
    "publish_topic_problem",
    "read_command",
    "text_problem",
]

MAX_COMMAND_BYTES: Final = 5 * 1024 * 1024 - 64 * 1024
"""Payload, key and properties together, in bytes: Pulsar's default maxMessageSize less room for its headers."""

MAX_TEXT_BYTES: Final = 65_535
"""A topic or another text of MQTT at most, in UTF-8 (MQTT 5, 1.5.4)."""

MAX_CAUSE_BYTES: Final = 4096
"""In UTF-8. A cause stands in each index entry of a group command and in the roster of groups, and JSON may make six
bytes of one.
"""

_SHOWN: Final = 200
_END_OF_TIME_MS: Final = 2**63
_POSITION: Final = re.compile(r"(\d{1,9})\.(\d{1,9})\.(-?\d{1,18})\.(-?\d{1,18})\.(-?\d{1,9})", re.ASCII)
_NOT_IN_MQTT: Final = re.compile(
    "[\0-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef"
    + "".join(f"{chr(plane + 0xFFFE)}{chr(plane + 0xFFFF)}" for plane in range(0, 0x110000, 0x10000))
    + "]"
)
"""U+0000 and surrogates, which MQTT forbids (MQTT-1.5.4-1, MQTT-1.5.4-2), and control and non-characters, at which a
broker may close the connection as well (MQTT 5, 1.5.4).
"""


class Problem(NamedTuple):
    """Why something is not a command: the field (a column of the contract) and what is wrong with it."""

    field: str
    why: str

    def __str__(self) -> str:
        return f"{self.field}: {self.why}"


class CommandPosition(NamedTuple):
    """Where a command stands in its partition of the commands topic; ordered as the log is.

    ``batch_index`` is the place in a batch, -1 for a message that was not batched.
    """

    ledger: int
    entry: int
    batch_index: int

    def encode(self, partition: int, generation: int = 0) -> str:
        """Return the position as text: generation of the topic, partition, place. Devices see it with a tag
        (``bridge.push.position_tags``).
        """
        return f"{generation}.{partition}.{self.ledger}.{self.entry}.{self.batch_index}"

    @staticmethod
    def decode(text: str) -> tuple[int, int, CommandPosition]:
        """Read what ``encode`` wrote: generation, partition, place. Raises ContractError when it is none."""
        found = _POSITION.fullmatch(text)
        if found is None:
            raise ContractError(f"{text[:_SHOWN]!r} is not a position of a command")
        generation, partition, ledger, entry, index = map(int, found.groups())
        return generation, partition, CommandPosition(ledger, entry, index)


NOWHERE: Final = CommandPosition(-1, -1, -1)
"""Before every position."""


@dataclass(frozen=True, slots=True)
class GroupRef:
    """What makes a command an index entry: it was written for one member of a group, and its payload stands once, in
    the group command at ``position``. ``size`` is the length of that payload in bytes.
    """

    group: str
    command_id: str
    """The id of the group command."""
    position: CommandPosition
    size: int


@dataclass(frozen=True, slots=True)
class Command:
    """One command to one device. ``expires_at_ms`` and ``emitted_at_us`` count from the epoch, 0 means none."""

    command_id: str
    device: str
    mqtt_topic: str
    payload: bytes
    qos: int = 1
    retain: bool = False
    expires_at_ms: int = 0
    emitted_at_us: int = 0
    cause: str = ""
    resend_of: str = ""
    """The id that the command had at first, where this one sends it again."""
    ref: GroupRef | None = None

    @property
    def size(self) -> int:
        """Length of the payload in bytes, wherever it stands."""
        return self.ref.size if self.ref is not None else len(self.payload)

    def expired(self, now_us: int) -> bool:
        """Return whether the command must not be pushed any more at ``now_us``."""
        return self.expires_at_ms > 0 and now_us >= self.expires_at_ms * 1000


def command_problem(command: Command, max_name_bytes: int = MAX_NAME_BYTES) -> Problem | None:
    """Return the first reason why the command cannot be stored or pushed, None when it is valid.

    Where commands enter, ``max_name_bytes`` is that of the settings; what is stored already has names within its bound.
    """
    if not command.command_id:
        return Problem("command_id", "is empty; it is the command's identity")
    if not command.device:
        return Problem("device", "is empty; it is the key that keeps a device's order")
    # The device is the key of a cursor, among which push has records of its own under keys that begin with U+0000.
    names = [("command_id", command.command_id), ("device", command.device)]
    if command.resend_of:
        names.append(("resend_of", command.resend_of))
    if command.ref is not None:  # they stand in its receipt
        names += [(C_GROUP, command.ref.group), (C_GROUP_ID, command.ref.command_id)]
    for field, name in names:
        why = mqtt_name_problem(name, max_name_bytes)
        if why is not None:
            return Problem(field, why)
    topic = publish_topic_problem(command.mqtt_topic)
    if topic is not None:
        return Problem("mqtt_topic", topic)
    if command.qos not in (0, 1, 2):
        return Problem("qos", f"is {command.qos}, wanted 0, 1 or 2")
    if command.expires_at_ms < 0:
        return Problem("expires_at", f"is {command.expires_at_ms} ms, before the epoch")
    if command.expires_at_ms >= _END_OF_TIME_MS:
        return Problem("expires_at", f"is {command.expires_at_ms} ms, the limit is 2^63")
    if command.ref is not None and not 0 <= command.ref.size <= MAX_COMMAND_BYTES:
        return Problem(C_SIZE, f"is {command.ref.size}, a payload has at most {MAX_COMMAND_BYTES} bytes")
    if _bytes(command.cause) > MAX_CAUSE_BYTES:
        return Problem("cause", f"has {_bytes(command.cause)} bytes, the limit is {MAX_CAUSE_BYTES}")
    size = (
        len(command.payload)
        + _bytes(command.device)
        + sum(_bytes(name) + _bytes(value) for name, value in _properties(command).items())
    )
    if size > MAX_COMMAND_BYTES:
        return Problem("payload", f"makes a message of {size} bytes, the limit is {MAX_COMMAND_BYTES}")
    return None


def publish_topic_problem(topic: str) -> str | None:
    """Return why nothing can be published on an MQTT topic, None when it can."""
    # MQTT-4.7.3-1 (not empty), MQTT-3.3.2-2 (no wildcards in PUBLISH), MQTT-1.5.4-2 (no U+0000)
    if not topic:
        return "is empty"
    if any(c in topic for c in "+#\0"):
        return f"is {topic[:_SHOWN]!r}, and a topic to publish on has no + or # and no U+0000"
    return text_problem(topic)


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "replace"))


def text_problem(text: str) -> str | None:
    """Return why MQTT does not carry a text, or a broker may close the connection at it; None when it does."""
    found = _NOT_IN_MQTT.search(text)
    if found is not None:
        return f"is {text[:_SHOWN]!r}, and MQTT brokers do not take U+{ord(found[0]):04X}: no control characters"
    if _bytes(text) > MAX_TEXT_BYTES:
        return f"has {_bytes(text)} bytes, the limit is {MAX_TEXT_BYTES}"
    return None


def mqtt_name_problem(name: str, max_name_bytes: int) -> str | None:
    """Return why a name cannot be one that MQTT carries, None when it can."""
    return name_problem(name, max_name_bytes) or text_problem(name)


def _properties(command: Command) -> dict[str, str]:
    properties = {
        C_VERSION: COMMAND_VERSION,
        C_ID: command.command_id,
        C_DEVICE: command.device,
        C_TOPIC: command.mqtt_topic,
        C_QOS: str(command.qos),
        C_RETAIN: "1" if command.retain else "0",
    }
    if command.expires_at_ms:
        properties[C_EXPIRES] = str(command.expires_at_ms)
    if command.emitted_at_us:
        properties[C_EMITTED] = str(command.emitted_at_us)
    if command.cause:
        properties[C_CAUSE] = command.cause
    if command.resend_of:
        properties[C_RESEND_OF] = command.resend_of
    if command.ref is not None:
        properties |= {
            C_VERSION: ENTRY_VERSION,
            C_GROUP: command.ref.group,
            C_GROUP_ID: command.ref.command_id,
            C_REF: ":".join(map(str, command.ref.position)),
            C_SIZE: str(command.ref.size),
        }
    return properties


def encode_command(command: Command) -> dict[str, str]:
    """Return the properties of the command's Pulsar message; its payload is the command's, its key the device.

    Raises ContractError when the command is not valid.
    """
    problem = command_problem(command)
    if problem is not None:
        raise ContractError(f"command {command.command_id!r}: {problem}")
    return _properties(command)


def decode_command(properties: Mapping[str, str], payload: bytes, max_name_bytes: int = MAX_NAME_BYTES) -> Command:
    """Read a command back from its Pulsar message. Raises ContractError naming the property that is wrong."""
    command = read_command(properties, payload)
    problem = command_problem(command, max_name_bytes)
    if problem is not None:
        raise ContractError(str(problem))
    return command


def read_command(properties: Mapping[str, str], payload: bytes) -> Command:
    """Read a command that was valid once, by the rules of an earlier release perhaps: only its shape is looked at.

    Raises ContractError as ``decode_command``.
    """
    version = properties.get(C_VERSION)
    if version not in (COMMAND_VERSION, ENTRY_VERSION):
        raise ContractError(
            f"property {C_VERSION} of a command is {version!r}, this reads {COMMAND_VERSION!r} and {ENTRY_VERSION!r}"
        )
    needed = [C_ID, C_DEVICE, C_TOPIC]
    if version == ENTRY_VERSION:
        needed += [C_GROUP, C_GROUP_ID, C_REF]
    missing = [name for name in needed if name not in properties]
    if missing:
        raise ContractError(f"a command lacks the properties {', '.join(missing)}")
    return Command(
        command_id=properties[C_ID],
        device=properties[C_DEVICE],
        mqtt_topic=properties[C_TOPIC],
        payload=payload,
        qos=_number(properties, C_QOS, 1),
        retain=properties.get(C_RETAIN) == "1",
        expires_at_ms=_number(properties, C_EXPIRES, 0),
        emitted_at_us=_number(properties, C_EMITTED, 0),
        cause=properties.get(C_CAUSE, ""),
        resend_of=properties.get(C_RESEND_OF, ""),
        ref=_ref(properties) if version == ENTRY_VERSION else None,
    )


def _ref(properties: Mapping[str, str]) -> GroupRef:
    text = properties[C_REF]
    try:
        ledger, entry, index = (int(part) for part in text.split(":", 3))
        if not (0 <= ledger < 2**63 and 0 <= entry < 2**63 and -1 <= index < 2**31):
            raise ValueError("no place in Pulsar")
    except ValueError as e:
        raise ContractError(f"property {C_REF} of a command is {text[:80]!r}, wanted ledger:entry:index") from e
    position = CommandPosition(ledger, entry, index)
    return GroupRef(properties[C_GROUP], properties[C_GROUP_ID], position, _number(properties, C_SIZE, 0))


def _number(properties: Mapping[str, str], name: str, default: int) -> int:
    text = properties.get(name)
    if text is None:
        return default
    try:
        return checked_whole(int(text))
    except ValueError as e:
        raise ContractError(f"property {name} of a command is {text[:40]!r}, wanted a whole number") from e
