"""The alert rules of the rules file, and the fields of each kind.

``streaming.evaluation`` decides which readings raise an alert, ``streaming.alerts`` which rows a rule evaluates.
"""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import Any, Final, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from bridge.errors import ConfigError
from bridge.settings.units import Duration

__all__ = ["FIELD", "READINGS", "WHOLE", "AlertRule", "Sql", "load_rules"]

Kind = Literal["below", "above", "falling", "rising", "silence", "sql"]

READINGS: Final = "readings"
"""The default table of rules, with a row for each metric."""
WHOLE: Final = ""
"""The series of a rule without metric and column: the rows themselves."""
FIELD: Final = re.compile(r"\{(\w+)\}")
"""A field in a text of the user. Braces around other text are not fields, so JSON needs no escapes."""
_NEEDED: Final[dict[str, tuple[str, ...]]] = {
    "below": ("limit",),
    "above": ("limit",),
    "falling": ("per_minute",),
    "rising": ("per_minute",),
    "silence": ("after",),
    "sql": ("condition",),
}
_ONLY_FOR: Final[dict[str, tuple[str, ...]]] = {
    "column": ("below", "above", "falling", "rising", "silence"),
    "limit": ("below", "above"),
    "per_minute": ("falling", "rising"),
    "within": ("falling", "rising"),
    "clear": ("below", "above", "falling", "rising"),
    "for_": ("below", "above"),
    "over": ("falling", "rising"),
    "after": ("silence",),
    "condition": ("sql",),
    "every": ("sql",),
}
_RATES: Final = ("falling", "rising")
MESSAGE_FIELDS: Final = ("device", "metric", "value", "unit", "limit", "clear", "rate", "previous", "minutes")
"""Fields of the texts for operators."""
_OWN_TEXTS: Final = ("payload", "to", "command_topic")
_TEXT_FIELDS: Final = (
    "rule", "state", "device", "metric", "value", "unit", "limit", "message", "reading_id", "event_time", "command_id"
)  # fmt: skip
_CALL: Final = re.compile(r"\s*\w+\(.*\)\s*", re.DOTALL)


