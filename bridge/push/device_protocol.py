"""Commands, answers, and answers to resume requests as devices see them on MQTT.

With MQTT 5 a command carries the answer topic of its partition, ``<answer topic>/0/3``, as Response Topic, and its position
with its tag, ``0.3.7.1.-1.<tag>``, as correlation data, which the device gives back (MQTT 5, 4.10). The topics are few,
because each one takes memory of a broker such as Artemis. A device that cannot read properties gets the position as levels
of the command's own topic (``position_in: topic``): ``<command topic>/0/3/7/1/-1/<tag>``, with ``/repeat`` behind it if the
command may have come before; it answers on the answer topic with those six levels. A level ``failed`` behind them, or the
user property ``failed`` of ``1``, reports that the device could not execute the command: push sends it again by the same
policy as one without an answer.

A position comes with a tag that proves who received it (``bridge.contract.tagged_positions``).
"""

from __future__ import annotations

import json
import math
from typing import Final, NamedTuple

from bridge.contract import (
    ANSWER_FAILED_PROPERTY,
    COMMAND_ID_PROPERTY,
    COMMAND_POSITION_PROPERTY,
    COMMAND_REPEAT_PROPERTY,
    ORIGIN_PROPERTY,
    ORIGIN_PUSH,
)
from bridge.contract.commands import Command, CommandPosition
from bridge.contract.tagged_positions import GENERATION, PositionTags, read_position, refusal
from bridge.errors import ContractError
from bridge.mqtt.types import Message, PublishProperties
from bridge.push.actions import Push, ResumeAnswer, ResumeRequest
from bridge.settings.push import PushSettings

__all__ = ["DeviceAnswer", "answer_filter", "answer_payload", "check_topic", "outgoing", "parse_answer"]

FAILED_LEVEL: Final = "failed"
REPEAT_LEVEL: Final = "repeat"
_MAX_TOPIC_BYTES: Final = 65_535 - 128
_MAX_EXPIRY_S: Final = 2**32 - 1


class DeviceAnswer(NamedTuple):
    """An answer of a device to the command at ``position``; ``tag`` proves that the command reached the device."""

    position: CommandPosition
    tag: str
    payload: bytes
    failed: bool


def answer_topic(topic: str, partition: int) -> str:
    """Return the Response Topic of a partition's commands."""
    return f"{topic}/{GENERATION}/{partition}"


def answer_filter(topic: str, partition: int) -> str:
    """Return the filter for the answers to a partition's commands, on its answer topic and below (MQTT-4.7.1-2)."""
    return f"{answer_topic(topic, partition)}/#"


def parse_answer(message: Message, topic: str, partition: int) -> DeviceAnswer | None:
    """Read an answer, whose tag is to be verified; None for a message that answers no command of this partition."""
    if message.retain or not message.topic.startswith(f"{topic}/"):
        return None
    properties = message.properties
    failed = properties is not None and (ANSWER_FAILED_PROPERTY, "1") in properties.user
    text = message.topic[len(topic) + 1 :]
    if text.endswith(f"/{FAILED_LEVEL}"):
        failed, text = True, text.removesuffix(f"/{FAILED_LEVEL}")
    if text == f"{GENERATION}/{partition}" and properties is not None:
        text = (properties.correlation_data or b"").decode("ascii", "replace")
    try:
        found = read_position(text)
    except ContractError:
        return None
    if (found.generation, found.partition) != (GENERATION, partition):
        return None
    return DeviceAnswer(found.position, found.tag, message.payload, failed)


def check_topic(command: Command, settings: PushSettings) -> None:
    """Raise ContractError when the command's topic leaves no room for the position behind it."""
    size = len(command.mqtt_topic.encode())
    if settings.position_in == "topic" and size > _MAX_TOPIC_BYTES:
        raise ContractError(
            f"mqtt_topic has {size} bytes; with push.position_in: topic at most {_MAX_TOPIC_BYTES} leave room for the position"
        )


def outgoing(
    push: Push, settings: PushSettings, tags: PositionTags, partition: int, now_s: int, *, several: bool = False
) -> tuple[str, PublishProperties]:
    """Return topic and properties of the PUBLISH for a command; ``now_s`` is the time in seconds since the epoch.

    With ``several`` brokers a command expires when its answer is due: the session that a device leaves behind at a broker
    must not give it old commands at its return, because it had them at another one.
    """
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
    if several and answers and not command.retain:
        timeout_s = math.ceil(settings.answers.timeout)
        left_s = timeout_s if left_s is None else min(left_s, timeout_s)
    return topic, PublishProperties(
        user=tuple(user),
        response_topic=answer_topic(settings.answers.topic, partition) if answers else None,
        correlation_data=position.encode() if answers else None,
        expiry_s=left_s,
    )


def answer_payload(answer: ResumeAnswer, request: ResumeRequest, tags: PositionTags) -> bytes:
    """Return the JSON object that the device of a resume request gets."""
    if answer.error:
        return refusal(answer.error, request.text)
    body: dict[str, object] = {"trimmed": True} if answer.trimmed else {"resumed": True}
    if answer.trimmed:
        body["first"] = None if answer.first is None else tags.tagged(answer.first, request.device)
    return json.dumps(body | {"from": request.text, "commands": answer.commands}).encode()
