"""The alert rules of the rules file: what they may say, and what the commands say that they make.

Pure, but for reading the file. Which readings make an alert is decided by ``streaming.judging``; which rows are seen,
in which batch, and where the state lives are left to ``streaming.alerts``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from bridge.errors import ConfigError

__all__ = ["Alert", "AlertRule", "Reading", "command_id", "command_payload", "load_rules"]

Kind = Literal["below", "above", "falling", "rising", "silence"]

_NEEDED: Final[dict[str, tuple[str, ...]]] = {
    "below": ("metric", "limit"),
    "above": ("metric", "limit"),
    "falling": ("metric", "per_minute"),
    "rising": ("metric", "per_minute"),
    "silence": ("after_minutes",),
}
_ONLY_FOR: Final[dict[str, tuple[str, ...]]] = {
    "clear": ("below", "above", "falling", "rising"),
    "for_minutes": ("below", "above"),
    "over_minutes": ("falling", "rising"),
    "after_minutes": ("silence",),
}
_THRESHOLDS: Final = ("below", "above")
_RATES: Final = ("falling", "rising")


class AlertRule(BaseModel):
    """A rule on the readings of a device: a threshold, a rate of change, or silence."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(min_length=1, pattern=r"^[^|]+$", description="Name in the command's id and payload.")
    metric: str | None = Field(
        None,
        min_length=1,
        description="Metric whose readings it looks at; silence: of any metric without it.",
    )
    kind: Kind = Field(description="What it looks for.")
    limit: float | None = Field(
        None, allow_inf_nan=False, description="below, above: the value that a reading must not go beyond."
    )
    clear: float | None = Field(
        None,
        allow_inf_nan=False,
        description="Where an alert is over: the value of below and above (default: limit), the rate of falling and "
        "rising with over_minutes (default: per_minute).",
    )
    for_minutes: float = Field(
        0.0,
        ge=0,
        description="below, above: how long readings must be beyond the limit, by the device's time.",
    )
    per_minute: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="falling, rising: the change per minute that is too fast.",
    )
    within_minutes: float = Field(
        15.0, gt=0, description="falling, rising: oldest reading before that is compared with, in minutes."
    )
    over_minutes: float | None = Field(
        None, gt=0, le=1440, description="falling, rising: time over which the change is taken, in minutes."
    )
    after_minutes: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="silence: how long nothing must have come, in minutes."
    )
    tell_cleared: bool | None = Field(
        None, description="Whether the end of an alert makes a command, too; default: for silence alone."
    )
    message: str | None = Field(None, description="Text for the device.")
    cleared_message: str | None = Field(None, description="Text for the device when the alert is over.")
    expires_s: float | None = Field(
        3600.0, gt=0, description="How long the command is worth pushing, in seconds."
    )

    @model_validator(mode="after")
    def _complete(self) -> AlertRule:
        for name in _NEEDED[self.kind]:
            if getattr(self, name) is None:
                raise ValueError(f"{name}: a rule of kind {self.kind} needs {name}")
        for name, kinds in _ONLY_FOR.items():
            if name in self.model_fields_set and self.kind not in kinds:
                raise ValueError(f"{name}: is for {' and '.join(kinds)}, take it out of this {self.kind}")
        self._check_clear()
        sample = Reading("d", self.metric or "m", "r", datetime(2000, 1, 1), 1.0)
        for field, cleared in (("message", False), ("cleared_message", True)):
            try:
                self.text(sample, None, cleared=cleared)
            except (KeyError, IndexError, ValueError, AttributeError) as e:
                raise ValueError(
                    f"{field}: message names what is not there: {e}; there is {{device}} {{metric}} {{value}} "
                    "{unit} {limit} {clear} {rate} {previous} {minutes}"
                ) from e
        return self

    def _check_clear(self) -> None:
        if not self.lasts and (
            "clear" in self.model_fields_set or self.tell_cleared or self.cleared_message is not None
        ):
            raise ValueError(
                f"clear: {self.kind} from one reading to the next is told each time and is never over, "
                "add over_minutes, or take out clear, tell_cleared and cleared_message"
            )
        if self.clear is None:
            return
        if self.kind == "below" and self.limit is not None and self.clear < self.limit:
            raise ValueError(
                f"clear: {self.clear:g} is below limit {self.limit:g}, give one that is not: the alert of below is "
                "over at clear and more"
            )
        if self.kind == "above" and self.limit is not None and self.clear > self.limit:
            raise ValueError(
                f"clear: {self.clear:g} is above limit {self.limit:g}, give one that is not: the alert of above is "
                "over at clear and less"
            )
        if self.kind in _RATES and self.per_minute is not None and self.clear > self.per_minute:
            raise ValueError(
                f"clear: {self.clear:g} is more than per_minute {self.per_minute:g}, give one that is not: the alert "
                "is over at a rate of clear and less"
            )

    @property
    def lasts(self) -> bool:
        """Whether an alert is told once and goes on until it is over; otherwise each reading may be one."""
        return self.kind not in _RATES or self.over_minutes is not None

    @property
    def tells_cleared(self) -> bool:
        """Whether the end of an alert makes a command."""
        return self.kind == "silence" if self.tell_cleared is None else self.tell_cleared

    @property
    def sign(self) -> int:
        """1 where more is worse, -1 where less is."""
        return 1 if self.kind in ("above", "rising") else -1

    def looks_at(self, reading: Reading) -> bool:
        """Whether the reading is of the rule's metric, or the rule of any."""
        return self.metric is None or self.metric == reading.metric

    def text(
        self,
        reading: Reading,
        previous: Reading | None,
        *,
        rate: float | None = None,
        minutes: float = 0.0,
        cleared: bool = False,
    ) -> str:
        """Return the message for a reading. ``rate``: per minute, over the rule's time; ``minutes``: of silence."""
        if rate is None:
            rate = 0.0 if previous is None else _per_minute(previous, reading)
            rate = rate if self.kind == "rising" else -rate
        return self._template(cleared).format(
            device=reading.device,
            metric=reading.metric,
            value=_number(reading.value),
            unit=reading.unit or "",
            limit="" if self.limit is None else _number(self.limit),
            clear=_number(self.limit or 0.0 if self.clear is None else self.clear),
            rate=_number(round(rate, 2) + 0.0),
            previous="" if previous is None else _number(previous.value),
            minutes=_number(round(minutes, 1)),
        )

    def _template(self, cleared: bool) -> str:
        if cleared and self.cleared_message is not None:
            return self.cleared_message
        if not cleared and self.message is not None:
            return self.message
        if self.kind != "silence":
            return "{metric} of {device} is {value}" + (" again" if cleared else "")
        of = "{device}" if self.metric is None else "{metric} of {device}"
        return of + (
            " comes again, after {minutes} minutes" if cleared else ": nothing for {minutes} minutes"
        )


