"""A message of Pulsar as push keeps it: what the client keeps of one is 3 KB and more, whatever its size."""

from __future__ import annotations

from typing import Final, NamedTuple

import structlog

from bridge.commands import CommandPosition
from bridge.pulsar_client import Message, MessageId

__all__ = ["NO_TEXT", "Taken", "foreign", "key_of", "position_of", "properties_of", "record_key", "taken"]

log = structlog.get_logger("push")

NO_TEXT: Final = "its key or one of its properties is no UTF-8"


class Taken(NamedTuple):
    """A message that was read. ``message_id`` acknowledges it."""

    position: CommandPosition
    message_id: MessageId
    key: str
    payload: bytes
    properties: dict[str, str]
    published_ms: int
    problem: str = ""
    """Why key and properties are not all there, for what no writer of ours wrote."""


def position_of(message_id: MessageId) -> CommandPosition:
    """Return the position that a message id stands for."""
    return CommandPosition(message_id.ledger_id(), message_id.entry_id(), message_id.batch_index())


def key_of(message: Message) -> str | None:
    """Return the key of a message, None where it is no UTF-8: then Pulsar's client cannot give it."""
    try:
        return str(message.partition_key())
    except UnicodeDecodeError:
        return None


def record_key(message: Message, topic: str) -> str | None:
    """Return the key of a record that only push writes, None for a foreign one, whose key is no UTF-8: no device is called so."""
    key = key_of(message)
    if key is None:
        foreign(topic, message.message_id(), "its key is no UTF-8")
    return key


def foreign(topic: str, where: MessageId, why: str) -> None:
    """Name a record that stands where only push writes, and is left out."""
    log.warning(
        "a record that push did not write is left out; see who else may produce there",
        topic=topic,
        position=str(position_of(where)),
        why=why,
    )


def properties_of(message: Message) -> dict[str, str] | None:
    """Return the properties of a message, None where one is no UTF-8."""
    try:
        return dict(message.properties())
    except UnicodeDecodeError:
        return None


def taken(message: Message) -> Taken:
    """Take out of a message all that is wanted of it."""
    where = message.message_id()
    key, properties = key_of(message), properties_of(message)
    return Taken(
        position_of(where),
        where,
        key or "",
        message.data(),
        properties or {},
        message.publish_timestamp(),
        NO_TEXT if key is None or properties is None else "",
    )
