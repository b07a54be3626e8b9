"""The alert rules, free of Spark: a device's readings in, alerts and the new state out.

It decides which readings make a command and what the command says. A reading is judged against the one before it by
the device's own time. One that comes later than a newer one of its device is not judged: an alert about the past
helps nobody, and the newer reading was judged already. Which rows are seen, in which batch, and where the state lives
are left to ``streaming.alerts``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from bridge.errors import ConfigError

__all__ = ["Alert", "AlertRule", "Reading", "command_id", "command_payload", "judge", "load_rules"]


class AlertRule(BaseModel):
    """A rule on one metric. ``below`` needs ``limit``; ``falling`` needs ``per_minute``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(min_length=1, pattern=r"^[^|]+$", description="Name in the command's id and payload.")
    metric: str = Field(description="Metric whose readings it looks at.")
    kind: Literal["below", "falling"] = Field(description="What it looks for.")
    limit: float | None = Field(None, description="below: the value that a reading must not go under.")
    per_minute: float | None = Field(None, gt=0, description="falling: the drop per minute that is too fast.")
    within_minutes: float = Field(
        15.0, gt=0, description="falling: oldest reading to compare with, in minutes."
    )
    message: str = Field("{metric} of {device} is {value}", description="Text for the device.")
    expires_s: float | None = Field(
        3600.0, gt=0, description="How long the command is worth pushing, in seconds."
    )

    @model_validator(mode="after")
    def _complete(self) -> AlertRule:
        if self.kind == "below" and self.limit is None:
            raise ValueError("a rule of kind below needs limit")
        if self.kind == "falling" and self.per_minute is None:
            raise ValueError("a rule of kind falling needs per_minute")
        sample = Reading("d", "m", "r", datetime(2000, 1, 1), 1.0)
        try:
            self.text(sample, None)
        except (KeyError, IndexError, ValueError) as e:
            raise ValueError(f"message names what is not there: {e}") from e
        return self

    def text(self, reading: Reading, previous: Reading | None) -> str:
        """Return the message for a reading."""
        rate = 0.0 if previous is None else _drop_per_minute(previous, reading)
        return self.message.format(
            device=reading.device,
            metric=reading.metric,
            value=_number(reading.value),
            unit=reading.unit or "",
            limit="" if self.limit is None else _number(self.limit),
            rate=_number(round(rate, 2)),
            previous="" if previous is None else _number(previous.value),
        )


@dataclass(frozen=True)
class Reading:
    """A deduplicated reading of silver. ``event_time`` is UTC without a zone."""

    device: str
    metric: str
    reading_id: str
    event_time: datetime
    value: float
    unit: str | None = None

    @property
    def order(self) -> tuple[datetime, str]:
        """The order of a device's readings: its own time, then the id, so that it never depends on arrival."""
        return (self.event_time, self.reading_id)


@dataclass(frozen=True)
class Alert:
    """A rule that fired on a reading."""

    rule: AlertRule
    reading: Reading
    message: str

    @property
    def command_id(self) -> str:
        """Identity of the command: the same whenever the same reading fires the same rule (H19)."""
        return command_id(self.rule.name, self.reading.device, self.reading.reading_id)


def load_rules(path: Path) -> tuple[AlertRule, ...]:
    """Read the alert rules of a rules file. Raises ConfigError naming the file and all problems."""
    try:
        body = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as e:
        raise ConfigError(f"rules file {path}: {e}", remedy="see conf/rules.yaml for an example") from e
    entries = body.get("alerts", []) if isinstance(body, dict) else []
    rules: list[AlertRule] = []
    problems: list[str] = []
    for n, entry in enumerate(entries or ()):
        try:
            rules.append(AlertRule.model_validate(entry))
        except ValidationError as e:
            problems += [f"alerts[{n}].{'.'.join(map(str, p['loc']))}: {p['msg']}" for p in e.errors()]
    names = [rule.name for rule in rules]
    problems += [f"two rules are named {name!r}" for name in sorted({n for n in names if names.count(n) > 1})]
    if problems:
        raise ConfigError(f"rules file {path}: " + "; ".join(problems), remedy="correct the rules")
    return tuple(rules)


def command_id(rule: str, device: str, reading_id: str) -> str:
    """Return the id of the command that a rule makes of a reading."""
    return hashlib.sha256(f"{rule}|{device}|{reading_id}".encode()).hexdigest()[:32]


def command_payload(alert: Alert) -> bytes:
    """Return what the device gets: the same bytes whenever the same reading fires the same rule."""
    reading = alert.reading
    body: Mapping[str, Any] = {
        "command_id": alert.command_id,
        "rule": alert.rule.name,
        "device": reading.device,
        "reading_id": reading.reading_id,
        "value": reading.value,
        "message": alert.message,
        "ts": reading.event_time.replace(tzinfo=timezone.utc).isoformat().replace("+00:00", "Z"),
    }
    return json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode()


def judge(
    rules: Iterable[AlertRule], previous: Reading | None, readings: Iterable[Reading]
) -> tuple[list[Alert], Reading | None]:
    """Judge new readings of one device and metric in their own order; return the alerts and the newest reading."""
    rules = tuple(rules)
    alerts = []
    for reading in sorted(readings, key=lambda r: r.order):
        if previous is not None and reading.order <= previous.order:
            continue
        alerts += [
            Alert(rule, reading, rule.text(reading, previous))
            for rule in rules
            if rule.metric == reading.metric and _fires(rule, previous, reading)
        ]
        previous = reading
    return alerts, previous


def _fires(rule: AlertRule, previous: Reading | None, reading: Reading) -> bool:
    if rule.kind == "below":
        limit = rule.limit or 0.0
        return reading.value < limit and (previous is None or previous.value >= limit)
    if previous is None or reading.event_time - previous.event_time > timedelta(minutes=rule.within_minutes):
        return False
    return _drop_per_minute(previous, reading) > (rule.per_minute or 0.0)


def _drop_per_minute(previous: Reading, reading: Reading) -> float:
    minutes = (reading.event_time - previous.event_time).total_seconds() / 60
    return (previous.value - reading.value) / minutes if minutes > 0 else 0.0


def _number(value: float) -> str:
    return f"{value:.10g}"
