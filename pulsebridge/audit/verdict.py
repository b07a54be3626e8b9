"""The verdict of an audit: the findings, the numbers with their origin, and the times."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pulsebridge.audit import measures
from pulsebridge.audit.joins import Finding, Hop, Kind, findings
from pulsebridge.audit.measures import Recovery, Spread
from pulsebridge.audit.records import Records

__all__ = ["Number", "Verdict", "audit", "numbers"]

_READINGS = (Hop.ACK, Hop.PULSAR, Hop.BRONZE, Hop.MEASUREMENTS)
_JOURNALS = "distinct ids in the devices' journals"
_COMMANDS = (Hop.COMMANDS, Hop.RECEIVED, Hop.RECEIPTS)


class Number(NamedTuple):
    """A line of the verdict's table. ``wanted`` is the required value, None for any value."""

    name: str
    value: int
    how: str
    wanted: int | None = None

    @property
    def ok(self) -> bool:
        """Whether the value is the required one."""
        return self.wanted is None or self.value == self.wanted


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of an audit."""

    records: Records
    findings: tuple[Finding, ...]
    numbers: tuple[Number, ...]
    to_table: Spread | None
    to_command: Spread | None
    kills: tuple[Recovery, ...] = ()
    stages: Mapping[str, float] = field(default_factory=dict)
    """Seconds of each stage in the events."""

    @property
    def failing(self) -> tuple[Finding, ...]:
        """The findings that fail the audit."""
        return tuple(f for f in self.findings if f.fails)

    @property
    def passed(self) -> bool:
        """Whether nothing fails. A killed part without remaining work needs no more output."""
        return not self.failing and all(n.ok for n in self.numbers)

    def times(self) -> list[tuple[str, str, str]]:
        """Return (what, seconds, origin) of each time."""
        ways = (
            ("device → table, p50 / p99 / max", self.to_table, "sent by the device → commit in measurements"),
            (
                "device → command at the device, p50 / p99 / max",
                self.to_command,
                "reading sent → its command journalled by the device",
            ),
        )
        return [
            *((name, f"{seconds:.1f}", "the run's clock") for name, seconds in self.stages.items()),
            *((name, f"{s.p50:.2f} / {s.p99:.2f} / {s.max:.2f}" if s else "–", how) for name, s, how in ways),
            *(
                (
                    f"kill -9 {measures.PARTS.get(k.target, k.target)}",
                    "not recovered" if k.seconds is None else f"{k.seconds:.1f}",
                    "kill → its output increases",
                )
                for k in self.kills
            ),
        ]

    def as_dict(self) -> dict[str, Any]:
        """Return the verdict for JSON, without the records."""
        return {
            "passed": self.passed,
            "numbers": [n._asdict() | {"ok": n.ok} for n in self.numbers],
            "failing": [f._asdict() for f in self.failing],
            "noted": len(self.findings) - len(self.failing),
            "device_to_table_s": self.to_table and self.to_table._asdict(),
            "device_to_command_s": self.to_command and self.to_command._asdict(),
            "kills": [k._asdict() for k in self.kills],
            "stages_s": dict(self.stages),
        }


def audit(records: Records, events: Iterable[Mapping[str, Any]] = ()) -> Verdict:
    """Return the verdict on the records. ``events``: stages and kills of the run (see ``measures.recoveries``)."""
    found, noted = findings(records), list(events)
    return Verdict(
        records,
        tuple(found),
        tuple(numbers(records, found)),
        measures.spread([x.seconds for x in measures.table_latencies(records)]),
        measures.spread([x.seconds for x in measures.command_latencies(records)]),
        tuple(measures.recoveries(noted)),
        {e["name"]: float(e["s"]) for e in noted if e["e"] == "stage"},
    )


def numbers(records: Records, found: Sequence[Finding]) -> list[Number]:
    """Return the lines of the table, readings first, then commands."""
    return [*_readings(records), *_flaws(found), *_commands(records, found)]


def _readings(records: Records) -> list[Number]:
    stored = [s for s in records.stored if s.device in records.devices]
    pulsar, bronze, measurements, failed = (
        {row.id for row in rows} for rows in (stored, records.bronze, records.measurements, records.quarantine)
    )
    sent = set(records.sent)
    acked = {a.id for a in records.acks} & sent
    faults = {p.id for p in records.published if p.fault}
    expected, total = records.expected or {}, len(sent)
    split = f"of these ids: {len(measurements & sent):,} in measurements, {len(failed & sent):,} in quarantine"
    copies, others = len(stored) - len(pulsar), len(records.stored) - len(stored)
    lines = [
        Number("real readings published", total - len(faults), _JOURNALS, expected.get("readings")),
        Number("faulty messages published", len(faults), "marked in the journals", expected.get("faults")),
        Number("acknowledged", len(acked), "ids with a PUBACK in the devices' journals", total),
        Number("in Pulsar", len(pulsar & acked), "of these ids, read by the bare client", total),
        Number("in bronze", len(bronze & acked), "of these ids, read by deltalake", total),
        Number("in measurements or quarantine", len((measurements | failed) & acked), split, total),
        Number("redelivered copies in Pulsar", copies, "copies after the first of an id, dropped before measurements"),
    ]
    if others:
        lines.append(Number("of other devices", others, "without a journal: checked up to bronze"))
    return lines


def _flaws(found: Sequence[Finding]) -> list[Number]:
    missing = _count(found, _READINGS, Kind.MISSING)
    measurements = _count([f for f in found if f.fails], (Hop.MEASUREMENTS,), Kind.REPEATED)
    bronze = _count(found, (Hop.BRONZE,), Kind.REPEATED)
    order = _count(found, (Hop.ACK, Hop.PULSAR, Hop.BRONZE), Kind.OUT_OF_ORDER)
    return [
        Number("missing", missing, "ids of a hop that the next hop lacks", 0),
        Number("duplicates in measurements", measurements, "ids with more than one row, or in both tables", 0),
        Number("duplicates in bronze", bronze, "positions in Pulsar with more than one row", 0),
        Number("out of order per device", order, "first copies in Pulsar against the journals", 0),
    ]


def _commands(records: Records, found: Sequence[Finding]) -> list[Number]:
    emitted = [e.id for e in records.emitted if e.device in records.devices]
    distinct = set(emitted)
    received = [r.id for r in records.received if r.id in distinct]
    receipts = {r.id for r in records.receipts} & distinct
    called = set(records.calls)
    due = len(called)
    absent, disorder = (_count(found, _COMMANDS, kind) for kind in (Kind.MISSING, Kind.OUT_OF_ORDER))
    topic_copies, device_copies = len(emitted) - len(distinct), len(received) - len(set(received))
    planned = (records.expected or {}).get("commands")
    return [
        Number("commands called for", due, "the rules recomputed from the journals", planned),
        Number("alerts", len({a.id for a in records.alerts} & called), "of these, in the table alerts", due),
        Number("commands emitted", len(distinct), "distinct ids on the commands topic", due),
        Number("commands received", len(set(received)), _JOURNALS, due),
        Number("commands with a receipt", len(receipts), "distinct ids on the receipts topic", due),
        Number("commands missing", absent, "required, not emitted, received or receipted", 0),
        Number("commands out of order", disorder, "per device, against the journals", 0),
        Number("commands repeated on the topic", topic_copies, "copies after the first: at-least-once"),
        Number("commands repeated at the device", device_copies, "copies in the journals: at-least-once"),
    ]


def _count(found: Sequence[Finding], hops: Sequence[str], kind: str) -> int:
    # Distinct messages: a loss that appears at several hops counts once.
    return len({f.records[0] for f in found if f.hop in hops and f.kind == kind})
