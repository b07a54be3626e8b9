"""The numbers of the audit's table, each with how it is got. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pulsebridge.audit.findings import (
    HOP_ACK,
    HOP_BRONZE,
    HOP_COMMANDS,
    HOP_PULSAR,
    HOP_RECEIPTS,
    HOP_RECEIVED,
    HOP_SILVER,
    MISSING,
    OUT_OF_ORDER,
    REPEATED,
    Finding,
)
from pulsebridge.audit.joins import fleet_of, wanted_commands
from pulsebridge.audit.records import Records

__all__ = ["Number", "numbers"]

_READINGS = (HOP_ACK, HOP_PULSAR, HOP_BRONZE, HOP_SILVER)
_COMMANDS = (HOP_COMMANDS, HOP_RECEIVED, HOP_RECEIPTS)


class Number(NamedTuple):
    """One line of the table. ``wanted`` is what it must be, None where any value will do."""

    name: str
    value: int
    how: str
    wanted: int | None = None

    @property
    def ok(self) -> bool:
        """Whether the value is what it must be."""
        return self.wanted is None or self.value == self.wanted


def numbers(records: Records, found: Sequence[Finding]) -> list[Number]:
    """Return the table's lines, readings first, then commands."""
    return [*_readings(records, found), *_commands(records, found)]


def _count(found: Sequence[Finding], hops: Sequence[str], kind: str) -> int:
    """Distinct records, so that a loss that shows at several hops counts once."""
    return len({f.records[0] for f in found if f.hop in hops and f.kind == kind})


def _readings(records: Records, found: Sequence[Finding]) -> list[Number]:
    fleet = fleet_of(records)
    published = {p.id for p in records.published}
    faults = {p.id for p in records.published if p.fault}
    acked = {a.id for a in records.acks}
    stored = [s for s in records.stored if s.device in fleet]
    in_pulsar = {s.id for s in stored}
    in_bronze = {b.id for b in records.bronze if b.id in published}
    in_silver = {s.id for s in records.silver if s.id in published}
    aside = {q.id for q in records.quarantine if q.id in published}
    total = len(published)
    return [
        Number(
            "real readings published",
            len(published - faults),
            "distinct ids in the devices' journals",
            int(records.plan.get("readings", 0)),
        ),
        Number(
            "faulty messages published",
            len(faults),
            "added on purpose, marked in the journals",
            int(records.plan.get("faults", 0)),
        ),
        Number("acknowledged", len(acked & published), "ids with a PUBACK in the devices' journals", total),
        Number("in Pulsar", len(in_pulsar & acked), "acknowledged ids that the bare client read back", total),
        Number(
            "in bronze",
            len(in_bronze & acked),
            "acknowledged ids in the Delta table, read by deltalake",
            total,
        ),
        Number(
            "in silver or quarantine",
            len((in_silver | aside) & acked),
            f"acknowledged ids: {len(in_silver):,} in silver, {len(aside):,} in quarantine",
            total,
        ),
        *_flaws(found, len(stored) - len(in_pulsar)),
        *_others(len(records.stored) - len(stored)),
    ]


def _flaws(found: Sequence[Finding], copies: int) -> list[Number]:
    return [
        Number(
            "missing", _count(found, _READINGS, MISSING), "ids absent at a hop that the hop before has", 0
        ),
        Number(
            "duplicates in silver",
            _count([f for f in found if f.fails], (HOP_SILVER,), REPEATED),
            "ids with more than one row, or in both tables",
            0,
        ),
        Number(
            "duplicates in bronze",
            _count(found, (HOP_BRONZE,), REPEATED),
            "Pulsar places with more than one row",
            0,
        ),
        Number(
            "redelivered copies in Pulsar",
            copies,
            "messages beyond the first of an id: at-least-once, dropped before silver",
        ),
        Number(
            "out of order per device",
            _count(found, (HOP_ACK, HOP_PULSAR, HOP_BRONZE), OUT_OF_ORDER),
            "first copies in Pulsar against the device's own sequence",
            0,
        ),
    ]


def _others(count: int) -> list[Number]:
    how = "messages in Pulsar from outside the fleet; checked up to bronze"
    return [Number("of other devices", count, how)] if count else []


def _commands(records: Records, found: Sequence[Finding]) -> list[Number]:
    fleet = fleet_of(records)
    emitted = [e for e in records.emitted if e.device in fleet]
    distinct = {e.id for e in emitted}
    received = [r for r in records.received if r.id in distinct]
    called = len(wanted_commands(records))
    receipts = {r.id for r in records.receipts if r.id in distinct}
    return [
        Number(
            "commands called for",
            called,
            "the rules computed again from the journals, in plain Python",
            int(records.plan.get("commands", 0)),
        ),
        Number(
            "commands emitted",
            len(distinct),
            "distinct ids on the commands topic, read by the bare client",
            called,
        ),
        Number(
            "commands received",
            len({r.id for r in received}),
            "distinct ids in the devices' journals",
            called,
        ),
        Number("commands with a receipt", len(receipts), "distinct ids on the receipts topic", called),
        Number(
            "commands missing",
            _count(found, _COMMANDS, MISSING),
            "called for, not emitted, received or receipted",
            0,
        ),
        Number(
            "commands out of order",
            _count(found, _COMMANDS, OUT_OF_ORDER),
            "per device: emitted by reading, received by place on the topic",
            0,
        ),
        Number(
            "commands repeated on the topic",
            len(emitted) - len(distinct),
            "copies beyond the first: at-least-once",
        ),
        Number(
            "commands repeated at the device",
            len(received) - len({r.id for r in received}),
            "copies beyond the first in the devices' journals",
        ),
    ]
