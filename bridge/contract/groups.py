"""A group command and a membership in Pulsar: their validation, encoding and decoding.

The sinks write, push reads, and both use the same validation. Pulsar stores a group command's payload once. Each member
gets an *index entry* among its own commands, with the position of that payload.

A membership is one message of the compacted topic ``group-members``. Its key is the JSON array ``[group, device]``, its
payload ``{"v":1}``. A tombstone removes the device from the group.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from bridge.contract import (
    C_BROADCAST,
    C_DEVICE,
    C_GROUP,
    C_TOPIC,
    C_VERSION,
    COMMAND_VERSION,
    COMMANDS_TOPIC,
    GROUP_COMMAND_VERSION,
    GROUP_COMMANDS_TOPIC,
)
from bridge.contract.commands import (
    Command,
    CommandPosition,
    GroupRef,
    Problem,
    broadcaster,
    command_problem,
    encode_command,
    mqtt_name_problem,
    publish_topic_problem,
    read_command,
)
from bridge.contract.decoding import checked_text, decodes, json_of_record, json_record
from bridge.contract.names import MAX_NAME_BYTES, name_problem
from bridge.errors import ContractError

__all__ = [
    "DEVICE_MARK",
    "GROUP_MARK",
    "MEMBER",
    "CommandMessage",
    "GroupCommand",
    "broadcast_of",
    "command_message",
    "decode_group_command",
    "encode_group_command",
    "entry_id",
    "entry_of",
    "group_problem",
    "member_key",
    "member_of",
    "template_problem",
]

GROUP_MEMBER_VERSION: Final = 1

DEVICE_MARK: Final = "{device}"
GROUP_MARK: Final = "{group}"
MEMBER: Final = json.dumps({"v": GROUP_MEMBER_VERSION}, separators=(",", ":")).encode()
"""Payload of a membership."""

_ANY: Final = "device"
_COMMON: Final = ("command_id", "payload", "qos", "retain", "expires_at_ms", "emitted_at_us", "cause")
"""Fields that a group command and a command have alike."""


@dataclass(frozen=True, slots=True)
class GroupCommand:
    """One command to all devices of a group. ``mqtt_topic`` is a template with ``{device}``, empty for the setting of
    push.

    ``expires_at_ms`` and ``emitted_at_us`` are since the epoch, 0 means none.
    """

    command_id: str
    group: str
    mqtt_topic: str
    payload: bytes
    qos: int = 1
    retain: bool = False
    expires_at_ms: int = 0
    emitted_at_us: int = 0
    cause: str = ""
    broadcast: bool = False
    """Whether the members get it by one publish; needs ``push.confirm: device``."""


def template_problem(template: str, mark: str = DEVICE_MARK) -> str | None:
    """Return why a template is not a valid MQTT topic for each device, or for each name that replaces ``mark``, None if it
    is.
    """
    if mark not in template:
        return f"is {template!r}, and the topic of a group command must contain {mark}"
    rest = template.replace(mark, "d")
    if "{" in rest or "}" in rest:
        return f"is {template!r}, and braces are allowed in {mark} only"
    return publish_topic_problem(rest)


def group_problem(command: GroupCommand, max_name_bytes: int = MAX_NAME_BYTES) -> Problem | None:
    """Return the first reason why the command cannot be stored or expanded, None if it is valid."""
    if not command.group:
        return Problem("group", "is empty; it names the group that gets the command")
    name = mqtt_name_problem(command.group, max_name_bytes)
    if name is not None:
        return Problem("group", name)
    if command.mqtt_topic:
        problem = template_problem(command.mqtt_topic)
        if problem is not None:
            return Problem("mqtt_topic", problem)
    return command_problem(_as_command(command), max_name_bytes)


def _as_command(command: GroupCommand) -> Command:
    """Return the command as one to a device with the group's name, for common validation."""
    values = {name: getattr(command, name) for name in _COMMON}
    return Command(device=command.group, mqtt_topic=command.mqtt_topic or _ANY, **values)


def encode_group_command(command: GroupCommand) -> dict[str, str]:
    """Return the properties of the command's Pulsar message; its payload is the command's, its key the group.

    Raises ContractError if the command is not valid.
    """
    problem = group_problem(command)
    if problem is not None:
        raise ContractError(f"command {command.command_id!r}: {problem}")
    properties = encode_command(_as_command(command)) | {C_VERSION: GROUP_COMMAND_VERSION, C_GROUP: command.group}
    del properties[C_DEVICE]
    if not command.mqtt_topic:
        del properties[C_TOPIC]
    if command.broadcast:
        properties[C_BROADCAST] = "1"
    return properties


