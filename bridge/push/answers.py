"""The answers of devices: on which topics they come, and which command each is for. Pure.

A command's position, written as topic levels, is what a device needs to answer: ``<answer topic>/0/3/7/1/-1`` for
``0.3.7.1.-1``. With MQTT 5 that topic stands in the command as Response Topic, and the position as correlation data.
A device that cannot read properties gets both in the command's own topic (``position_in: topic``):
``<command topic>/0/3/7/1/-1``, and ``…/repeat`` behind it where the command may have come before; it answers on the
answer topic with those five levels. A level ``failed`` behind them, or the user property ``failed`` of ``1``, says
that the device could not do what it was told: it is sent again by the same policy as one that was not answered.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from bridge.commands import CommandPosition
from bridge.contract import ANSWER_FAILED_PROPERTY
from bridge.mqtt.types import Message

__all__ = ["FAILED_LEVEL", "REPEAT_LEVEL", "Answer", "answer_filter", "levels_of", "parse_answer"]

FAILED_LEVEL: Final = "failed"
REPEAT_LEVEL: Final = "repeat"
_GENERATION: Final = 0
_LEVELS: Final = 5


class Answer(NamedTuple):
    """What a device said of the command at ``position``."""

    position: CommandPosition
    payload: bytes
    failed: bool


def levels_of(position: CommandPosition, partition: int) -> str:
    """Return the position as topic levels: generation, partition, ledger, entry, index."""
    return position.encode(partition, _GENERATION).replace(".", "/")


def answer_filter(topic: str, partition: int) -> str:
    """Return the filter by which the owner of a partition gets the answers to its commands."""
    return f"{topic}/{_GENERATION}/{partition}/#"


def parse_answer(message: Message, topic: str, partition: int) -> Answer | None:
    """Read an answer; None when the message is none to a command of this partition."""
    if message.retain or not message.topic.startswith(f"{topic}/"):
        return None
    levels = message.topic[len(topic) + 1 :].split("/")
    failed = levels[_LEVELS:] == [FAILED_LEVEL]
    if len(levels) > _LEVELS and not failed:
        return None
    try:
        generation, of, ledger, entry, index = map(int, levels[:_LEVELS])
    except ValueError:
        return None
    if (generation, of) != (_GENERATION, partition):
        return None
    user = message.properties.user if message.properties is not None else ()
    failed = failed or (ANSWER_FAILED_PROPERTY, "1") in user
    return Answer(CommandPosition(ledger, entry, index), message.payload, failed)
