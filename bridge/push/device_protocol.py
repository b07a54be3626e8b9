"""Commands, answers, resume requests and positions as devices see them on MQTT.

With MQTT 5 a command carries the answer topic of its partition, ``<answer topic>/0/3``, as Response Topic, and its position
with its tag, ``0.3.7.1.-1.<tag>``, as correlation data, which the device gives back (MQTT 5, 4.10). The topics are few,
because each one takes memory of a broker such as Artemis. A device that cannot read properties gets the position as levels
of the command's own topic (``position_in: topic``): ``<command topic>/0/3/7/1/-1/<tag>``, with ``/repeat`` behind it if the
command may have come before; it answers on the answer topic with those six levels. A level ``failed`` behind them, or the
user property ``failed`` of ``1``, reports that the device could not execute the command: push sends it again by the same
policy as one without an answer.

A position alone can be guessed, and all devices of a partition share its answer topic. The tag is a keyed hash of position and
device (H36). The key is the partition's secret, which is stored in its cursors topic, so a later owner accepts the tags of a
former one. A client that did not receive the command, or sends for another device, cannot make it.

A resume request is the position of the last command that the device has had, with its tag:
``{"from": "0.3.7.1.-1.<tag>"}``, or the bare text, or the six topic levels. The tag proves that the request comes from this
device. ``earliest``, for all that Pulsar still has, proves nothing: push refuses it without ``push.resume.allow_earliest``.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import secrets
from typing import Final, NamedTuple

from bridge.contract import (
    ANSWER_FAILED_PROPERTY,
    COMMAND_ID_PROPERTY,
    COMMAND_POSITION_PROPERTY,
    COMMAND_REPEAT_PROPERTY,
    ORIGIN_PROPERTY,
    ORIGIN_PUSH,
)
from bridge.contract.commands import BEFORE_ALL, Command, CommandPosition
from bridge.errors import ContractError
from bridge.mqtt.types import Message, PublishProperties
from bridge.push.actions import Push, ResumeAnswer, ResumeRequest
from bridge.settings.push import PushSettings

__all__ = [
    "MAX_REQUEST_BYTES",
    "SECRET_BYTES",
    "DeviceAnswer",
    "PositionTags",
    "answer_filter",
    "answer_payload",
    "check_topic",
    "new_secret",
    "outgoing",
    "parse_answer",
    "read_from",
    "read_position",
    "refusal",
]

GENERATION: Final = 0
SECRET_BYTES: Final = 32
_TAG_BYTES: Final = 12
"""96 bits: 16 characters of base64url, which any MQTT topic may contain."""
_FORM: Final = re.compile(
    r"(\d{1,9})([./])(\d{1,9})\2(\d{1,18})\2(\d{1,18})\2(-1|\d{1,9})\2([A-Za-z0-9_-]{16})", re.ASCII
)
_LONGEST: Final = 96
"""No position has more characters."""


class TaggedPosition(NamedTuple):
    """A position as a device sent it back."""

    generation: int
    partition: int
    position: CommandPosition
    tag: str


def new_secret() -> bytes:
    """Return a random secret for a partition without one."""
    return secrets.token_bytes(SECRET_BYTES)


def read_position(text: str) -> TaggedPosition:
    """Read a position with its tag, separated by dots or as topic levels. Raises ContractError for any other text."""
    found = _FORM.fullmatch(text) if len(text) <= _LONGEST else None
    if found is None:
        raise ContractError("this is not a position of a command")
    generation, _, partition, ledger, entry, index, tag = found.groups()
    position = CommandPosition(int(ledger), int(entry), int(index))
    return TaggedPosition(int(generation), int(partition), position, tag)


class PositionTags:
    """Makes and verifies the tags of one partition."""

    def __init__(self, secret: bytes, partition: int) -> None:
        self._key = hmac.new(secret, digestmod=hashlib.sha256)
        self._partition = partition

    def tagged(self, position: CommandPosition, device: str) -> str:
        """Return the opaque position that ``device`` gets with the command at ``position``."""
        return f"{position.encode(self._partition, GENERATION)}.{self._tag(position, device)}"

    def proves(self, tag: str, position: CommandPosition, device: str) -> bool:
        """Return whether the sender of ``tag`` received the command at ``position`` as ``device``."""
        return hmac.compare_digest(tag.encode(), self._tag(position, device).encode())

    def _tag(self, position: CommandPosition, device: str) -> str:
        key = self._key.copy()
        key.update(f"{position.encode(self._partition, GENERATION)}\0{device}".encode(errors="surrogatepass"))
        return base64.urlsafe_b64encode(key.digest()[:_TAG_BYTES]).decode("ascii")


# --- commands and answers ---

FAILED_LEVEL: Final = "failed"
REPEAT_LEVEL: Final = "repeat"
MAX_REQUEST_BYTES: Final = 1024
_EARLIEST: Final = "earliest"
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


class Outgoing(NamedTuple):
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


# --- resume requests ---


def answer_payload(answer: ResumeAnswer, request: ResumeRequest, tags: PositionTags) -> bytes:
    """Return the JSON object that the device of a resume request gets."""
    if answer.error:
        return refusal(answer.error, request.text)
    body: dict[str, object] = {"trimmed": True} if answer.trimmed else {"resumed": True}
    if answer.trimmed:
        body["first"] = None if answer.first is None else tags.tagged(answer.first, request.device)
    return json.dumps(body | {"from": request.text, "commands": answer.commands}).encode()


def refusal(why: str, text: str) -> bytes:
    """Return what the device gets whose request cannot be served."""
    return json.dumps({"error": why, "from": text}).encode()


def read_from(
    payload: bytes, device: str, partition: int, tags: PositionTags, *, earliest: bool
) -> tuple[str, CommandPosition]:
    """Return text and position of a request; ``earliest``: it may ask for all. Raises ContractError with the reason."""
    if len(payload) > MAX_REQUEST_BYTES:
        raise ContractError(f"a request has at most {MAX_REQUEST_BYTES} bytes")
    text = _text_of(payload)
    if text == _EARLIEST:
        if not earliest:
            raise ContractError("earliest is not allowed here: see push.resume.allow_earliest")
        return text, BEFORE_ALL
    found = read_position(text)
    if found.generation != GENERATION:
        raise ContractError(
            f"this position is of generation {found.generation} of the commands, they are at {GENERATION}"
        )
    if found.partition != partition:
        raise ContractError(
            f"this position is of partition {found.partition}, the device's commands are in partition {partition}"
        )
    if not tags.proves(found.tag, found.position, device):
        raise ContractError("this position did not come with a command to this device")
    return text, found.position


def _text_of(payload: bytes) -> str:
    try:
        text = payload.decode().strip()
    except UnicodeDecodeError:
        raise ContractError("a request is text") from None
    if not text.startswith(("{", '"')):
        return text.strip("/")
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        raise ContractError('a request is {"from": "<position>"}') from None
    position = body.get("from") if isinstance(body, dict) else body
    if not isinstance(position, str):
        raise ContractError('a request is {"from": "<position>"}')
    return position.strip().strip("/")
