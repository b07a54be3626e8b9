"""Compares the records hop by hop and names every message that differs from the expectation.

1. The expected messages were published, and every publish was acknowledged.
2. Every acknowledged id is in Pulsar. The first copies of each device are in the order in which it sent them.
3. Bronze has every message of Pulsar once, at its position, unchanged.
4. Every id of bronze is in exactly one of measurements and quarantine, once, with the value that the device sent.
5. The alerts, each once, and the emitted commands are those that the rules require.
6. Every emitted command reached its device, in the order of the commands topic, and has a receipt.

Redelivered copies in Pulsar, on the commands topic and at the devices are only counted, because delivery is
at-least-once. Messages of devices without a journal are compared up to bronze.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from bridge.contract import DELIVERIES
from pulsebridge.audit.records import Emitted, Records

__all__ = ["Finding", "Hop", "Kind", "findings"]


class Hop:
    """A step between two records."""

    SIZE: Final = "the run"
    ACK: Final = "published → acknowledged"
    PULSAR: Final = "acknowledged → Pulsar"
    BRONZE: Final = "Pulsar → bronze"
    MEASUREMENTS: Final = "bronze → measurements or quarantine"
    ALERTS: Final = "readings → alerts"
    COMMANDS: Final = "readings → commands emitted"
    RECEIVED: Final = "commands emitted → received"
    RECEIPTS: Final = "commands emitted → receipts"


class Kind:
    """Kinds of findings. ALTERED: a message differs from the previous record. UNEXPECTED: that record lacks it."""

    MISSING: Final = "missing"
    REPEATED: Final = "repeated"
    OUT_OF_ORDER: Final = "out of order"
    ALTERED: Final = "altered"
    UNEXPECTED: Final = "unexpected"
    SHORT: Final = "short"


class Finding(NamedTuple):
    """One finding of the audit. ``fails`` is False for copies that at-least-once delivery allows."""

    hop: str
    kind: str
    records: tuple[str, ...]
    detail: str
    fails: bool = True


def findings(records: Records) -> list[Finding]:
    """Return all missing, repeated, altered, unexpected and disordered messages, hop by hop."""
    found = [] if records.expected is None else _size(records, records.expected)
    for hop in (_acknowledged, _in_pulsar, _in_bronze, _in_measurements, _commands, _received, _receipts):
        found += hop(records)
    return found


def _compare(
    hop: str,
    known: Mapping[Any, Any],
    rows: Sequence[Any],
    *,
    due: Iterable[Any] | None = None,
    key: str = "id",
    same: Sequence[str] = (),
    rank: Mapping[str, int] | None = None,
    once: bool = False,
) -> list[Finding]:
    """Compare the rows of a hop with the previous hop.

    ``known``: the allowed messages, by key. ``due``: the required keys, default all of ``known``. ``same``: fields that
    must be equal in both. ``rank``: the right order of the ids of each device; only first copies count. ``once``:
    a copy fails the audit.
    """
    found_rows = {getattr(row, key): row for row in rows}
    missing = (k for k in (known if due is None else due) if k not in found_rows)
    found = [Finding(hop, Kind.MISSING, (_name(known, k),), f"{_name(known, k)} is missing") for k in missing]
    for k, row in found_rows.items():
        if k not in known:
            found.append(Finding(hop, Kind.UNEXPECTED, (row.id,), f"{row.id} was not in the previous record"))
    for row in rows:
        before = known.get(getattr(row, key))
        for field in same if before is not None else ():
            now, then = getattr(row, field), getattr(before, field)
            if now != then:
                ids = tuple(dict.fromkeys((row.id, getattr(before, "id", row.id))))
                found.append(Finding(hop, Kind.ALTERED, ids, f"{row.id}: {field} is {now!r} and was {then!r}"))
    found += _repeated(hop, ((row.id, getattr(row, key)) for row in rows), fails=once)
    return found + _disordered(hop, rows, rank or {})


def _name(known: Mapping[Any, Any], key: Any) -> str:
    return str(getattr(known.get(key), "id", key))


def _repeated(hop: str, keys: Iterable[tuple[str, Any]], *, fails: bool) -> list[Finding]:
    times = Counter(keys).items()
    return [Finding(hop, Kind.REPEATED, (name,), f"{name} occurs {n} times", fails) for (name, _), n in times if n > 1]


def _disordered(hop: str, rows: Iterable[Any], rank: Mapping[str, int]) -> list[Finding]:
    highest: dict[str, tuple[int, str]] = {}
    found = []
    for device, name in dict.fromkeys((row.device, row.id) for row in rows if row.id in rank):
        top = highest.get(device)
        if top is not None and rank[name] < top[0]:
            detail = f"{device}: {name} comes after {top[1]}"
            found.append(Finding(hop, Kind.OUT_OF_ORDER, (name, top[1]), detail))
        else:
            highest[device] = (rank[name], name)
    return found


# --- the hops -----------------------------------------------------------------------------------------------


def _size(records: Records, expected: Mapping[str, int]) -> list[Finding]:
    have = {
        "readings": len({p.id for p in records.published if not p.fault}),
        "faults": len({p.id for p in records.published if p.fault}),
        "commands": len({e.id for e in records.emitted if e.device in records.devices}),
    }
    found = [
        Finding(Hop.SIZE, Kind.SHORT, (name,), f"{expected[name]:,} {name} expected, {count:,} found")
        for name, count in have.items()
        if count < expected.get(name, 0)
    ]
    if not expected.get("readings"):
        found.append(
            Finding(Hop.SIZE, Kind.SHORT, ("readings",), "no reading is expected, so the audit proves nothing")
        )
    return found


def _acknowledged(records: Records) -> list[Finding]:
    # MQTT-4.6.0-2: PUBACKs come in the order of the PUBLISHes.
    rank = {p.id: p.seq for p in records.published}
    acks = _compare(Hop.ACK, records.sent, records.acks, rank=rank, once=True)
    return acks + _repeated(Hop.ACK, ((p.id, p.device) for p in records.published), fails=True)


def _in_pulsar(records: Records) -> list[Finding]:
    stored = [s for s in sorted(records.stored, key=lambda s: s.position) if s.device in records.devices]
    acked, rank = dict.fromkeys(a.id for a in records.acks), {p.id: p.seq for p in records.published}
    found = _compare(Hop.PULSAR, records.sent, stored, due=acked, same=("device",), rank=rank)
    # A device's messages have an order only within one partition.
    home: dict[tuple[str, str], int] = {}
    for s in stored:
        partition = home.setdefault((s.device, s.position.topic), s.position.partition)
        if partition != s.position.partition:
            detail = f"{s.id} is in partition {s.position.partition}, {s.device} in {partition}"
            found.append(Finding(Hop.PULSAR, Kind.ALTERED, (s.id,), detail))
    return found


def _in_bronze(records: Records) -> list[Finding]:
    stored = {s.position: s for s in records.stored}
    return _compare(Hop.BRONZE, stored, records.bronze, key="position", same=("id",), once=True)


def _in_measurements(records: Records) -> list[Finding]:
    bronze = {b.id: b for b in records.bronze if b.id in records.sent}
    measurements = [s for s in records.measurements if s.device in records.devices or s.id in records.sent]
    failed = [q for q in records.quarantine if q.device in records.devices or q.id in records.sent]
    # A message without an id cannot be distinguished from its redelivered copy. So quarantine may have a row for each.
    found = _repeated(Hop.MEASUREMENTS, ((q.id, q.position) for q in failed), fails=True)
    quarantined = {q.id: q for q in failed}
    found += _compare(Hop.MEASUREMENTS, bronze, [*measurements, *quarantined.values()], once=True)
    copies = Counter(q.id for q in {(q.id, q.position): q for q in failed}.values())
    found += [
        Finding(Hop.MEASUREMENTS, Kind.REPEATED, (name,), f"{name} is in quarantine {n} times", False)
        for name, n in copies.items()
        if n > 1
    ]
    for row in (*measurements, *failed):
        sent = records.sent.get(row.id)
        if sent is None:
            continue
        if bool(sent.fault) != (row.id in quarantined):
            detail = f"{row.id} is {sent.fault or 'sound'}, and in {'quarantine' if row.id in quarantined else 'measurements'}"
            found.append(Finding(Hop.MEASUREMENTS, Kind.ALTERED, (row.id,), detail))
        elif not sent.fault and (row.device, row.value) != (sent.device, sent.value):
            detail = f"{row.id} of {sent.device} was {sent.value}, measurements has {row.value} of {row.device}"
            found.append(Finding(Hop.MEASUREMENTS, Kind.ALTERED, (row.id,), detail))
    return found


def _commands(records: Records) -> list[Finding]:
    emitted = [e for e in sorted(records.emitted, key=lambda e: e.position) if e.device in records.devices]
    rank = {e.id: records.sent[e.reading_id].seq for e in emitted if e.reading_id in records.sent}
    alerts = [a for a in records.alerts if a.device in records.devices]
    return [
        *_compare(Hop.ALERTS, records.calls, alerts, same=("device",), once=True),
        *_compare(Hop.COMMANDS, records.calls, emitted, same=("device", "rule", "reading_id"), rank=rank),
    ]


def _received(records: Records) -> list[Finding]:
    emitted = _first_copies(e for e in records.emitted if e.device in records.devices)
    received = sorted(records.received, key=lambda r: (r.device, r.n))
    rank = {name: n for n, name in enumerate(emitted)}
    return _compare(Hop.RECEIVED, emitted, received, same=("device",), rank=rank)


def _receipts(records: Records) -> list[Finding]:
    emitted = _first_copies(records.emitted)
    delivered = [r for r in records.receipts if r.state in DELIVERIES]
    others = [r for r in records.receipts if r.state not in DELIVERIES]
    return [
        *_compare(Hop.RECEIPTS, emitted, delivered, same=("device",)),
        *_compare(Hop.RECEIPTS, emitted, others, due=(), same=("device",)),
    ]


def _first_copies(emitted: Iterable[Emitted]) -> dict[str, Emitted]:
    first: dict[str, Emitted] = {}
    for e in sorted(emitted, key=lambda e: e.position):
        first.setdefault(e.id, e)
    return first
