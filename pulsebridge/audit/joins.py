"""Joins the three records of a run, hop by hop, and names every record that is not where it must be. Pure.

What must hold:

1. what the fleet's plan says was published, and every publish was acknowledged;
2. every acknowledged id is in Pulsar, each device's first copies in the order in which it sent them;
3. bronze holds every message of Pulsar exactly once, at its place, unchanged;
4. every id of bronze is in exactly one of silver and quarantine, once, with the value that the device sent;
5. the commands emitted are those that the rules call for, computed again from the journals;
6. every emitted command reached its device, in the order of the commands topic, and has a receipt.

Copies in Pulsar, on the commands topic and at the devices are allowed (delivery is at-least-once there); they are
found and counted, and do not fail the audit. Other MQTT devices may have published during the run: what is not of
the fleet is left out, except that bronze must equal Pulsar for all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import datetime

from pulsebridge.audit.expected import Sample, expected_commands
from pulsebridge.audit.findings import (
    ALTERED,
    HOP_ACK,
    HOP_BRONZE,
    HOP_COMMANDS,
    HOP_PULSAR,
    HOP_RECEIPTS,
    HOP_RECEIVED,
    HOP_SILVER,
    HOP_SIZE,
    MISSING,
    REPEATED,
    SHORT,
    UNEXPECTED,
    Finding,
    out_of_order,
    repeated,
)
from pulsebridge.audit.records import Emitted, Place, Published, Records

__all__ = ["findings", "fleet_of", "wanted_commands"]

_DELIVERED = ("delivered", "answered")


def findings(records: Records) -> list[Finding]:
    """Return all that is wrong, repeated or out of order in a run, hop by hop."""
    return [
        *_size(records),
        *_acknowledged(records),
        *_in_pulsar(records),
        *_in_bronze(records),
        *_in_silver(records),
        *_commands(records),
        *_received(records),
        *_receipts(records),
    ]


def fleet_of(records: Records) -> frozenset[str]:
    """Return the names of the devices that journalled anything: the fleet."""
    return frozenset(p.device for p in records.published)


def wanted_commands(records: Records) -> dict[str, tuple[str, str, str]]:
    """Return what the rules call for, computed from the journals: command id → (device, rule, reading id)."""
    samples: dict[tuple[str, str], dict[str, Sample]] = {}
    for p in records.published:
        if p.value is not None and not p.fault:
            device = samples.setdefault((p.device, p.metric), {})
            device[p.id] = Sample(p.id, datetime.fromisoformat(p.ts), p.value)
    wanted = {}
    for (device_name, metric), found in samples.items():
        called = expected_commands(records.rules, device_name, metric, list(found.values()))
        for name, (rule, reading_id) in called.items():
            wanted[name] = (device_name, rule, reading_id)
    return wanted


# --- the hops -----------------------------------------------------------------------------------------------


def _size(records: Records) -> list[Finding]:
    found = []
    readings = len({p.id for p in records.published if not p.fault})
    faults = len({p.id for p in records.published if p.fault})
    commands = len({e.id for e in records.emitted if e.device in fleet_of(records)})
    for name, have in (("readings", readings), ("faults", faults), ("commands", commands)):
        want = int(records.plan.get(name, 0))
        if have < want:
            found.append(
                Finding(HOP_SIZE, SHORT, (name,), f"the plan says {want:,} {name}, the run has {have:,}")
            )
    if not readings:
        found.append(
            Finding(HOP_SIZE, SHORT, ("readings",), "the run is empty: no device published a reading")
        )
    if not records.plan.get("readings"):
        found.append(Finding(HOP_SIZE, SHORT, ("plan",), "the manifest names no expected number of readings"))
    return found


def _acknowledged(records: Records) -> list[Finding]:
    acks = Counter(a.id for a in records.acks)
    published = {p.id: p for p in records.published}
    found = [
        Finding(HOP_ACK, MISSING, (name,), f"{name} was published and never acknowledged")
        for name in published
        if name not in acks
    ]
    found += [
        Finding(HOP_ACK, UNEXPECTED, (name,), f"{name} was acknowledged and never published")
        for name in acks
        if name not in published
    ]
    found += repeated(
        HOP_ACK, Counter(p.id for p in records.published), "journalled as published", fails=True
    )
    found += repeated(HOP_ACK, acks, "journalled as acknowledged", fails=True)
    rank = {p.id: p.seq for p in records.published}
    # MQTT-4.6.0-2: PUBACKs come in the order of the PUBLISHes.
    return found + out_of_order(
        HOP_ACK, ((a.device, a.id) for a in records.acks), rank, "in its acknowledgements"
    )


def _in_pulsar(records: Records) -> list[Finding]:
    fleet = fleet_of(records)
    published: dict[str, Published] = {p.id: p for p in records.published}
    stored = [s for s in sorted(records.stored, key=lambda s: s.place) if s.device in fleet]
    counts = Counter(s.id for s in stored)
    acked = dict.fromkeys(a.id for a in records.acks)
    found = [
        Finding(HOP_PULSAR, MISSING, (name,), f"{name} was acknowledged and is not in Pulsar")
        for name in acked
        if name not in counts
    ]
    found += [
        Finding(HOP_PULSAR, UNEXPECTED, (name,), f"{name} is in Pulsar and no device published it")
        for name in counts
        if name not in published
    ]
    for s in stored:
        sent = published.get(s.id)
        if sent is not None and sent.device != s.device:
            found.append(
                Finding(
                    HOP_PULSAR, ALTERED, (s.id,), f"{s.id} of {sent.device} is in Pulsar as of {s.device}"
                )
            )
    found += repeated(HOP_PULSAR, counts, "in Pulsar", fails=False)
    found += _strays((s.device, s.id, s.place) for s in stored)
    rank = {name: p.seq for name, p in published.items()}
    return found + out_of_order(HOP_PULSAR, ((s.device, s.id) for s in stored), rank, "in Pulsar")


def _strays(rows: Iterable[tuple[str, str, Place]]) -> list[Finding]:
    # A device's order holds within one partition only.
    home: dict[tuple[str, str], Place] = {}
    found = []
    for device, name, place in rows:
        first = home.setdefault((device, place.topic), place)
        if first.partition != place.partition:
            detail = (
                f"{device}: {name} is in partition {place.partition}, its device's are in {first.partition}"
            )
            found.append(Finding(HOP_PULSAR, ALTERED, (name,), detail))
    return found


def _in_bronze(records: Records) -> list[Finding]:
    stored = {s.place: s.id for s in records.stored}
    counts = Counter(b.place for b in records.bronze)
    found = [
        Finding(HOP_BRONZE, MISSING, (name,), f"{name} at {_at(place)} is not in bronze")
        for place, name in stored.items()
        if place not in counts
    ]
    for place, times in counts.items():
        if times > 1:
            name = stored.get(place, "?")
            found.append(
                Finding(HOP_BRONZE, REPEATED, (name,), f"{name} at {_at(place)} is in bronze {times} times")
            )
    for row in records.bronze:
        there = stored.get(row.place)
        if there is None:
            detail = f"{row.id} at {_at(row.place)} is in bronze and not in Pulsar"
            found.append(Finding(HOP_BRONZE, UNEXPECTED, (row.id,), detail))
        elif there != row.id:
            detail = f"bronze has {row.id} at {_at(row.place)}, where Pulsar has {there}"
            found.append(Finding(HOP_BRONZE, ALTERED, (row.id, there), detail))
    return found


def _in_silver(records: Records) -> list[Finding]:
    fleet = fleet_of(records)
    published = {p.id: p for p in records.published}
    bronze = dict.fromkeys(b.id for b in records.bronze if b.id in published)
    silver = Counter(s.id for s in records.silver if s.device in fleet)
    aside = Counter(q.id for q in records.quarantine if q.device in fleet or q.id in published)
    found = [
        Finding(HOP_SILVER, MISSING, (name,), f"{name} is in bronze, and in neither silver nor quarantine")
        for name in bronze
        if name not in silver and name not in aside
    ]
    found += [
        Finding(HOP_SILVER, REPEATED, (name,), f"{name} is in silver and in quarantine")
        for name in silver
        if name in aside
    ]
    found += repeated(HOP_SILVER, silver, "in silver", fails=True)
    # What has no id cannot be told from its redelivered copy: quarantine may hold one row for each copy in Pulsar.
    places = Counter((q.id, q.place) for q in records.quarantine if q.id in published)
    found += [
        Finding(HOP_SILVER, REPEATED, (name,), f"{name} at {_at(place)} is in quarantine {times} times")
        for (name, place), times in places.items()
        if times > 1
    ]
    found += repeated(HOP_SILVER, Counter(name for name, _ in places), "in quarantine", fails=False)
    found += [
        Finding(HOP_SILVER, UNEXPECTED, (name,), f"{name} is in silver or quarantine and not in bronze")
        for name in (*silver, *aside)
        if name not in bronze
    ]
    return found + _values(records, published)


def _values(records: Records, published: dict[str, Published]) -> list[Finding]:
    found = []
    for row in records.silver:
        sent = published.get(row.id)
        if sent is None:
            continue
        if sent.fault:
            found.append(
                Finding(
                    HOP_SILVER, ALTERED, (row.id,), f"{row.id} has the fault {sent.fault} and is in silver"
                )
            )
        elif sent.value != row.value or sent.device != row.device:
            detail = f"{sent.device} sent {row.id} as {sent.value}, silver has {row.value} of {row.device}"
            found.append(Finding(HOP_SILVER, ALTERED, (row.id,), detail))
    for row in records.quarantine:
        sent = published.get(row.id)
        if sent is not None and not sent.fault:
            found.append(
                Finding(HOP_SILVER, ALTERED, (row.id,), f"{row.id} is a sound reading and is in quarantine")
            )
    return found


def _commands(records: Records) -> list[Finding]:
    fleet = fleet_of(records)
    wanted = wanted_commands(records)
    emitted = [e for e in sorted(records.emitted, key=lambda e: e.place) if e.device in fleet]
    counts = Counter(e.id for e in emitted)
    found = [
        Finding(
            HOP_COMMANDS, MISSING, (name,), f"{rule} on {reading} calls for {name}, which was not emitted"
        )
        for name, (_, rule, reading) in wanted.items()
        if name not in counts
    ]
    found += repeated(HOP_COMMANDS, counts, "on the commands topic", fails=False)
    for e in emitted:
        due = wanted.get(e.id)
        if due is None:
            detail = f"{e.id} ({e.rule} on {e.reading_id}) was emitted, and no rule calls for it"
            found.append(Finding(HOP_COMMANDS, UNEXPECTED, (e.id,), detail))
        elif due != (e.device, e.rule, e.reading_id):
            detail = f"{e.id} says {e.rule} on {e.reading_id} of {e.device}, the rules say {due[1]} on {due[2]} of {due[0]}"
            found.append(Finding(HOP_COMMANDS, ALTERED, (e.id,), detail))
    seq = {p.id: p.seq for p in records.published}
    rank = {e.id: seq[e.reading_id] for e in emitted if e.reading_id in seq}
    return found + out_of_order(
        HOP_COMMANDS, ((e.device, e.id) for e in emitted), rank, "on the commands topic"
    )


def _received(records: Records) -> list[Finding]:
    fleet = fleet_of(records)
    emitted = _first_copies(e for e in records.emitted if e.device in fleet)
    received = sorted(records.received, key=lambda r: (r.device, r.n))
    counts = Counter(r.id for r in received)
    found = [
        Finding(HOP_RECEIVED, MISSING, (name,), f"{name} was emitted and {e.device} did not receive it")
        for name, e in emitted.items()
        if name not in counts
    ]
    found += repeated(HOP_RECEIVED, counts, "received", fails=False)
    for r in received:
        e = emitted.get(r.id)
        if e is None:
            detail = f"{r.device} received {r.id}, which was not emitted"
            found.append(Finding(HOP_RECEIVED, UNEXPECTED, (r.id,), detail))
        elif e.device != r.device:
            found.append(
                Finding(
                    HOP_RECEIVED, ALTERED, (r.id,), f"{r.device} received {r.id}, which is for {e.device}"
                )
            )
    rank = {name: place for place, name in enumerate(emitted)}
    return found + out_of_order(HOP_RECEIVED, ((r.device, r.id) for r in received), rank, "at the device")


def _first_copies(emitted: Iterable[Emitted]) -> dict[str, Emitted]:
    first: dict[str, Emitted] = {}
    for e in sorted(emitted, key=lambda e: e.place):
        first.setdefault(e.id, e)
    return first


def _receipts(records: Records) -> list[Finding]:
    emitted = _first_copies(records.emitted)
    delivered = Counter(r.id for r in records.receipts if r.state in _DELIVERED)
    found = [
        Finding(HOP_RECEIPTS, MISSING, (name,), f"{name} was emitted and has no receipt of its delivery")
        for name in emitted
        if name not in delivered
    ]
    found += repeated(HOP_RECEIPTS, delivered, "in the receipts as delivered", fails=False)
    for r in records.receipts:
        e = emitted.get(r.id)
        if e is None:
            detail = f"there is a receipt for {r.id}, which was not emitted"
            found.append(Finding(HOP_RECEIPTS, UNEXPECTED, (r.id,), detail))
        elif e.device != r.device:
            detail = f"the receipt of {r.id} names {r.device}, the command is for {e.device}"
            found.append(Finding(HOP_RECEIPTS, ALTERED, (r.id,), detail))
    return found


def _at(place: Place) -> str:
    return (
        f"{place.topic.rsplit('/', 1)[-1]}-{place.partition}:{place.ledger}:{place.entry}:{place.batch_index}"
    )
