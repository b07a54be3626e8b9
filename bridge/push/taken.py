"""A message of Pulsar as push keeps it: what the client keeps of one is 3 KB and more, whatever its size."""

from __future__ import annotations

from typing import NamedTuple

from bridge.commands import CommandPosition
from bridge.pulsar_client import Message, MessageId

__all__ = ["Taken", "position_of", "taken"]


class Taken(NamedTuple):
    """A message that was read. ``message_id`` acknowledges it."""

    position: CommandPosition
    message_id: MessageId
    key: str
    payload: bytes
    properties: dict[str, str]
    published_ms: int


def position_of(message_id: MessageId) -> CommandPosition:
    """Return the position that a message id stands for."""
    return CommandPosition(message_id.ledger_id(), message_id.entry_id(), message_id.batch_index())


def taken(message: Message) -> Taken:
    """Take out of a message all that is wanted of it."""
    where = message.message_id()
    return Taken(
        position_of(where),
        where,
        message.partition_key(),
        message.data(),
        message.properties(),
        message.publish_timestamp(),
    )