@dataclass(frozen=True)
class Reading:
    """A deduplicated reading of silver. ``event_time`` is UTC without a zone."""

    device: str
    metric: str
    reading_id: str
    event_time: datetime
    value: float | None
    unit: str | None = None
    arrived_us: int = 0
    """When ingest took it, in µs since the epoch."""
    command_topic: str | None = None
    """Where its device takes commands."""

    @property
    def order(self) -> tuple[datetime, str]:
        """The order of a device's readings: its own time, then the id, so that it never depends on arrival."""
        return (self.event_time, self.reading_id)


@dataclass(frozen=True)
class Alert:
    """A rule that fired on a reading, or whose alert is over with it. Of silence it is the last one that came."""

    rule: AlertRule
    reading: Reading
    message: str
    cleared: bool = False

    @property
    def command_id(self) -> str:
        """Identity of the command: the same whenever the same reading fires the same rule (H19)."""
        return command_id(self.rule.name, self.reading.device, self.reading.reading_id, cleared=self.cleared)

    @property
    def state(self) -> str:
        """``raised`` or ``cleared``."""
        return "cleared" if self.cleared else "raised"


def load_rules(path: Path) -> tuple[AlertRule, ...]:
    """Read the alert rules of a rules file. Raises ConfigError naming the file and all problems."""
    try:
        body = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as e:
        raise ConfigError(f"rules file {path}: {e}", remedy="see conf/rules.yaml for an example") from e
    entries = body.get("alerts") if isinstance(body, dict) else None
    if not isinstance(entries or (), (list, tuple)):
        raise ConfigError(
            f"rules file {path}: alerts is no list", remedy="see conf/rules.yaml for an example"
        )
    rules: list[AlertRule] = []
    problems: list[str] = []
    for n, entry in enumerate(entries or ()):
        try:
            rules.append(AlertRule.model_validate(entry))
        except ValidationError as e:
            named = f" (rule {entry['name']})" if isinstance(entry, dict) and entry.get("name") else ""
            problems += [_problem(f"alerts[{n}]", named, p["loc"], p["msg"]) for p in e.errors()]
    names = [rule.name for rule in rules]
    problems += [f"two rules are named {name!r}" for name in sorted({n for n in names if names.count(n) > 1})]
    if problems:
        raise ConfigError(
            f"rules file {path}: " + "; ".join(problems),
            remedy="correct the rules, conf/rules.yaml says what each kind takes",
        )
    return tuple(rules)


def _problem(place: str, named: str, loc: tuple[int | str, ...], text: str) -> str:
    """Return one problem: place and field, the rule's name, and what is wrong."""
    text = text.removeprefix("Value error, ")
    if not loc:  # of the whole rule: the text begins with the field
        field, _, text = text.partition(": ")
        loc = (field,)
    return f"{place}.{'.'.join(map(str, loc))}{named}: {text}"


def command_id(rule: str, device: str, reading_id: str, *, cleared: bool = False) -> str:
    """Return the id of the command that a rule makes of a reading, or of its alert being over with it."""
    # No rule's name has a bar, or is empty, so none of the one kind is one of the other.
    text = f"|cleared|{rule}|{device}|{reading_id}" if cleared else f"{rule}|{device}|{reading_id}"
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def command_payload(alert: Alert) -> bytes:
    """Return what the device gets: the same bytes whenever the same reading fires the same rule."""
    reading = alert.reading
    body: Mapping[str, Any] = {
        "command_id": alert.command_id,
        "rule": alert.rule.name,
        "state": alert.state,
        "device": reading.device,
        "reading_id": reading.reading_id,
        "value": reading.value,
        "message": alert.message,
        "ts": reading.event_time.replace(tzinfo=timezone.utc).isoformat().replace("+00:00", "Z"),
    }
    return json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode()


def _per_minute(previous: Reading, reading: Reading) -> float:
    minutes = (reading.event_time - previous.event_time).total_seconds() / 60
    if minutes <= 0 or reading.value is None or previous.value is None:
        return 0.0
    return (reading.value - previous.value) / minutes


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.10g}"
