"""The records of a run that its audit compares, as plain rows: device journals, Pulsar, Delta tables.

``id`` is the message's ``record_id``; times are µs since the epoch. ``journal``, ``pulsar`` and ``tables`` read the
rows, ``joins`` compares them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

__all__ = [
    "Ack",
    "Call",
    "Emitted",
    "Position",
    "Published",
    "ReceiptRow",
    "Received",
    "Records",
    "Stored",
    "TableRow",
    "json_object",
    "record_id",
]


def json_object(payload: bytes) -> dict[str, Any]:
    """Return the JSON object in a payload, empty if the payload is not one."""
    try:
        body = json.loads(payload)
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}


def record_id(payload: bytes) -> str:
    """Return the payload's field ``id``, or ``sha256:…`` of its bytes if that is not text."""
    name = json_object(payload).get("id")
    return name if isinstance(name, str) else f"sha256:{hashlib.sha256(payload).hexdigest()[:32]}"


class Position(NamedTuple):
    """The position of a message in Pulsar, ordered as the log of its partition."""

    topic: str
    partition: int
    ledger: int
    entry: int
    batch_index: int

    def __str__(self) -> str:
        topic = self.topic.rsplit("/", 1)[-1]
        return f"{topic}-{self.partition}:{self.ledger}:{self.entry}:{self.batch_index}"


class Published(NamedTuple):
    """A publish in a device's journal. ``fault`` names the fault of a payload that was broken on purpose."""

    id: str
    device: str
    metric: str
    seq: int
    ts: str
    value: float | None
    fault: str
    us: int


class Ack(NamedTuple):
    """A PUBACK in a device's journal."""

    id: str
    device: str
    us: int


class Received(NamedTuple):
    """A command in a device's journal. ``n`` is the order of arrival, from 1."""

    id: str
    device: str
    n: int
    us: int


class Stored(NamedTuple):
    """A message of a device in Pulsar."""

    id: str
    device: str
    position: Position
    us: int


class Emitted(NamedTuple):
    """A command in Pulsar, with the rule and the reading that caused it."""

    id: str
    device: str
    reading_id: str
    rule: str
    position: Position
    us: int


class ReceiptRow(NamedTuple):
    """A receipt of a command in Pulsar."""

    id: str
    device: str
    state: str
    us: int


class TableRow(NamedTuple):
    """A row of a Delta table. ``us`` is the time of its first commit."""

    id: str
    position: Position
    us: int
    device: str = ""
    value: float | None = None


class Call(NamedTuple):
    """A command that the rules require."""

    device: str
    rule: str
    reading_id: str


@dataclass(frozen=True)
class Records:
    """All records of one run."""

    published: tuple[Published, ...] = ()
    acks: tuple[Ack, ...] = ()
    received: tuple[Received, ...] = ()
    stored: tuple[Stored, ...] = ()
    emitted: tuple[Emitted, ...] = ()
    receipts: tuple[ReceiptRow, ...] = ()
    bronze: tuple[TableRow, ...] = ()
    measurements: tuple[TableRow, ...] = ()
    quarantine: tuple[TableRow, ...] = ()
    alerts: tuple[TableRow, ...] = ()
    """``id`` is the id of the alert's command."""
    calls: Mapping[str, Call] = field(default_factory=dict)
    """The commands that the rules require, by id."""
    expected: Mapping[str, int] | None = None
    """Minimum numbers of ``readings``, ``faults`` and ``commands``; None if unknown."""

    @cached_property
    def sent(self) -> dict[str, Published]:
        """The journalled publishes by id."""
        return {p.id: p for p in self.published}

    @cached_property
    def devices(self) -> frozenset[str]:
        """The devices with a journal."""
        return frozenset(p.device for p in self.published)
