"""The answers of devices: on which topics they come, and which command each is for. Pure.

With MQTT 5 a command carries the answer topic of its partition, ``<answer topic>/0/3``, as Response Topic and its
position with its tag, ``0.3.7.1.-1.<tag>``, as correlation data, which the device gives back (MQTT 5, 4.10). The topics
are few: each one takes memory of a broker such as Artemis. A device that cannot read properties gets the
position as levels of the command's own topic (``position_in: topic``): ``<command topic>/0/3/7/1/-1/<tag>``, and
``…/repeat`` behind it where the command may have come before; it answers on the answer topic with those six levels. A
level ``failed`` behind them, or the user property ``failed`` of ``1``, says that the device could not do what it was
told: it is sent again by the same policy as one that was not answered.

All devices of a partition share its answer topic, so the topic proves nothing. The tag does (``position_tags``).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from bridge.contract import ANSWER_FAILED_PROPERTY
from bridge.contract.commands import CommandPosition
from bridge.errors import ContractError
from bridge.mqtt.types import Message
from bridge.push.position_tags import GENERATION, read_position

__all__ = ["FAILED_LEVEL", "REPEAT_LEVEL", "Answer", "answer_filter", "answer_topic", "parse_answer"]

FAILED_LEVEL: Final = "failed"
REPEAT_LEVEL: Final = "repeat"


class Answer(NamedTuple):
    """What a device said of the command at ``position``; ``tag`` is to prove that the command reached it."""

    position: CommandPosition
    tag: str
    payload: bytes
    failed: bool


def answer_topic(topic: str, partition: int) -> str:
    """Return the Response Topic of a partition's commands."""
    return f"{topic}/{GENERATION}/{partition}"


def answer_filter(topic: str, partition: int) -> str:
    """Return the filter by which the owner of a partition gets the answers to its commands, on its answer topic and
    below it (MQTT-4.7.1-2).
    """
    return f"{answer_topic(topic, partition)}/#"


def parse_answer(message: Message, topic: str, partition: int) -> Answer | None:
    """Read an answer, whose tag is to be verified; None for a message that answers no command of this partition."""
    if message.retain or not message.topic.startswith(f"{topic}/"):
        return None
    properties = message.properties
    failed = properties is not None and (ANSWER_FAILED_PROPERTY, "1") in properties.user
    place = message.topic[len(topic) + 1 :]
    if place.endswith(f"/{FAILED_LEVEL}"):
        failed, place = True, place.removesuffix(f"/{FAILED_LEVEL}")
    if place == f"{GENERATION}/{partition}" and properties is not None:
        place = (properties.correlation_data or b"").decode("ascii", "replace")
    try:
        found = read_position(place)
    except ContractError:
        return None
    if (found.generation, found.partition) != (GENERATION, partition):
        return None
    return Answer(found.position, found.tag, message.payload, failed)
