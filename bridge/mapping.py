"""Which Pulsar topic, key, device and command topic an MQTT topic has. Pure: no socket, no clock.

It decides by ordered rules, and by the default where none matches: the first level names the topic, the full MQTT
topic is the key. Two MQTT topics never meet in one Pulsar topic and key unless a rule says so (it names a device
or a key, or is ``shared``), and no MQTT topic, however crafted, names a Pulsar topic outside the readings namespace.
Where messages are written, and what becomes of those without a route, is left to the ingest worker.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from bridge.errors import ConfigError
from bridge.topic_patterns import Pattern, meet, regex
from bridge.topic_templates import MAX_LOCAL_NAME, Filter, Template

if TYPE_CHECKING:
    from bridge.settings.ingest import IngestSettings, TopicRule

__all__ = [
    "DEFAULT_RULE",
    "Explanation",
    "LeftOut",
    "Mapper",
    "NoRoute",
    "Route",
    "mapping_problems",
    "subscriptions",
]

DEFAULT_RULE: Final = "default"
"""Name under which messages without a rule stand in the envelope."""

_DEFAULT_FILTER: Final = Filter.parse("#")


class Route(NamedTuple):
    """Where a message goes. ``device`` and ``command_topic`` are None where the rule names none."""

    rule: str
    local: str
    """Local name of the Pulsar topic in the readings namespace."""
    key: str
    device: str | None
    command_topic: str | None


class NoRoute(NamedTuple):
    """Why a message has no Pulsar topic; it goes to the dead letters."""

    reason: str
    local: str


class LeftOut(NamedTuple):
    """Why a message is acknowledged, counted and not written: it is no reading."""

    reason: str
    rule: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """How one MQTT topic is mapped; ``outcome`` is a Route, a NoRoute or a LeftOut."""

    mqtt_topic: str
    rule: str | None
    filter: str | None
    captures: dict[str, str]
    outcome: Route | NoRoute | LeftOut


@dataclass(frozen=True, slots=True)
class _Rule:
    name: str
    filter: Filter
    topic: Template
    key: Template
    device: Template | None
    command_topic: Template | None
    shared: bool

    @property
    def key_is_the_topic(self) -> bool:
        return self.key.text == "{mqtt_topic}"

    @property
    def local_pattern(self) -> Pattern:
        return self.topic.pattern(self.filter, encoded=True)


def _compile(rule: TopicRule) -> _Rule:
    of = Filter.parse(rule.filter)
    topic = Template.parse(rule.topic, of)
    device = None if rule.device is None else Template.parse(rule.device, of)
    command = None if rule.command_topic is None else Template.parse(rule.command_topic, of)
    key = Template.parse(rule.key or rule.device or "{mqtt_topic}", of)
    problem = topic.local_problem()
    for template in (key, device):
        if template is not None and not rule.shared:
            problem = problem or template.ambiguity(of)
    if rule.name == DEFAULT_RULE:
        problem = problem or f"the name {DEFAULT_RULE!r} is taken by the default"
    if command is not None and ("+" in rule.command_topic or "#" in rule.command_topic):  # type: ignore[operator]
        problem = (
            problem
            or f"command_topic {rule.command_topic!r}: devices take commands on topics without '+' and '#'"
        )
    if problem is not None:
        raise ValueError(problem)
    return _Rule(rule.name, of, topic, key, device, command, rule.shared)


def _compiled(settings: IngestSettings) -> tuple[list[_Rule], list[str]]:
    rules: list[_Rule] = []
    problems: list[str] = []
    for number, rule in enumerate(settings.rules):
        try:
            rules.append(_compile(rule))
        except ValueError as e:
            problems.append(f"ingest.rules.{number} ({rule.name}): {e}")
    names = [rule.name for rule in settings.rules]
    problems += [
        f"ingest.rules: the name {n!r} stands twice" for n in sorted({n for n in names if names.count(n) > 1})
    ]
    return rules, problems


def mapping_problems(settings: IngestSettings) -> list[str]:
    """Return everything that is wrong with the rules and filters, each with its field path; empty when all is well."""
    rules, problems = _compiled(settings)
    filters: list[Filter] = []
    for number, text in enumerate(settings.filters):
        try:
            parsed = Filter.parse(text)
            if any(parsed.names):
                raise ValueError(f"filter {text!r}: names belong into ingest.rules")
            filters.append(parsed)
        except ValueError as e:
            problems.append(f"ingest.filters.{number}: {e}")
    if problems:
        return problems
    problems += _collisions(rules)
    if not settings.allow_loopback:
        problems += _loops(rules, filters or [r.filter for r in rules] or [_DEFAULT_FILTER])
    return problems


def _collisions(rules: Sequence[_Rule]) -> Iterator[str]:
    for number, a in enumerate(rules):
        for b in rules[number + 1 :]:
            if a.shared or b.shared or (a.key_is_the_topic and b.key_is_the_topic):
                continue
            if meet(a.local_pattern, b.local_pattern) and meet(
                a.key.pattern(a.filter), b.key.pattern(b.filter)
            ):
                yield (
                    f"ingest.rules: {a.name} and {b.name} could write different MQTT topics to one Pulsar topic under "
                    f"one key ({a.topic.text!r} with {a.key.text!r}, {b.topic.text!r} with {b.key.text!r}): give them "
                    "other topics, or set shared: true where they mean the same devices"
                )


def _loops(rules: Sequence[_Rule], filters: Sequence[Filter]) -> Iterator[str]:
    for rule in rules:
        if rule.command_topic is None:
            continue
        commands = rule.command_topic.pattern(rule.filter)
        for one in filters:
            if any(meet(commands, pattern) for pattern in one.patterns):
                yield (
                    f"ingest: the filter {one.mqtt!r} matches command topics of rule {rule.name} "
                    f"({rule.command_topic.text!r}), so commands would come back: choose narrower ingest.filters, or "
                    "set ingest.allow_loopback, which leaves them out one by one"
                )


def subscriptions(settings: IngestSettings) -> tuple[str, ...]:
    """Return the MQTT filters to subscribe to, each once, in order. Raises ConfigError for rules that do not compile."""
    if settings.filters:
        found: Iterable[str] = settings.filters
    else:
        rules, problems = _compiled(settings)
        if problems:
            raise ConfigError("; ".join(problems))
        found = [rule.filter.mqtt for rule in rules] or ["#"]
    return tuple(dict.fromkeys(found))


class Mapper:
    """Maps MQTT topics by the rules of one configuration. Used by one thread.

    ``known`` are the local names of topics that exist already: they count towards ``max_topics``. Results are
    kept for the ``cache`` topics used last.
    """

    def __init__(self, settings: IngestSettings, *, known: Iterable[str] = (), cache: int = 65_536) -> None:
        self._rules, problems = _compiled(settings)
        problems += mapping_problems(settings)
        if problems:
            raise ConfigError("; ".join(dict.fromkeys(problems)))
        self._max_topics = settings.max_topics
        self._locals = set(known)
        self._commands = [
            (rule.name, regex(rule.command_topic.pattern(rule.filter)))
            for rule in self._rules
            if rule.command_topic
        ]
        self._claimed = [
            (rule.name, regex(rule.local_pattern), regex(rule.key.pattern(rule.filter)))
            for rule in self._rules
            if not rule.shared and not rule.key_is_the_topic
        ]
        self._default = _Rule(
            DEFAULT_RULE,
            _DEFAULT_FILTER,
            Template.parse("{level1}", _DEFAULT_FILTER),
            Template.parse("{mqtt_topic}", _DEFAULT_FILTER),
            None,
            None,
            False,
        )
        self.route = lru_cache(maxsize=cache)(self._route)
        """Map one topic: a Route, a NoRoute or a LeftOut."""

    @property
    def topics(self) -> int:
        """How many Pulsar topics exist or were named."""
        return len(self._locals)

    def explain(self, mqtt_topic: str) -> Explanation:
        """Return which rule takes a topic, what it captures and where the message goes. Changes nothing."""
        rule, captures = self._match(mqtt_topic) if _is_utf8(mqtt_topic) else (None, {})
        before = set(self._locals)
        outcome = self._route(mqtt_topic)
        self._locals = before
        if isinstance(outcome, LeftOut) or rule is None:
            return Explanation(mqtt_topic, None, None, {}, outcome)
        return Explanation(mqtt_topic, rule.name, rule.filter.mqtt, captures, outcome)

    def _route(self, mqtt_topic: str) -> Route | NoRoute | LeftOut:
        if not _is_utf8(mqtt_topic) or not mqtt_topic:
            return NoRoute("the MQTT topic is empty or not UTF-8", "")
        if mqtt_topic.startswith("$"):
            return LeftOut("broker", "")
        for name, pattern in self._commands:
            if pattern.match(mqtt_topic):
                return LeftOut("command", name)
        rule, captures = self._match(mqtt_topic)
        local = rule.topic.fill_encoded(captures)
        if len(local) > MAX_LOCAL_NAME:
            return NoRoute(
                f"the Pulsar topic's name would have {len(local)} characters, at most {MAX_LOCAL_NAME} are taken",
                "",
            )
        if rule is self._default:
            for name, topics, keys in self._claimed:
                if topics.match(local) and keys.match(mqtt_topic):
                    return NoRoute(
                        f"no rule matches, and under this key the topic {local} belongs to rule {name}", local
                    )
        if local not in self._locals:
            if len(self._locals) >= self._max_topics:
                return NoRoute(
                    f"it would be Pulsar topic number {len(self._locals) + 1}, ingest.max_topics is {self._max_topics}",
                    local,
                )
            self._locals.add(local)
        device = None if rule.device is None else rule.device.fill(captures)
        key = rule.key.fill(captures)
        if not key or device == "":
            return NoRoute(f"rule {rule.name} finds no text for its key or device", local)
        command = None if rule.command_topic is None else rule.command_topic.fill(captures)
        return Route(rule.name, local, key, device, command)

    def _match(self, mqtt_topic: str) -> tuple[_Rule, dict[str, str]]:
        levels = mqtt_topic.split("/")
        for rule in (*self._rules, self._default):
            captures = rule.filter.match(levels)
            if captures is not None:
                for number, level in enumerate(levels, 1):
                    captures[f"level{number}"] = level
                captures["mqtt_topic"] = mqtt_topic
                return rule, captures
        raise AssertionError("the default matches every topic")


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
