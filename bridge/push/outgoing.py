"""How a command looks on its way to the device: topic, properties, time to live. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from bridge.contract import (
    COMMAND_ID_PROPERTY,
    COMMAND_POSITION_PROPERTY,
    COMMAND_REPEAT_PROPERTY,
    ORIGIN_PROPERTY,
    ORIGIN_PUSH,
)
from bridge.contract.commands import Command
from bridge.errors import ContractError
from bridge.mqtt.types import PublishProperties
from bridge.push.actions import Push
from bridge.push.answers import REPEAT_LEVEL, answer_topic
from bridge.push.position_tags import PositionTags
from bridge.settings.push import PushSettings

__all__ = ["Outgoing", "check_topic", "outgoing"]

_MAX_TOPIC_BYTES: Final = 65_535 - 128
_MAX_EXPIRY_S: Final = 2**32 - 1


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A PUBLISH to be made."""

    topic: str
    properties: PublishProperties


def check_topic(command: Command, settings: PushSettings) -> None:
    """Raise ContractError when the command's topic leaves no room for the position behind it."""
    size = len(command.mqtt_topic.encode())
    if settings.position_in == "topic" and size > _MAX_TOPIC_BYTES:
        raise ContractError(
            f"mqtt_topic has {size} bytes; with push.position_in: topic at most {_MAX_TOPIC_BYTES} leave room for the position"
        )


def outgoing(push: Push, settings: PushSettings, tags: PositionTags, partition: int, now_s: int) -> Outgoing:
    """Return the PUBLISH for a command; ``now_s`` is the time in seconds since the epoch."""
    command = push.command
    position = tags.tagged(push.position, command.device)
    user = [
        (ORIGIN_PROPERTY, ORIGIN_PUSH),
        (COMMAND_ID_PROPERTY, command.command_id),
        (COMMAND_POSITION_PROPERTY, position),
    ]
    if push.repeat:
        user.append((COMMAND_REPEAT_PROPERTY, "1"))
    topic = command.mqtt_topic
    if settings.position_in == "topic":
        levels = position.replace(".", "/")
        topic = f"{topic}/{levels}/{REPEAT_LEVEL}" if push.repeat else f"{topic}/{levels}"
    left_s = None
    if command.expires_at_ms:
        left_s = min(max(1, command.expires_at_ms // 1000 - now_s), _MAX_EXPIRY_S)
    answers = settings.confirm == "device"
    return Outgoing(
        topic,
        PublishProperties(
            user=tuple(user),
            response_topic=answer_topic(settings.answers.topic, partition) if answers else None,
            correlation_data=position.encode() if answers else None,
            expiry_s=left_s,
        ),
    )
