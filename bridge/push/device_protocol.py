"""Commands, answers, and answers to resume requests as devices see them on MQTT.

With MQTT 5 a command carries the answer topic of its partition, ``<answer topic>/0/3``, as Response Topic, and its position
with its tag, ``0.3.7.1.-1.<tag>``, as correlation data, which the device gives back (MQTT 5, 4.10). The topics are few,
because each one takes memory of a broker such as Artemis. A device that cannot read properties gets the position as levels
of the command's own topic (``position_in: topic``): ``<command topic>/0/3/7/1/-1/<tag>``, with ``/repeat`` behind it if the
command may have come before; it answers on the answer topic with those six levels. A level ``failed`` behind them, or the
user property ``failed`` of ``1``, reports that the device could not execute the command: push sends it again by the same
policy as one without an answer.

A position comes with a tag that proves who received it (``bridge.contract.tagged_positions``).

A broadcast, on the topic of a group, has the position of the group command as correlation data, ``0.0.7.1.-1``, without a
tag, because all members get the same. It begins with the generation of the commands as well: a cluster to which the commands
moved has other numbers. A device answers it on a topic of its own, ``<answer topic>/group/<device>``, which
the access list of the MQTT broker protects, with the position as correlation data or as five levels behind. The broadcast
also names the group's previous command (``after``), and a device that has not had that one ignores the broadcast. Commands
to a device that are of a group therefore name their group command, too: in user properties, or, of a broadcast with
``position_in: topic``, in the levels ``/group/0/0/7/1/-1`` behind all others.
"""

from __future__ import annotations

import json
import math
import re
from typing import Final, NamedTuple

from bridge.contract import (
    AFTER_PROPERTY,
    ANSWER_FAILED_LEVEL,
    ANSWER_FAILED_PROPERTY,
    COMMAND_ID_PROPERTY,
    COMMAND_POSITION_PROPERTY,
    COMMAND_REPEAT_LEVEL,
    COMMAND_REPEAT_PROPERTY,
    GROUP_POSITION_PROPERTY,
    GROUP_PROPERTY,
    ORIGIN_PROPERTY,
    ORIGIN_PUSH,
)
from bridge.contract.commands import BEFORE_ALL, Command, CommandPosition
from bridge.contract.tagged_positions import PositionTags, read_position, refusal
from bridge.errors import ContractError
from bridge.mqtt.types import Message, PublishProperties
from bridge.push.actions import Push, ResumeAnswer, ResumeRequest
from bridge.settings.push import PushSettings

__all__ = ["DeviceAnswer", "answer_filters", "answer_payload", "check_topic", "outgoing", "parse_answer"]

GROUP_LEVEL: Final = "group"
_GROUP_ANSWER: Final = re.compile(r"(.+)/(\d+/\d+/\d+/\d+/(?:-1|\d+))", re.DOTALL)
_NONE: Final = "none"
_MAX_TOPIC_BYTES: Final = 65_535 - 192
_MAX_EXPIRY_S: Final = 2**32 - 1


class DeviceAnswer(NamedTuple):
    """An answer of a device to the command at ``position``; ``tag`` proves that the command reached the device.

    With ``device`` it is that device's answer to the broadcast of the group command at ``position``.
    """

    position: CommandPosition
    tag: str
    payload: bytes
    failed: bool
    device: str = ""


def answer_topic(topic: str, partition: int, generation: int = 0) -> str:
    """Return the Response Topic of a partition's commands."""
    return f"{topic}/{generation}/{partition}"


def answer_filters(topic: str, partition: int, generation: int = 0) -> list[str]:
    """Return the filters for the answers to a partition's commands (and below, MQTT-4.7.1-2), and to all broadcasts."""
    return [f"{answer_topic(topic, partition, generation)}/#", f"{topic}/{GROUP_LEVEL}/#"]


def parse_answer(message: Message, topic: str, partition: int, generation: int = 0) -> DeviceAnswer | None:
    """Read an answer, whose tag is to be verified; None for a message that answers no command of this partition."""
    if message.retain or not message.topic.startswith(f"{topic}/"):
        return None
    properties = message.properties
    failed = properties is not None and (ANSWER_FAILED_PROPERTY, "1") in properties.user
    text = message.topic[len(topic) + 1 :]
    if text.endswith(f"/{ANSWER_FAILED_LEVEL}"):
        failed, text = True, text.removesuffix(f"/{ANSWER_FAILED_LEVEL}")
    if text.startswith(f"{GROUP_LEVEL}/"):
        return _group_answer(message, text.removeprefix(f"{GROUP_LEVEL}/"), generation, failed=failed)
    if text == f"{generation}/{partition}" and properties is not None:
        text = (properties.correlation_data or b"").decode("ascii", "replace")
    try:
        found = read_position(text)
    except ContractError:
        return None
    if (found.generation, found.partition) != (generation, partition):
        return None
    return DeviceAnswer(found.position, found.tag, message.payload, failed)


def _group_answer(message: Message, text: str, generation: int, *, failed: bool) -> DeviceAnswer | None:
    """Read the answer to a broadcast of this generation; ``text`` is the device, and perhaps the position in levels."""
    data = None if message.properties is None else message.properties.correlation_data
    if data is not None and text:
        device, position = text, data.decode("ascii", "replace")
    elif (found := _GROUP_ANSWER.fullmatch(text)) is not None:
        device, position = found[1], found[2].replace("/", ".")
    else:
        return None
    try:
        of, _, found_at = CommandPosition.decode(position)
    except ContractError:
        return None
    return DeviceAnswer(found_at, "", message.payload, failed, device) if of == generation else None


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
    command, ref = push.command, push.command.ref
    group = "" if ref is None else ref.position.encode(0, tags.generation)
    if ref is not None and ref.after is not None:  # a broadcast: one position for all
        position, command_id = group, ref.command_id
        after = _NONE if ref.after == BEFORE_ALL else ref.after.encode(0, tags.generation)
        positions, levels = [(AFTER_PROPERTY, after)], [group, after]
        answer_to = f"{settings.answers.topic}/{GROUP_LEVEL}"
    else:
        position, command_id = tags.tagged(push.position, command.device), command.command_id
        positions, levels = [(COMMAND_POSITION_PROPERTY, position)], [position]
        answer_to = answer_topic(settings.answers.topic, partition, tags.generation)
    user = [(ORIGIN_PROPERTY, ORIGIN_PUSH), (COMMAND_ID_PROPERTY, command_id), *positions]
    if ref is not None:
        user += [(GROUP_PROPERTY, ref.group), (GROUP_POSITION_PROPERTY, group)]
    if push.repeat:
        user.append((COMMAND_REPEAT_PROPERTY, "1"))
        levels.append(COMMAND_REPEAT_LEVEL)
    if command.was_broadcast:
        levels += [GROUP_LEVEL, group]
    topic = command.mqtt_topic
    if settings.position_in == "topic":
        topic = "/".join([topic, *(one.replace(".", "/") for one in levels)])
    left_s = None
    if command.expires_at_ms:
        left_s = min(max(1, command.expires_at_ms // 1000 - now_s), _MAX_EXPIRY_S)
    answers = settings.confirm == "device"
    if several and answers and not command.retain:
        timeout_s = math.ceil(settings.answers.timeout)
        left_s = timeout_s if left_s is None else min(left_s, timeout_s)
    return topic, PublishProperties(
        user=tuple(user),
        response_topic=answer_to if answers else None,
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