class Sql(BaseModel):
    """An SQL expression over the columns of the rule's table."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    sql: str = Field(min_length=1)
    """The expression."""


class AlertRule(BaseModel):
    """A rule on the messages of a device: a threshold, a rate of change, silence, or an SQL condition."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(min_length=1, pattern=r"^[^|]+$")
    """Name in the command's id and payload."""
    kind: Kind
    """Kind of the condition."""
    table: str = Field(READINGS, min_length=1)
    """Table of the pipeline whose rows it evaluates."""
    metric: str | None = Field(None, min_length=1)
    """Metric whose rows it evaluates, of a table with a row for each; silence: all metrics if not set."""
    column: str | None = Field(None, min_length=1)
    """Column that it evaluates, or an SQL expression that gives a number."""
    limit: float | None = Field(None, allow_inf_nan=False)
    """below, above: the bound that a reading must not cross."""
    clear: float | None = Field(None, allow_inf_nan=False)
    """Value or rate at which an alert is over: the value of below and above (default: limit), the rate of falling and
    rising with over (default: per_minute)."""
    for_: Duration = Field(Duration(0), alias="for")
    """below, above: how long readings must be beyond the limit, by the device's time."""
    per_minute: float | None = Field(None, gt=0, allow_inf_nan=False)
    """falling, rising: the change per minute that is too fast."""
    within: Duration = Field(Duration("15m"), gt=0)
    """falling, rising: maximum age of the previous reading for a comparison."""
    over: Duration | None = Field(None, gt=0, le=86_400)
    """falling, rising: time over which the change is measured, at most 1d."""
    after: Duration | None = Field(None, gt=0)
    """silence: time without a message."""
    condition: str | None = Field(None, min_length=1)
    """sql: a boolean SQL expression over the columns of the table."""
    every: Literal["message", "change"] = "message"
    """sql: an alert for each row with a true condition, or one alert if it becomes true; null changes nothing."""
    notify_cleared: bool | None = None
    """Whether the end of an alert makes a command, too; default: only for silence."""
    message: str | None = None
    """Text for operators."""
    cleared_message: str | None = None
    """Text at the end of an alert."""
    expires: Duration | None = Field(Duration("1h"), gt=0)
    """Time until the command expires; null: never."""
    to: str | Sql | None = None
    """Device that the command goes to; none: no command. Default: the row's device."""
    command_topic: str | Sql | None = None
    """MQTT topic of the command. Default: that of the row's device."""
    payload: str | Sql | None = None
    """Payload of the command. Default: a JSON object that describes the alert."""

    @model_validator(mode="after")
    def _complete(self) -> AlertRule:
        for name in _NEEDED[self.kind]:
            if getattr(self, name) is None:
                raise ValueError(f"{name}: a rule of kind {self.kind} needs {name}")
        for name, kinds in _ONLY_FOR.items():
            if name in self.model_fields_set and self.kind not in kinds:
                raise ValueError(f"{name.rstrip('_')}: is for {' and '.join(kinds)}, remove it from this {self.kind}")
        self._check_what()
        self._check_clear()
        self._check_command()
        if self.kind == "sql":  # its texts name columns
            return self
        for field_name, cleared in (("message", False), ("cleared_message", True)):
            try:
                self.template(cleared).format(**dict.fromkeys(MESSAGE_FIELDS, ""))
            except (KeyError, IndexError, ValueError, AttributeError) as e:
                known = " ".join(f"{{{name}}}" for name in MESSAGE_FIELDS)
                raise ValueError(f"{field_name}: the text has an unknown field: {e}; known: {known}") from e
        return self

    def _check_what(self) -> None:
        if self.metric is not None and self.column is not None:
            raise ValueError("column: give metric or column, not both")
        if self.kind not in ("silence", "sql") and self.metric is None and self.column is None:
            wanted = "metric" if self.table == READINGS else "column"
            raise ValueError(f"{wanted}: a rule of kind {self.kind} needs {wanted}")
        if self.kind == "sql" and self.every == "change" and self.table == READINGS and self.metric is None:
            raise ValueError(
                f"metric: every: change needs the metric, because {READINGS} has a row for each metric and the "
                "condition would change from row to row"
            )

    def _check_command(self) -> None:
        for name in _OWN_TEXTS:
            given = getattr(self, name)
            if isinstance(given, Sql) and self.kind != "sql":
                raise ValueError(f"{name}: SQL is for kind sql, give text with {{fields}} in this {self.kind}")
            if isinstance(given, str) and _CALL.fullmatch(given):
                raise ValueError(f"{name}: {given!r} looks like SQL, write it as {{sql: ...}}")
            unknown = set(FIELD.findall(given) if isinstance(given, str) else ()) - set(_TEXT_FIELDS)
            if unknown and self.kind != "sql":
                raise ValueError(f"{name}: unknown field {min(unknown)}, known: {', '.join(_TEXT_FIELDS)}")
        if self.to not in (None, "none") and self.command_topic is None:
            raise ValueError("command_topic: a command to another device needs its topic")

    def _check_clear(self) -> None:
        if not self.lasts and (
            "clear" in self.model_fields_set or self.notify_cleared or self.cleared_message is not None
        ):
            adds = "every: change" if self.kind == "sql" else "over"
            raise ValueError(
                f"clear: {self.kind} from one reading to the next fires each time and never clears, "
                f"add {adds}, or remove clear, notify_cleared and cleared_message"
            )
        name, worse = ("per_minute", "more than") if self.kind in _RATES else ("limit", self.kind)
        bound = getattr(self, name)
        if self.clear is not None and bound is not None:
            beyond = bound - self.clear if self.kind == "below" else self.clear - bound
            if beyond > 0:
                raise ValueError(
                    f"clear: {self.clear:g} is {worse} {name} {bound:g}, so the alert would be over at once: give one "
                    "that is not"
                )

    @property
    def stateful(self) -> bool:
        """Whether the evaluation depends on earlier rows."""
        return self.kind != "sql" or self.every == "change"

    @property
    def series(self) -> str:
        """The evaluated part of the rows of its table, as in ``streaming.evaluation.Reading.key``."""
        return f"[{self.column}]" if self.column is not None else self.metric or WHOLE

    @property
    def lasts(self) -> bool:
        """Whether an alert fires once and lasts until it clears; otherwise each reading may raise one."""
        return self.every == "change" if self.kind == "sql" else self.kind not in _RATES or self.over is not None

    @property
    def notifies_cleared(self) -> bool:
        """Whether the end of an alert makes a command."""
        return self.kind == "silence" if self.notify_cleared is None else self.notify_cleared

    @property
    def sign(self) -> int:
        """1 if higher values are worse, -1 if lower ones are."""
        return 1 if self.kind in ("above", "rising") else -1

    def template(self, cleared: bool) -> str:
        """Return the text for operators, with fields in braces: of an alert, or of its end."""
        if cleared and self.cleared_message is not None:
            return self.cleared_message
        if not cleared and self.message is not None:
            return self.message
        if self.kind != "silence":
            return "{metric} of {device} is {value}" + (", alert over" if cleared else "")
        of = "{device}" if self.series == WHOLE else "{metric} of {device}"
        return of + (": messages after {minutes} minutes" if cleared else ": nothing for {minutes} minutes")


