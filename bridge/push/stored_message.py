"""A message of Pulsar as push keeps it: Pulsar's client needs 3 KB and more for one of any size."""

from __future__ import annotations

from typing import NamedTuple

from bridge.contract.commands import CommandPosition
from bridge.pulsar.client import NO_TEXT, Message, MessageId, key_of, properties_of
from bridge.unreadable import leave_out

__all__ = ["StoredMessage", "leave_out_foreign", "position_of", "record_key", "stored_message"]


class StoredMessage(NamedTuple):
    """A message that was read from Pulsar. ``message_id`` acknowledges it."""

    position: CommandPosition
    message_id: MessageId
    key: str
    payload: bytes
    properties: dict[str, str]
    published_ms: int
    problem: str = ""
    """Why key or properties are missing, for a message that no writer of ours wrote."""


def position_of(message_id: MessageId) -> CommandPosition:
    """Return the position of a message id."""
    return CommandPosition(message_id.ledger_id(), message_id.entry_id(), message_id.batch_index())


def record_key(message: Message, topic: str) -> str | None:
    """Return the key of a record that only push writes, None for a foreign one, whose key is not UTF-8."""
    key = key_of(message)
    if key is None:
        leave_out_foreign(topic, message.message_id(), "its key is not UTF-8")
    return key


def leave_out_foreign(topic: str, where: MessageId, why: str, key: str = "") -> None:
    """Report a record in a topic that only push writes, and leave it out."""
    leave_out(topic, why, position=str(position_of(where)), key=key)


def stored_message(message: Message) -> StoredMessage:
    """Return what push needs of a message."""
    where = message.message_id()
    key, properties = key_of(message), properties_of(message)
    return StoredMessage(
        position_of(where),
        where,
        key or "",
        message.data(),
        properties or {},
        message.publish_timestamp(),
        NO_TEXT if key is None or properties is None else "",
    )
