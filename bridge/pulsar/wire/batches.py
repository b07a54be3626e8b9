"""Encodes messages as batches, in the frames of SEND.

A batch is one entry of Pulsar: one sequence id, one receipt, stored whole or not at all. Key and properties that all
messages of an MQTT topic share are encoded once, as ``head``. So a message costs about a microsecond, a tenth of its
cost with Pulsar's client.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from google_crc32c import value as crc32c

from bridge.pulsar.wire.commands import Kind
from bridge.pulsar.wire.protobuf import number, text

__all__ = ["BATCH_BYTES", "BATCH_MESSAGES", "Batch", "Outgoing", "encode", "head_of"]

BATCH_MESSAGES: Final = 1000
BATCH_BYTES: Final = 1024 * 1024
"""A larger batch is divided; a larger message is sent alone."""

_MAGIC: Final = b"\x0e\x01"
_SIZES: Final = tuple(size.to_bytes(4, "big") for size in range(2048))


class Outgoing(Protocol):
    """A message to be sent."""

    payload: bytes
    head: bytes
    """Key and properties, encoded by ``head_of``."""
    event_ms: int
    """The event time, in milliseconds since the epoch; 0 is left out."""


class Batch(NamedTuple):
    """One SEND."""

    frame: bytes
    sequence: int
    """Its receipt has this id."""
    messages: int
    """Number of messages."""
    size: int
    """Bytes that count against the broker's limit."""


def head_of(key: str, properties: Mapping[str, str]) -> bytes:
    """Return the key and the properties in a message's metadata (SingleMessageMetadata)."""
    found = b"".join([_property(name.encode(), value.encode()) for name, value in properties.items()])
    return found + text(2, key.encode()) if key else found


def _property(name: bytes, value: bytes) -> bytes:
    size = len(name) + len(value) + 4
    if size < 128:  # each length in one byte
        return b"\x0a%c\x0a%c%b\x12%c%b" % (size, len(name), name, len(value), value)
    return text(1, text(1, name) + text(2, value))


def encode(
    messages: Sequence[Outgoing],
    *,
    producer: int,
    name: bytes,
    sequence: int,
    publish_ms: int,
    most: int = BATCH_BYTES,
) -> list[Batch]:
    """Return messages as batches, in order; their sequence ids continue from ``sequence``, one for each message.

    No batch of more than one message is larger than about ``most`` bytes.
    """
    batches: list[Batch] = []
    parts: list[bytes] = []
    add = parts.append
    tails: dict[int, bytes] = {}
    event_ms, count, size = -1, 0, 0
    for message in messages:
        payload, head = message.payload, message.head
        if message.event_ms != event_ms:
            event_ms, tails = message.event_ms, {}
        length = len(payload)
        tail = tails.get(length)
        if tail is None:
            tail = tails[length] = _tail(length, event_ms)
        described = len(head) + len(tail)
        whole = 4 + described + length
        if count and (size + whole > most or count == BATCH_MESSAGES):
            batches.append(_batch(parts, count, size, producer, name, sequence, publish_ms))
            sequence += count
            parts = []
            add = parts.append
            count = size = 0
        add(_SIZES[described] if described < 2048 else described.to_bytes(4, "big"))
        add(head)
        add(tail)
        add(payload)
        count += 1
        size += whole
    if count:
        batches.append(_batch(parts, count, size, producer, name, sequence, publish_ms))
    return batches


def _tail(length: int, event_ms: int) -> bytes:
    return number(3, length) + (number(5, event_ms) if event_ms else b"")


def _batch(
    parts: list[bytes], count: int, size: int, producer: int, name: bytes, sequence: int, publish_ms: int
) -> Batch:
    last = sequence + count - 1
    metadata = text(1, name) + number(2, sequence) + number(3, publish_ms) + number(11, count) + number(24, last)
    body = b"".join((len(metadata).to_bytes(4, "big"), metadata, *parts))
    send = number(1, producer) + number(2, sequence) + number(3, count) + number(6, last)
    command = number(1, Kind.SEND) + text(Kind.SEND, send)
    total = 4 + len(command) + 6 + len(body)
    head = b"".join(
        (
            total.to_bytes(4, "big"),
            len(command).to_bytes(4, "big"),
            command,
            _MAGIC,
            crc32c(body).to_bytes(4, "big"),
        )
    )
    return Batch(head + body, sequence, count, size + len(metadata))