class _OnceEach(yaml.SafeLoader):
    """A YAML loader that refuses duplicate keys; PyYAML's own loader uses the last one."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        """Return a mapping. Raises ConstructorError for a duplicate key."""
        keys = [key.value for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.constructor.ConstructorError(None, None, f"{key} is duplicate", node.start_mark)
        return super().construct_mapping(node, deep)


def load_rules(path: Path) -> tuple[AlertRule, ...]:
    """Read the alert rules of a rules file. Raises ConfigError with the file and all problems."""
    try:
        body = yaml.load(path.read_text(encoding="utf-8"), _OnceEach)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as e:
        raise ConfigError(
            f"rules file {path}: {' '.join(str(e).split())}", remedy="see conf/rules.yaml for an example"
        ) from e
    body = {} if body is None else body
    problems = [] if isinstance(body, dict) else ["is not a mapping with a list alerts"]
    entries = (body.get("alerts") if isinstance(body, dict) else None) or []
    if isinstance(body, dict):
        problems += [f"{key}: unknown key, only alerts is valid" for key in body if key != "alerts"]
    if not isinstance(entries, list):
        problems.append("alerts is not a list")
        entries = []
    rules: list[AlertRule] = []
    for n, entry in enumerate(entries):
        try:
            rules.append(AlertRule.model_validate(entry))
        except ValidationError as e:
            named = f" (rule {entry['name']})" if isinstance(entry, dict) and entry.get("name") else ""
            found = (_problem(f"alerts[{n}]", named, p) for p in e.errors(include_url=False))
            problems += list(dict.fromkeys(found))
    names = [rule.name for rule in rules]
    problems += [f"two rules are named {name!r}" for name in sorted({n for n in names if names.count(n) > 1})]
    if problems:
        raise ConfigError(
            f"rules file {path}: " + "; ".join(problems),
            remedy="correct the rules, conf/rules.yaml documents each kind",
        )
    return tuple(rules)


def _problem(where: str, named: str, problem: Any) -> str:
    """Return the text of one problem: path and field, the rule's name, and the reason."""
    loc, text = problem["loc"], problem["msg"].removeprefix("Value error, ")
    if not loc and ": " in text:  # of the whole rule: the text begins with the field
        name, _, text = text.partition(": ")
        loc = (name,)
    elif problem["type"] == "extra_forbidden":
        near = difflib.get_close_matches(str(loc[0]), AlertRule.model_fields, 1)
        text = "no such field" + (f", did you mean {near[0]}?" if near else "")
    elif loc and loc[0] in _OWN_TEXTS:
        loc, text = loc[:1], "must be text, or {sql: an expression}"
    elif not isinstance(problem["input"], dict):
        text += f", not {problem['input']!r}"
    return f"{'.'.join(map(str, (where, *loc)))}{named}: {text}"
