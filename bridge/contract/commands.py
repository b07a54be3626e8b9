"""A command on the commands topic: its validation, and its encoding as a Pulsar message.

The sink writes with ``encode_command``, push reads with ``decode_command``. Both use the same validation, so push
rejects no row that the sink accepts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from bridge.contract import (
    C_AFTER,
    C_BROADCAST,
    C_CAUSE,
    C_DEVICE,
    C_EMITTED,
    C_EXPIRES,
    C_GROUP,
    C_GROUP_ID,
    C_ID,
    C_LINK,
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
from bridge.contract.decoding import checked_position, checked_whole
from bridge.contract.names import MAX_NAME_BYTES, name_problem
from bridge.errors import ContractError

__all__ = [
    "BEFORE_ALL",
    "MAX_CAUSE_BYTES",
    "MAX_COMMAND_BYTES",
    "MAX_TEXT_BYTES",
    "Command",
    "CommandPosition",
    "GroupRef",
    "Problem",
    "broadcaster",
    "command_problem",
    "decode_command",
    "encode_command",
    "is_broadcaster",
    "mqtt_name_problem",
    "publish_topic_problem",
    "read_command",
    "text_problem",
]

MAX_COMMAND_BYTES: Final = 5 * 1024 * 1024 - 64 * 1024
"""Payload, key and properties together, in bytes: Pulsar's default maxMessageSize less room for its headers."""

MAX_TEXT_BYTES: Final = 65_535
"""Maximum bytes of a topic or another text of MQTT, in UTF-8 (MQTT 5, 1.5.4)."""

MAX_CAUSE_BYTES: Final = 4096
"""In UTF-8. Each index entry of a group command and the roster of groups contain the cause. JSON may need six bytes for
one.
"""

_SHOWN: Final = 200
_END_OF_TIME_MS: Final = 2**63
_POSITION: Final = re.compile(r"(\d{1,9})\.(\d{1,9})\.(-?\d{1,18})\.(-?\d{1,18})\.(-?\d{1,9})", re.ASCII)
_NOT_IN_MQTT: Final = re.compile(
    "[\0-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef"
    + "".join(f"{chr(plane + 0xFFFE)}{chr(plane + 0xFFFF)}" for plane in range(0, 0x110000, 0x10000))
    + "]"
)
"""U+0000 and surrogates, which MQTT forbids (MQTT-1.5.4-1, MQTT-1.5.4-2). Also control and non-characters: a broker may
close the connection because of them (MQTT 5, 1.5.4).
"""


class Problem(NamedTuple):
    """The reason why a command is invalid: the field (a column of the contract) and its problem."""

    field: str
    why: str

    def __str__(self) -> str:
        return f"{self.field}: {self.why}"


class CommandPosition(NamedTuple):
    """The position of a command, or of another message, in its partition; ordered as the log.

    ``batch_index`` is the index in a batch, -1 for an unbatched message.
    """

    ledger: int
    entry: int
    batch_index: int = -1

    @classmethod
    def parse(cls, text: str) -> CommandPosition:
        """Read ``ledger:entry`` or ``ledger:entry:index``. Raises ValueError."""
        ledger, entry, *index = (int(part) for part in text.split(":", 3))
        return cls(*checked_position((ledger, entry, *(index or [-1]))))

    def __str__(self) -> str:
        return f"{self.ledger}:{self.entry}" + (f":{self.batch_index}" if self.batch_index >= 0 else "")

    def encode(self, partition: int, generation: int = 0) -> str:
        """Return the position as text: generation of the topic, partition, ledger, entry, index.

        Devices see it with a tag (``bridge.contract.tagged_positions``).
        """
        return f"{generation}.{partition}.{self.ledger}.{self.entry}.{self.batch_index}"

    @staticmethod
    def decode(text: str) -> tuple[int, int, CommandPosition]:
        """Read the text of ``encode``: generation, partition, position. Raises ContractError for other texts."""
        found = _POSITION.fullmatch(text)
        if found is None:
            raise ContractError(f"{text[:_SHOWN]!r} is not a position of a command")
        generation, partition, ledger, entry, index = map(int, found.groups())
        return generation, partition, CommandPosition(ledger, entry, index)


BEFORE_ALL: Final = CommandPosition(-1, -1, -1)
"""Before every position."""


@dataclass(frozen=True, slots=True)
class GroupRef:
    """The reference of an index entry to the group command at ``position``.

    An index entry is a command to one member of the group. The group command has the payload; ``size`` is its length in
    bytes.
    """

    group: str
    command_id: str
    """The id of the group command."""
    position: CommandPosition
    size: int
    broadcast: bool = False
    """Whether the members get the command by one publish on the group's topic."""
    after: CommandPosition | None = None
    """Of that publish itself: the position of the group's previous command, BEFORE_ALL without one. None for an entry.
    """


_BROADCASTER: Final = "\1"
"""No device has such a name, because ``text_problem`` refuses it."""


def broadcaster(group: str, link: str) -> str:
    """Return the name under which a group gets its broadcasts at a broker, in place of a device's."""
    return f"{_BROADCASTER}{link}{_BROADCASTER}{group}"


def is_broadcaster(name: str) -> bool:
    """Return whether a name is one of ``broadcaster``."""
    return name.startswith(_BROADCASTER)


