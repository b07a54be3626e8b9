"""Messages of Pulsar as their readers need them: position, key, payload and properties, whatever a client has written."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from typing import Any, Final, NamedTuple

from bridge.contract.commands import CommandPosition
from bridge.errors import TransientError
from bridge.pulsar.client import NO_TEXT, Message, MessageId, PulsarClient, key_of, properties_of, received
from bridge.pulsar.sending import close_quietly
from bridge.unreadable import leave_out

__all__ = ["StoredMessage", "leave_out_foreign", "position_of", "read_records", "record_key", "stored_message"]

_READ_MS: Final = 500
_AT_ONCE_MS: Final = 1
_PATIENCE_S: Final = 10.0
_QUEUE: Final = 500
"""Messages that Pulsar's client reads ahead, at 3 KB and more each: a takeover has a reader for each partition."""


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
    """Return the key of a record that only Pulsebridge writes, None for a foreign one, whose key is not UTF-8."""
    key = key_of(message)
    if key is None:
        leave_out_foreign(topic, message.message_id(), "its key is not UTF-8")
    return key


def read_records(
    client: PulsarClient,
    topic: str,
    start: MessageId,
    *,
    compacted: bool = False,
    inclusive: bool = True,
    turn: threading.Lock | None = None,
    over: Callable[[], bool] = lambda: False,
) -> Generator[tuple[str, Message]]:
    """Yield key and message of each record in a topic that only Pulsebridge writes, until the caller has the last one that it
    waits for, or ``over``. Foreign records are reported and left out, and so is what compaction leaves of a message in the
    midst of a batch. From the first record until none is there it holds ``turn``; close the generator.

    Raises TransientError when nothing comes for ten seconds.
    """
    reader: Any = client.reader(topic, start, queue=_QUEUE, compacted=compacted, inclusive=inclusive)
    operation, turn, held = f"reading {topic}", turn or threading.Lock(), False
    try:
        while True:
            end = time.monotonic() + _PATIENCE_S
            message = received(reader.read_next, _AT_ONCE_MS, operation) if held else None
            while message is None:
                if held:
                    turn.release()
                    held = False
                message = received(reader.read_next, _READ_MS, operation)
                if message is None and over():
                    return
                if message is None and time.monotonic() > end:
                    raise TransientError(f"{operation}: nothing comes")
            held = held or turn.acquire()
            key = record_key(message, topic)
            if key or (key is not None and message.data()):
                yield key, message
    finally:
        if held:
            turn.release()
        close_quietly(reader)


def leave_out_foreign(topic: str, where: MessageId, why: str, key: str = "") -> None:
    """Report a record in a topic that only Pulsebridge writes, and leave it out."""
    leave_out(topic, why, position=str(position_of(where)), key=key)


def stored_message(message: Message) -> StoredMessage:
    """Return the parts of a message."""
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
