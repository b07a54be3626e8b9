"""Commands as a device has them: what it gets, what its confirmation publishes, and which commands wait for one.

It is the counterpart of ``bridge.push.device_protocol``, for devices that cannot subscribe themselves. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from bridge.contract import (
    ANSWER_FAILED_LEVEL,
    ANSWER_FAILED_PROPERTY,
    COMMAND_ID_PROPERTY,
    COMMAND_POSITION_PROPERTY,
    COMMAND_REPEAT_LEVEL,
    COMMAND_REPEAT_PROPERTY,
)
from bridge.contract.tagged_positions import read_position
from bridge.errors import ContractError
from bridge.mqtt.types import Message, PublishProperties
from bridge.settings.push import PushSettings

__all__ = ["CommandOutcome", "DeviceCommand", "HeldCommands", "answer_to", "read_device_command"]

_POSITION_LEVELS: Final = 6
_EACH_BYTES: Final = 1024


class DeviceCommand(NamedTuple):
    """A command that a device gets."""

    position: str
    """What a confirmation names: opaque to the device, with a tag that proves that the device got the command."""
    command_id: str
    """Empty if the link is older than MQTT 5."""
    repeat: bool
    """Whether the device may have had it before."""
    topic: str
    payload: bytes
    expiry_s: int | None = None
    """Seconds until it expires, None if it does not."""


class CommandOutcome(NamedTuple):
    """The result of a request of a device. Without any field: no command came in time, or the position is unknown."""

    command: DeviceCommand | None = None
    confirmed: bool = False
    superseded: bool = False
    """A newer request of the device took its place, here or at another process."""
    unavailable: str = ""
    """Why the device has to retry; empty if it does not."""


def read_device_command(message: Message, push: PushSettings) -> DeviceCommand | None:
    """Return the command that a message brings to a device; None if push did not send it."""
    properties = message.properties or PublishProperties()
    user = dict(properties.user)
    position, topic = user.get(COMMAND_POSITION_PROPERTY, ""), message.topic
    repeat = message.retain or user.get(COMMAND_REPEAT_PROPERTY) == "1"
    if push.position_in == "topic":
        levels = topic.split("/")
        if levels[-1] == COMMAND_REPEAT_LEVEL:
            repeat = bool(levels.pop())
        topic, position = "/".join(levels[:-_POSITION_LEVELS]), ".".join(levels[-_POSITION_LEVELS:])
    try:
        read_position(position)
    except ContractError:
        return None
    command_id = user.get(COMMAND_ID_PROPERTY, "")
    return DeviceCommand(position, command_id, repeat, topic, message.payload, properties.expiry_s)


def answer_to(position: str, push: PushSettings, *, failed: bool, mqtt5: bool) -> tuple[str, PublishProperties | None]:
    """Return topic and properties of a device's answer to a command; it names no topic that the command brought."""
    if mqtt5:
        found = read_position(position)
        user = ((ANSWER_FAILED_PROPERTY, "1"),) if failed else ()
        properties = PublishProperties(user=user, correlation_data=position.encode())
        return f"{push.answers.topic}/{found.generation}/{found.partition}", properties
    topic = f"{push.answers.topic}/{position.replace('.', '/')}"
    return f"{topic}/{ANSWER_FAILED_LEVEL}" if failed else topic, None


@dataclass(slots=True, eq=False)
class _Held:
    command: DeviceCommand
    mids: list[int]
    """Packet identifiers of it and of its repeats, which are acknowledged together."""


@dataclass(eq=False)
class HeldCommands:
    """The commands of one device that the MQTT broker has sent and the device has not confirmed, in order."""

    size: int = 0
    """Approximate bytes in memory."""
    answering: set[str] = field(default_factory=set)
    """Positions whose answers are being published: their commands are not given."""
    _held: dict[str, _Held] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, position: str) -> bool:
        return position in self._held

    def add(self, command: DeviceCommand, mid: int) -> None:
        """A command arrived, perhaps again while the device has it."""
        known = self._held.setdefault(command.position, _Held(command, []))
        if not known.mids:
            self.size += len(command.payload) + _EACH_BYTES
        known.mids.append(mid)

    def give(self) -> DeviceCommand | None:
        """Return the command that the device gets next: the first one, until the device confirms it. None without one, and
        while its answer is being published.
        """
        first = next(iter(self._held.values()), None)
        if first is None or first.command.position in self.answering:
            return None
        command, first.command = first.command, first.command._replace(repeat=True)
        return command

    def remove(self, position: str) -> list[int]:
        """A position is confirmed. Returns the packet identifiers to acknowledge."""
        held = self._held.pop(position, None)
        if held is None:
            return []
        self.size -= len(held.command.payload) + _EACH_BYTES
        return held.mids
