"""Which commands a device's readings call for: the alert rules computed again, in plain Python. Pure.

It shares nothing with the job in Spark but the rules file and what that file says in words: a rule looks at a
device's readings of its metric in the order of the device's time. ``below`` fires when a reading is under the
limit and the one before was not, or there was none; ``falling`` when the value drops by more than ``per_minute``
a minute since the reading before, unless that is longer ago than ``within_minutes`` (or at the same time).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

from bridge.errors import ConfigError

__all__ = ["Rule", "Sample", "command_id", "expected_commands", "load_rules", "read_rules"]

_NOT_RECOMPUTED: Final = {"clear", "for_minutes", "over_minutes", "tell_cleared"}


@dataclass(frozen=True, slots=True)
class Rule:
    """One alert rule, as far as it decides when a command is due."""

    name: str
    metric: str
    kind: str
    limit: float = 0.0
    per_minute: float = 0.0
    within_minutes: float = 0.0


class Sample(NamedTuple):
    """One reading as its device journalled it."""

    reading_id: str
    ts: datetime
    value: float


def command_id(rule: str, device: str, reading_id: str) -> str:
    """Return the identity of a command: the same each time the same reading breaks the same rule."""
    return hashlib.sha256(f"{rule}|{device}|{reading_id}".encode()).hexdigest()[:32]


def load_rules(path: Path) -> list[Rule]:
    """Read the alert rules of a rules file. Raises ConfigError for a kind that the audit does not know."""
    return read_rules(yaml.safe_load(path.read_text(encoding="utf-8")), str(path))


def read_rules(body: Mapping[str, Any], origin: str) -> list[Rule]:
    """Return the alert rules of a rules file's content. Raises ConfigError for a kind that is not known here."""
    rules = []
    for entry in body.get("alerts", ()):
        if entry["kind"] not in ("below", "falling"):
            raise ConfigError(
                f"{origin}: alert {entry['name']} has kind {entry['kind']!r}, which the audit cannot recompute",
                remedy="use below or falling, or teach pulsebridge.audit.expected the new kind",
            )
        unknown = sorted(_NOT_RECOMPUTED & entry.keys())
        if unknown:
            raise ConfigError(
                f"{origin}: alert {entry['name']} has {', '.join(unknown)}, which the audit cannot recompute",
                remedy="take that out, or teach pulsebridge.audit.expected what it means",
            )
        rules.append(
            Rule(
                entry["name"],
                entry["metric"],
                entry["kind"],
                float(entry.get("limit", 0)),
                float(entry.get("per_minute", 0)),
                float(entry.get("within_minutes", 0)),
            )
        )
    return rules


def expected_commands(
    rules: Iterable[Rule], device: str, metric: str, samples: Sequence[Sample]
) -> dict[str, tuple[str, str]]:
    """Return every command that these readings of one device call for: command id → (rule, reading id)."""
    ordered = sorted(samples, key=lambda s: (s.ts, s.reading_id))
    found: dict[str, tuple[str, str]] = {}
    for rule in rules:
        if rule.metric != metric:
            continue
        previous: Sample | None = None
        for sample in ordered:
            if _fires(rule, previous, sample):
                found[command_id(rule.name, device, sample.reading_id)] = (rule.name, sample.reading_id)
            previous = sample
    return found


def _fires(rule: Rule, previous: Sample | None, sample: Sample) -> bool:
    if rule.kind == "below":
        return sample.value < rule.limit and (previous is None or previous.value >= rule.limit)
    if previous is None:
        return False
    minutes = (sample.ts - previous.ts).total_seconds() / 60
    return 0 < minutes <= rule.within_minutes and previous.value - sample.value > rule.per_minute * minutes