@dataclass(frozen=True, slots=True)
class Command:
    """One command to one device. ``expires_at_ms`` and ``emitted_at_us`` are since the epoch, 0 means none."""

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
    """The first id of the command, if this one is a resent copy."""
    ref: GroupRef | None = None
    link: str = ""
    """Name of the link to the MQTT broker where the device gets the command if push does not know where the device is."""

    @property
    def size(self) -> int:
        """Length of the payload in bytes, also if the group command has it."""
        return self.ref.size if self.ref is not None else len(self.payload)

    @property
    def is_broadcast(self) -> bool:
        """Whether it is the one publish for all members of a group."""
        return self.ref is not None and self.ref.after is not None

    @property
    def was_broadcast(self) -> bool:
        """Whether its device may have had it as a broadcast."""
        return self.ref is not None and self.ref.broadcast and self.ref.after is None

    def expired(self, now_us: int) -> bool:
        """Return whether the command must not be pushed any more at ``now_us``."""
        return self.expires_at_ms > 0 and now_us >= self.expires_at_ms * 1000


def command_problem(command: Command, max_name_bytes: int = MAX_NAME_BYTES) -> Problem | None:
    """Return the first reason why the command cannot be stored or pushed, None if it is valid.

    For a new command, ``max_name_bytes`` is the setting; names of stored commands are within the default.
    """
    if not command.command_id:
        return Problem("command_id", "is empty; it is the command's identity")
    if not command.device:
        return Problem("device", "is empty; it is the key that keeps a device's order")
    # The device is the key of a cursor. Push has other records in that topic, under keys that begin with U+0000.
    names = [("command_id", command.command_id)]
    if not (command.is_broadcast and is_broadcaster(command.device)):
        names.append(("device", command.device))
    if command.resend_of:
        names.append(("resend_of", command.resend_of))
    if command.link:
        names.append(("link", command.link))
    if command.ref is not None:  # its receipt contains them
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
    """Return why an MQTT topic is not valid in a PUBLISH, None if it is."""
    # MQTT-4.7.3-1 (not empty), MQTT-3.3.2-2 (no wildcards in PUBLISH), MQTT-1.5.4-2 (no U+0000)
    if not topic:
        return "is empty"
    if any(c in topic for c in "+#\0"):
        return f"is {topic[:_SHOWN]!r}, and a topic to publish on has no + or # and no U+0000"
    return text_problem(topic)


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "replace"))


def text_problem(text: str) -> str | None:
    """Return why MQTT or its brokers do not accept a text, None if they do."""
    found = _NOT_IN_MQTT.search(text)
    if found is not None:
        return f"is {text[:_SHOWN]!r}, and MQTT brokers refuse U+{ord(found[0]):04X}: remove control characters"
    if _bytes(text) > MAX_TEXT_BYTES:
        return f"has {_bytes(text)} bytes, the limit is {MAX_TEXT_BYTES}"
    return None


def mqtt_name_problem(name: str, max_name_bytes: int) -> str | None:
    """Return why a name is not valid in MQTT, None if it is."""
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
    if command.link:
        properties[C_LINK] = command.link
    if command.ref is not None:
        properties |= {
            C_VERSION: ENTRY_VERSION,
            C_GROUP: command.ref.group,
            C_GROUP_ID: command.ref.command_id,
            C_REF: ":".join(map(str, command.ref.position)),
            C_SIZE: str(command.ref.size),
        }
        if command.ref.broadcast:
            properties[C_BROADCAST] = "1"
        if command.ref.after is not None:
            properties[C_AFTER] = ":".join(map(str, command.ref.after))
    return properties


def encode_command(command: Command) -> dict[str, str]:
    """Return the properties of the command's Pulsar message; its payload is the command's, its key the device.

    Raises ContractError if the command is not valid.
    """
    problem = command_problem(command)
    if problem is not None:
        raise ContractError(f"command {command.command_id!r}: {problem}")
    return _properties(command)


def decode_command(properties: Mapping[str, str], payload: bytes, max_name_bytes: int = MAX_NAME_BYTES) -> Command:
    """Read a command from its Pulsar message. Raises ContractError with the invalid property."""
    command = read_command(properties, payload)
    problem = command_problem(command, max_name_bytes)
    if problem is not None:
        raise ContractError(str(problem))
    return command


def read_command(properties: Mapping[str, str], payload: bytes) -> Command:
    """Read a stored command without validation, because an earlier release may have written it.

    Raises ContractError as ``decode_command`` if its form is not valid.
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
        link=properties.get(C_LINK, ""),
    )


def _ref(properties: Mapping[str, str]) -> GroupRef:
    return GroupRef(
        properties[C_GROUP],
        properties[C_GROUP_ID],
        _position(properties, C_REF),
        _number(properties, C_SIZE, 0),
        properties.get(C_BROADCAST) == "1",
        _position(properties, C_AFTER, -1) if C_AFTER in properties else None,
    )


def _position(properties: Mapping[str, str], name: str, least: int = 0) -> CommandPosition:
    text = properties[name]
    try:
        ledger, entry, index = (int(part) for part in text.split(":", 3))
        if not (least <= ledger < 2**63 and least <= entry < 2**63 and -1 <= index < 2**31):
            raise ValueError("not a position in Pulsar")
    except ValueError as e:
        raise ContractError(f"property {name} of a command is {text[:80]!r}, wanted ledger:entry:index") from e
    return CommandPosition(ledger, entry, index)


def _number(properties: Mapping[str, str], name: str, default: int) -> int:
    text = properties.get(name)
    if text is None:
        return default
    try:
        return checked_whole(int(text))
    except ValueError as e:
        raise ContractError(f"property {name} of a command is {text[:40]!r}, wanted a whole number") from e
