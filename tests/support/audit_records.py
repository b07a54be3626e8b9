"""The records of a small run, made without any server: everything is as it must be."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from pulsebridge.audit.records import (
    Ack,
    Emitted,
    Position,
    Published,
    ReceiptRow,
    Received,
    Records,
    Stored,
    TableRow,
)
from pulsebridge.audit.rules import Rule, calls_of

RULES = (
    Rule("low", "glucose", "below", limit=70),
    Rule("falling", "glucose", "falling", per_minute=3, within_s=900),
)
START = datetime(2010, 3, 24, 9, 51)
READINGS = "persistent://public/pulsebridge/wearables"
COMMANDS = "persistent://public/pulsebridge-system/commands"


def whole_run(values: Sequence[Sequence[float]], *, faults: int = 1) -> Records:
    """Records of a run in which device number i sent ``values[i]``, and each device ``faults`` faults at its end."""
    published, acks, stored, emitted, received, receipts, measurements, quarantine = ([] for _ in range(8))
    commands = 0
    for number, sent in enumerate(values):
        device = f"cgm-{number:03d}"
        for seq in range(len(sent) + faults):
            fault = "" if seq < len(sent) else "implausible"
            name = f"{device}-{'x' if fault else ''}{seq:05d}"
            ts = START + timedelta(minutes=5 * seq)
            value = None if fault else float(sent[seq])
            us = 1_000_000 * (seq + 1) + number
            published.append(Published(name, device, "glucose", seq, ts.isoformat(), value, fault, us))
            acks.append(Ack(name, device, us + 10))
            position = Position(READINGS, number % 2, 7, 100 * seq + number, 0)
            stored.append(Stored(name, device, position, us + 8))
            (quarantine if fault else measurements).append(TableRow(name, position, us + 900_000, device, value))
        called = calls_of(RULES, [p for p in published if p.device == device])
        for n, (name, call) in enumerate(sorted(called.items(), key=lambda c: c[1].reading_id), 1):
            position = Position(COMMANDS, number % 2, 3, 1000 * n + number, -1)
            emitted.append(Emitted(name, device, call.reading_id, call.rule, position, 5_000_000 * n))
            received.append(Received(name, device, n, 6_000_000 * n))
            receipts.append(ReceiptRow(name, device, "delivered", 6_000_001 * n))
            commands += 1
    return Records(
        published=tuple(published),
        acks=tuple(acks),
        received=tuple(received),
        stored=tuple(stored),
        emitted=tuple(emitted),
        receipts=tuple(receipts),
        bronze=tuple(TableRow(s.id, s.position, s.us + 500_000, s.device) for s in stored),
        measurements=tuple(measurements),
        quarantine=tuple(quarantine),
        alerts=tuple(TableRow(e.id, e.position, e.us, e.device) for e in emitted),
        calls=calls_of(RULES, published),
        expected={"readings": sum(map(len, values)), "faults": faults * len(values), "commands": commands},
    )
