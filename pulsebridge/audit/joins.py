"""Compares the records hop by hop and names every message that is not as it must be. Pure.

1. What was expected was published, and every publish was acknowledged.
2. Every acknowledged id is in Pulsar, the first copies of each device in the order in which it sent them.
3. Bronze has every message of Pulsar once, at its position, unchanged.
4. Every id of bronze is in exactly one of silver and quarantine, once, with the value that the device sent.
5. The emitted commands are those that the rules call for.
6. Every emitted command reached its device, in the order of the commands topic, and has a receipt.

Redelivered copies in Pulsar, on the commands topic and at the devices are counted and do not fail the audit, since
delivery is at least once there. Without journals (a live audit) 1, the order in 2 and 5, and the arrival at the device
in 6 are not compared. Messages of devices without a journal are compared up to bronze.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Hashable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from pulsebridge.audit.records import Emitted, Position, Records

__all__ = ["Finding", "Hop", "Kind", "findings"]


class Hop:
    """A step of the way between two records."""

    SIZE: Final = "the run"
    ACK: Final = "published → acknowledged"
    PULSAR: Final = "acknowledged → Pulsar"
    BRONZE: Final = "Pulsar → bronze"
    SILVER: Final = "bronze → silver or quarantine"
    COMMANDS: Final = "readings → commands emitted"
    RECEIVED: Final = "commands emitted → received"
    RECEIPTS: Final = "commands emitted → receipts"


class Kind:
    """What is wrong with a message. ALTERED: it differs from the record before it; UNEXPECTED: there is none before it."""

    MISSING: Final = "missing"
    REPEATED: Final = "repeated"
    OUT_OF_ORDER: Final = "out of order"
    ALTERED: Final = "altered"
    UNEXPECTED: Final = "unexpected"
    SHORT: Final = "short"


_DELIVERED: Final = ("delivered", "answered")


class Finding(NamedTuple):
    """One thing that the audit found. ``fails`` is False for copies that at-least-once delivery allows."""

    hop: str
    kind: str
    records: tuple[str, ...]
    detail: str
    fails: bool = True


def findings(records: Records) -> list[Finding]:
    """Return all that is missing, repeated, altered, unexpected or out of order, hop by hop."""
    found = [] if records.expected is None else _size(records, records.expected)
    if records.journalled:
        found += [*_acknowledged(records), *_in_pulsar(records)]
    found += [*_in_bronze(records), *_in_silver(records), *_values(records), *_commands(records)]
    if records.journalled:
        found += _received(records)
    return found + _receipts(records)


# --- one comparison each ------------------------------------------------------------------------------------


def _missing(hop: str, due: Iterable[str], have: Container[str], what: str) -> list[Finding]:
    return [Finding(hop, Kind.MISSING, (name,), f"{name} {what}") for name in due if name not in have]


def _unexpected(hop: str, have: Iterable[str], due: Container[str], what: str) -> list[Finding]:
    return [Finding(hop, Kind.UNEXPECTED, (name,), f"{name} {what}") for name in have if name not in due]


def _repeated(hop: str, keys: Counter[Any], what: str, *, fails: bool) -> list[Finding]:
    """``keys`` are ids, or (id, position)."""
    found = []
    for key, times in keys.items():
        if times > 1:
            name, at = (key, "") if isinstance(key, str) else (key[0], f" at {key[1]}")
            found.append(Finding(hop, Kind.REPEATED, (name,), f"{name}{at} is {what} {times} times", fails))
    return found


def _altered(
    hop: str, rows: Iterable[tuple[str, Hashable, Hashable]], where: str, before: str
) -> list[Finding]:
    """``rows`` are (id, what the record says, what the record before it says)."""
    return [
        Finding(hop, Kind.ALTERED, (name,), f"{name} is {says!r} {where}, {due!r} {before}")
        for name, says, due in rows
        if says != due
    ]


def _disordered(
    hop: str, arrivals: Iterable[tuple[str, str]], rank: Mapping[str, int], where: str
) -> list[Finding]:
    """``arrivals`` are (device, id) in the order of arrival; only the first copy of an id counts."""
    highest: dict[str, tuple[int, str]] = {}
    found = []
    for device, name in dict.fromkeys(arrivals):
        if name not in rank:
            continue
        top = highest.get(device)
        if top is not None and rank[name] < top[0]:
            detail = f"{device}: {name} comes after {top[1]} {where}"
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
            Finding(Hop.SIZE, Kind.SHORT, ("readings",), "no reading is expected: nothing would be proven")
        )
    return found


def _acknowledged(records: Records) -> list[Finding]:
    sent, acks = records.sent, Counter(a.id for a in records.acks)
    published = Counter(p.id for p in records.published)
    rank = {name: p.seq for name, p in sent.items()}
    return [
        *_missing(Hop.ACK, sent, acks, "was published and never acknowledged"),
        *_unexpected(Hop.ACK, acks, sent, "was acknowledged and never published"),
        *_repeated(Hop.ACK, published, "journalled as published", fails=True),
        *_repeated(Hop.ACK, acks, "journalled as acknowledged", fails=True),
        # MQTT-4.6.0-2: PUBACKs come in the order of the PUBLISHes.
        *_disordered(
            Hop.ACK, ((a.device, a.id) for a in records.acks), rank, "in the device's acknowledgements"
        ),
    ]


def _in_pulsar(records: Records) -> list[Finding]:
    sent = records.sent
    stored = [s for s in sorted(records.stored, key=lambda s: s.position) if s.device in records.devices]
    counts = Counter(s.id for s in stored)
    acked = dict.fromkeys(a.id for a in records.acks)
    rank = {name: p.seq for name, p in sent.items()}
    devices = ((s.id, s.device, sent[s.id].device) for s in stored if s.id in sent)
    # The order of a device holds within one partition only.
    home: dict[tuple[str, str], int] = {}
    partitions = [
        (s.id, s.position.partition, home.setdefault((s.device, s.position.topic), s.position.partition))
        for s in stored
    ]
    return [
        *_missing(Hop.PULSAR, acked, counts, "was acknowledged and is not in Pulsar"),
        *_unexpected(Hop.PULSAR, counts, sent, "is in Pulsar and no device published it"),
        *_altered(Hop.PULSAR, devices, "in Pulsar", "in the journal"),
        *_altered(Hop.PULSAR, partitions, "as its partition", "is its device's"),
        *_repeated(Hop.PULSAR, counts, "in Pulsar", fails=False),
        *_disordered(Hop.PULSAR, ((s.device, s.id) for s in stored), rank, "in Pulsar"),
    ]


def _in_bronze(records: Records) -> list[Finding]:
    stored = {s.position: s.id for s in records.stored}
    bronze = Counter(b.position for b in records.bronze)
    found = [
        Finding(Hop.BRONZE, Kind.MISSING, (name,), f"{name} at {position} is not in bronze")
        for position, name in stored.items()
        if position not in bronze
    ]
    again = Counter[tuple[str, Position]]()
    for row in records.bronze:
        name = stored.get(row.position)
        again[name or row.id, row.position] += 1
        if name is None:
            detail = f"{row.id} at {row.position} is in bronze and not in Pulsar"
            found.append(Finding(Hop.BRONZE, Kind.UNEXPECTED, (row.id,), detail))
        elif name != row.id:
            detail = f"bronze has {row.id} at {row.position}, where Pulsar has {name}"
            found.append(Finding(Hop.BRONZE, Kind.ALTERED, (row.id, name), detail))
    return found + _repeated(Hop.BRONZE, again, "in bronze", fails=True)


def _in_silver(records: Records) -> list[Finding]:
    def known(name: str) -> bool:
        return not records.journalled or name in records.sent

    bronze = dict.fromkeys(b.id for b in records.bronze if known(b.id))
    silver = Counter(s.id for s in records.silver if s.device in records.devices or known(s.id))
    aside = [q for q in records.quarantine if q.device in records.devices or known(q.id)]
    quarantine = dict.fromkeys(q.id for q in aside)
    either = {**silver, **quarantine}
    # A message without an id cannot be told from its redelivered copy: quarantine may have one row for each copy.
    places = Counter((q.id, q.position) for q in aside)
    return [
        *_missing(Hop.SILVER, bronze, either, "is in bronze, not in silver or quarantine"),
        *_unexpected(Hop.SILVER, either, bronze, "is in silver or quarantine, not in bronze"),
        *(
            Finding(Hop.SILVER, Kind.REPEATED, (name,), f"{name} is in silver and in quarantine")
            for name in quarantine
            if name in silver
        ),
        *_repeated(Hop.SILVER, silver, "in silver", fails=True),
        *_repeated(Hop.SILVER, places, "in quarantine", fails=True),
        *_repeated(Hop.SILVER, Counter(name for name, _ in places), "in quarantine", fails=False),
    ]


def _values(records: Records) -> list[Finding]:
    sent = records.sent
    silver = [(s, sent[s.id]) for s in records.silver if s.id in sent]
    sound = [q.id for q in records.quarantine if q.id in sent and not sent[q.id].fault]
    return [
        *_altered(
            Hop.SILVER,
            ((s.id, (s.device, s.value), (p.device, p.value)) for s, p in silver if not p.fault),
            "in silver",
            "in the journal",
        ),
        *_altered(
            Hop.SILVER,
            ((s.id, "sound", p.fault) for s, p in silver if p.fault),
            "by silver",
            "by the journal",
        ),
        *_altered(
            Hop.SILVER, ((name, "faulty", "sound") for name in sound), "by quarantine", "by the journal"
        ),
    ]


def _commands(records: Records) -> list[Finding]:
    emitted = [e for e in sorted(records.emitted, key=lambda e: e.position) if e.device in records.devices]
    counts = Counter(e.id for e in emitted)
    found = _repeated(Hop.COMMANDS, counts, "on the commands topic", fails=False)
    if records.calls is not None:
        calls = records.calls
        says = (
            (e.id, (e.device, e.rule, e.reading_id), tuple(calls[e.id])) for e in emitted if e.id in calls
        )
        found += [
            *_missing(Hop.COMMANDS, calls, counts, "is called for by the rules and was not emitted"),
            *_unexpected(Hop.COMMANDS, counts, calls, "was emitted and no rule calls for it"),
            *_altered(Hop.COMMANDS, says, "on the commands topic", "by the rules"),
        ]
    sent = records.sent
    rank = {e.id: sent[e.reading_id].seq for e in emitted if e.reading_id in sent}
    arrivals = ((e.device, e.id) for e in emitted)
    return found + _disordered(Hop.COMMANDS, arrivals, rank, "on the commands topic")


def _received(records: Records) -> list[Finding]:
    emitted = _first_copies(e for e in records.emitted if e.device in records.devices)
    received = sorted(records.received, key=lambda r: (r.device, r.n))
    counts = Counter(r.id for r in received)
    devices = ((r.id, r.device, emitted[r.id].device) for r in received if r.id in emitted)
    rank = {name: n for n, name in enumerate(emitted)}
    return [
        *_missing(Hop.RECEIVED, emitted, counts, "was emitted and its device did not receive it"),
        *_unexpected(Hop.RECEIVED, counts, emitted, "was received and not emitted"),
        *_altered(Hop.RECEIVED, devices, "where it was received", "on the commands topic"),
        *_repeated(Hop.RECEIVED, counts, "received", fails=False),
        *_disordered(Hop.RECEIVED, ((r.device, r.id) for r in received), rank, "at the device"),
    ]


def _receipts(records: Records) -> list[Finding]:
    emitted = _first_copies(records.emitted)
    delivered = Counter(r.id for r in records.receipts if r.state in _DELIVERED)
    devices = ((r.id, r.device, emitted[r.id].device) for r in records.receipts if r.id in emitted)
    names = dict.fromkeys(r.id for r in records.receipts)
    return [
        *_missing(Hop.RECEIPTS, emitted, delivered, "was emitted and has no receipt of its delivery"),
        *_unexpected(Hop.RECEIPTS, names, emitted, "has a receipt and was not emitted"),
        *_altered(Hop.RECEIPTS, devices, "in the receipts", "on the commands topic"),
        *_repeated(Hop.RECEIPTS, delivered, "in the receipts as delivered", fails=False),
    ]


def _first_copies(emitted: Iterable[Emitted]) -> dict[str, Emitted]:
    first: dict[str, Emitted] = {}
    for e in sorted(emitted, key=lambda e: e.position):
        first.setdefault(e.id, e)
    return first
