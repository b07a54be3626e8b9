"""The answers of devices: on which topics they come, and which command each is for. Pure.

With MQTT 5 a command carries the answer topic of its partition, ``<answer topic>/0/3``, as Response Topic and its
position, ``0.3.7.1.-1``, as correlation data, which the device gives back (MQTT 5, 4.10). The topics are few: a broker
such as Artemis keeps each one that was ever used. A device that cannot read properties gets the position as levels of
the command's own topic (``position_in: topic``): ``<command topic>/0/3/7/1/-1``, and ``…/repeat`` behind it where the
command may have come before; it answers on the answer topic with those five levels. A level ``failed`` behind them, or
the user property ``failed`` of ``1``, says that the device could not do what it was told: it is sent again by the same
policy as one that was not answered.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from bridge.commands import CommandPosition
from bridge.contract import ANSWER_FAILED_PROPERTY
from bridge.errors import ContractError
from bridge.mqtt.types import Message

__all__ = [
    "FAILED_LEVEL",
    "REPEAT_LEVEL",
    "Answer",
    "answer_filter",
    "answer_topic",
    "levels_of",
    "parse_answer",
]

FAILED_LEVEL: Final = "failed"
REPEAT_LEVEL: Final = "repeat"
_GENERATION: Final = 0
_LEVELS: Final = 5
_OF_PARTITION: Final = 2
"""Levels of a partition's answer topic; the position is then in the correlation data."""


class Answer(NamedTuple):
    """What a device said of the command at ``position``."""

    position: CommandPosition
    payload: bytes
    failed: bool


def levels_of(position: CommandPosition, partition: int) -> str:
    """Return the position as topic levels: generation, partition, ledger, entry, index."""
    return position.encode(partition, _GENERATION).replace(".", "/")


def answer_topic(topic: str, partition: int) -> str:
    """Return the Response Topic of a partition's commands."""
    return f"{topic}/{_GENERATION}/{partition}"


def answer_filter(topic: str, partition: int) -> str:
    """Return the filter by which the owner of a partition gets the answers to its commands, on its answer topic and
    below it (MQTT-4.7.1-2).
    """
    return f"{answer_topic(topic, partition)}/#"


def parse_answer(message: Message, topic: str, partition: int) -> Answer | None:
    """Read an answer; None when the message is none to a command of this partition."""
    if message.retain or not message.topic.startswith(f"{topic}/"):
        return None
    levels = message.topic[len(topic) + 1 :].split("/")
    told = message.properties
    failed = told is not None and (ANSWER_FAILED_PROPERTY, "1") in told.user
    if levels[-1] == FAILED_LEVEL:
        failed = True
        del levels[-1]
    text = ".".join(levels)
    if len(levels) == _OF_PARTITION and told is not None and told.correlation_data is not None:
        text = told.correlation_data.decode("ascii", "replace")
        if not text.startswith(".".join(levels) + "."):
            return None
    elif len(levels) != _LEVELS:
        return None
    try:
        generation, of, position = CommandPosition.decode(text)
    except ContractError:
        return None
    if (generation, of) != (_GENERATION, partition):
        return None
    return Answer(position, message.payload, failed)
