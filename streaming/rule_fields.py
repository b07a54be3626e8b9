"""Where a topic rule says that its messages carry their own id and time, as columns of bronze rows.

A decoder that names no path for the id or the time of a reading leaves it to the topic rule: the envelope of each
message names the rule that took it, and ``reading_id`` and ``reading_time`` of that rule say where to look. Which
rules there are is the bridge's configuration, and so is what a template may be made of (``bridge.topic_templates``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from bridge.contract import P_INGEST
from bridge.message_fields import MessageField
from bridge.settings.rules import TopicRule
from bridge.topic_patterns import Star, meet
from bridge.topic_templates import Filter, Template

if TYPE_CHECKING:
    from pyspark.sql import Column

__all__ = ["RuleFields", "by_rule", "json_steps", "rule_fields", "rule_says"]

Part = Literal["id", "time"]
_LEVEL: Final = "level"


@dataclass(frozen=True)
class RuleFields:
    """What one topic rule says of its readings, as templates; plain data, for the recipe of a batch."""

    rule: str
    filter: str
    id: str | None = None
    time: str | None = None

    def template(self, part: Part) -> Template | None:
        """Return the template of the id or the time, None when the rule has none. The settings have checked it."""
        text = self.id if part == "id" else self.time
        return None if text is None else Template.parse(text, Filter.parse(self.filter))


def rule_fields(rules: Iterable[TopicRule]) -> tuple[RuleFields, ...]:
    """Return what the topic rules say of their readings; those that say nothing are left out."""
    return tuple(
        RuleFields(rule.name, rule.filter, rule.reading_id, rule.reading_time)
        for rule in rules
        if rule.reading_id is not None or rule.reading_time is not None
    )


def from_recipe(entries: Sequence[Mapping[str, Any]]) -> tuple[RuleFields, ...]:
    """Return them as a recipe holds them."""
    return tuple(RuleFields(**entry) for entry in entries)


def as_recipe(fields: Sequence[RuleFields]) -> list[dict[str, Any]]:
    """Return them as plain data, for the recipe of a batch."""
    return [asdict(one) for one in fields]


def rule_says(fields: Iterable[RuleFields], part: Part, mqtt_filter: str) -> bool:
    """Whether a rule that may take messages of a filter says where their id, or time, is.

    Raises ValueError for a filter that no rule could have.
    """
    wanted = Filter.parse(mqtt_filter).patterns
    return any(
        one.template(part) is not None
        and any(meet(a, b) for a in wanted for b in Filter.parse(one.filter).patterns)
        for one in fields
    )


def json_steps(fields: Iterable[RuleFields], part: Part, mqtt_filter: str) -> list[tuple[str | int, ...]]:
    """Return the places in payloads that rules name for the id, or time, of messages of a filter, as steps."""
    wanted = Filter.parse(mqtt_filter).patterns
    found: list[tuple[str | int, ...]] = []
    for one in fields:
        template = one.template(part)
        if template is not None and any(
            meet(a, b) for a in wanted for b in Filter.parse(one.filter).patterns
        ):
            found += [field.steps for field in template.fields if field.property is None]
    return found


def by_rule(fields: Sequence[RuleFields], part: Part) -> Column:
    """Return the text that a row's rule finds in it, null where the rule says nothing or the message has none.

    The rows are bronze's, with the payload parsed as ``json``.
    """
    from pyspark.sql import functions as F

    took = F.get_json_object(F.col("__messageProperties")[P_INGEST], "$.rule")
    found = F.lit(None).cast("string")
    for one in fields:
        template = one.template(part)
        if template is not None:
            found = F.when(took == one.rule, _filled(template)).otherwise(found)
    return found


def _filled(template: Template) -> Column:
    from pyspark.sql import functions as F

    fields = {field.name: field for field in template.fields}
    pieces: list[Column] = []
    for literal, name in template.parts:
        if literal:
            pieces.append(F.lit(literal))
        if name in fields:
            pieces.append(F.nullif(_of_message(fields[name]), F.lit("")))  # as ingest: empty is none
        elif name is not None:
            pieces.append(_of_topic(template.of, name))
    return F.concat(*pieces)


def _of_message(field: MessageField) -> Column:
    """Return a place in the payload, or a user property; two different ones are none, for either could be meant."""
    from pyspark.sql import functions as F

    name = field.property
    if name is None:
        return F.try_variant_get("json", _path(field.steps), "string")
    named = F.filter("user_properties", lambda one: one["name"].eqNullSafe(name))
    values = F.array_distinct(F.transform(named, lambda one: one["value"]))
    return F.when(F.size(values) == 1, F.try_element_at(values, F.lit(1)))


def _path(steps: Sequence[str | int]) -> str:
    quoted = (
        step if isinstance(step, int) else f"'{step}'" if '"' in step else f'"{step}"' for step in steps
    )
    return "$" + "".join(f"[{step}]" for step in quoted)


def _of_topic(of: Filter, name: str) -> Column:
    """Return what a capture of the filter stands for in the row's MQTT topic."""
    from pyspark.sql import functions as F

    if name == "mqtt_topic":
        return F.col(name)
    levels = F.split("mqtt_topic", "/", -1)
    if name not in of.names:  # level1, level2, …
        return F.try_element_at(levels, F.lit(int(name.removeprefix(_LEVEL))))
    number = of.names.index(name) + 1
    if of.levels[number - 1] is Star.REST:
        return F.array_join(F.slice(levels, number, F.size(levels)), "/")
    return F.try_element_at(levels, F.lit(number))