def decode_group_command(
    properties: Mapping[str, str], payload: bytes, max_name_bytes: int = MAX_NAME_BYTES
) -> GroupCommand:
    """Read a group command from its Pulsar message. Raises ContractError with the invalid property."""
    version = properties.get(C_VERSION)
    if version != GROUP_COMMAND_VERSION:
        raise ContractError(
            f"property {C_VERSION} of a group command is {version!r}, this reads {GROUP_COMMAND_VERSION!r}"
        )
    if C_GROUP not in properties:
        raise ContractError(f"a group command lacks the property {C_GROUP}")
    plain = {C_TOPIC: _ANY, **properties, C_VERSION: COMMAND_VERSION, C_DEVICE: properties[C_GROUP] or _ANY}
    found = read_command(plain, payload)
    values = {name: getattr(found, name) for name in _COMMON}
    values["broadcast"] = properties.get(C_BROADCAST) == "1"
    command = GroupCommand(group=properties[C_GROUP], mqtt_topic=properties.get(C_TOPIC, ""), **values)
    problem = group_problem(command, max_name_bytes)
    if problem is not None:
        raise ContractError(str(problem))
    return command


class CommandMessage(NamedTuple):
    """The Pulsar message of a command: the local name of its topic, its key, and its event time in ms (0: none)."""

    topic: str
    key: str
    properties: dict[str, str]
    event_ms: int


def command_message(command: Command | GroupCommand) -> CommandMessage:
    """Return the message of a command, whose payload is the command's. Raises ContractError if it is not valid."""
    event_ms = command.emitted_at_us // 1000
    if isinstance(command, GroupCommand):
        return CommandMessage(GROUP_COMMANDS_TOPIC, command.group, encode_group_command(command), event_ms)
    return CommandMessage(COMMANDS_TOPIC, command.device, encode_command(command), event_ms)


def entry_id(command_id: str, device: str) -> str:
    """Return the command id of a device's index entry: the same at each write of any owner."""
    identity = json.dumps([command_id, device], ensure_ascii=False).encode("utf-8", "surrogatepass")
    return f"g-{hashlib.sha256(identity).hexdigest()[:32]}"


def entry_of(command: GroupCommand, device: str, position: CommandPosition, size: int, template: str) -> Command:
    """Return the index entry of one member. ``position`` and ``size`` are those of the stored payload.

    ``template`` applies if the command names no topic. The entry may be invalid: see ``command_problem``.
    """
    made = _as_command(replace(command, payload=b""))
    return replace(
        made,
        command_id=entry_id(command.command_id, device),
        device=device,
        mqtt_topic=(command.mqtt_topic or template).replace(DEVICE_MARK, device),
        ref=GroupRef(command.group, command.command_id, position, size, command.broadcast),
    )


def broadcast_of(
    command: GroupCommand, link: str, position: CommandPosition, after: CommandPosition, size: int, template: str
) -> Command:
    """Return the command to all members at the MQTT broker ``link``, in place of a device's. It may be invalid.

    ``after`` is the position of the group's previous command, BEFORE_ALL without one; ``template`` gives the topic. The
    broker does not retain it: who subscribes later gets the index entry.
    """
    name = broadcaster(command.group, link)
    return replace(
        _as_command(replace(command, payload=b"", retain=False)),
        command_id=entry_id(command.command_id, name),
        device=name,
        mqtt_topic=template.replace(GROUP_MARK, command.group),
        link=link,
        ref=GroupRef(command.group, command.command_id, position, size, broadcast=True, after=after),
    )


def member_key(group: str, device: str) -> str:
    """Return the key of a membership."""
    return json.dumps([group, device], separators=(",", ":"), ensure_ascii=False)


@decodes("a membership")
def member_of(key: str, payload: bytes) -> tuple[str, str, bool]:
    """Return group, device and whether the device is a member. Raises ContractError for an invalid membership."""
    group, device = map(checked_text, json_of_record(key))
    if payload:
        json_record(payload, "membership", [GROUP_MEMBER_VERSION])
    for what, name in (("group", group), ("device", device)):
        problem = name_problem(name, MAX_NAME_BYTES)
        if problem is not None:
            raise ContractError(f"the {what} {problem}")
    return group, device, bool(payload)
