"""The three records of a run as plain rows: what the devices wrote, what Pulsar holds, what Delta holds.

Adapters fill these (``journals``, ``pulsar_record``, ``delta_record``), ``joins`` compares them. Nothing here
reads anything. ``id`` is ``payloads.record_id`` of the payload; times are µs since the epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pulsebridge.audit.expected import Rule

__all__ = [
    "Ack",
    "Bronze",
    "Emitted",
    "Place",
    "Published",
    "ReceiptRow",
    "Received",
    "Records",
    "Silver",
    "Stored",
]


class Place(NamedTuple):
    """Where a message stands in Pulsar; ordered as the log of one partition is."""

    topic: str
    partition: int
    ledger: int
    entry: int
    batch_index: int


class Published(NamedTuple):
    """A publish, as its device journalled it. ``value`` is None and ``fault`` set for a fault."""

    id: str
    device: str
    metric: str
    seq: int
    ts: str
    value: float | None
    fault: str
    us: int


class Ack(NamedTuple):
    """The MQTT broker's PUBACK for a publish, as its device journalled it."""

    id: str
    device: str
    us: int


class Received(NamedTuple):
    """A command as its device journalled it. ``n`` is the order of arrival at that device, from 1."""

    id: str
    device: str
    n: int
    dup: bool
    us: int


class Stored(NamedTuple):
    """A reading in Pulsar, read by the bare client."""

    id: str
    device: str
    place: Place
    arrival_us: int
    publish_us: int


class Emitted(NamedTuple):
    """A command in Pulsar's commands topic, read by the bare client."""

    id: str
    device: str
    reading_id: str
    rule: str
    place: Place
    publish_us: int


class ReceiptRow(NamedTuple):
    """A receipt of the push tier, read by the bare client."""

    id: str
    device: str
    state: str
    place: Place
    confirmed_us: int


class Bronze(NamedTuple):
    """A row of bronze, read without Spark. ``commit_us`` is when the Delta commit that holds it appeared."""

    id: str
    place: Place
    commit_us: int


class Silver(NamedTuple):
    """A row of silver or quarantine, read without Spark. ``value`` is None where the row has none."""

    id: str
    device: str
    value: float | None
    place: Place
    commit_us: int


@dataclass(frozen=True, slots=True)
class Records:
    """Everything the audit joins."""

    published: tuple[Published, ...] = ()
    acks: tuple[Ack, ...] = ()
    received: tuple[Received, ...] = ()
    stored: tuple[Stored, ...] = ()
    emitted: tuple[Emitted, ...] = ()
    receipts: tuple[ReceiptRow, ...] = ()
    bronze: tuple[Bronze, ...] = ()
    silver: tuple[Silver, ...] = ()
    quarantine: tuple[Silver, ...] = ()
    rules: tuple[Rule, ...] = ()
    plan: Mapping[str, Any] = field(default_factory=dict)
    """The run's plan from its manifest: expected readings, faults and commands."""
