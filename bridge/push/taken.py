"""A message of Pulsar as push keeps it: what the client keeps of one is 3 KB and more, whatever its size."""

from __future__ import annotations

from typing import NamedTuple

from bridge.contract.commands import CommandPosition
from bridge.pulsar.client import NO_TEXT, Message, MessageId, key_of, properties_of
from bridge.unreadable import leave_out

__all__ = ["Taken", "foreign", "position_of", "record_key", "taken"]


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


def record_key(message: Message, topic: str) -> str | None:
    """Return the key of a record that only push writes, None for a foreign one, whose key is no UTF-8: no device is called so."""
    key = key_of(message)
    if key is None:
        foreign(topic, message.message_id(), "its key is no UTF-8")
    return key


def foreign(topic: str, where: MessageId, why: str, key: str = "") -> None:
    """Name a record that stands where only push writes, and is left out."""
    leave_out(topic, why, position=str(position_of(where)), key=key)


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
