"""The rules of the topic mapping in compiled form, and everything that can be wrong with them. Pure.

It decides which rules are refused: those that do not compile, that could write two MQTT topics to one Pulsar topic
under one key, that name a namespace which is not listed, or that would bring commands back as readings. Which rule
takes a topic, and where its messages go, is decided by ``bridge.mapping``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from bridge.errors import ConfigError
from bridge.message_fields import MessageField
from bridge.settings.ingest import IngestSettings
from bridge.settings.pulsar import PulsarSettings
from bridge.settings.rules import TopicRule
from bridge.topic_patterns import Pattern, Star, matcher, meet
from bridge.topic_templates import Filter, Template

__all__ = [
    "DEFAULT_RULE",
    "CompiledRule",
    "compile_rules",
    "default_rule",
    "mapping_problems",
    "resume_filter",
    "subscriptions",
    "with_resume",
]

DEFAULT_RULE: Final = "default"
"""Name under which messages without a rule stand in the envelope."""

_ALL: Final = Filter.parse("#")


@dataclass(frozen=True, slots=True)
class CompiledRule:
    """One rule. ``None`` among the namespaces is the usual one."""

    name: str
    filter: Filter
    topic: Template
    key: Template
    device: Template | None
    command_topic: Template | None
    shared: bool
    namespace: Template | None
    namespaces: frozenset[str | None]
    """Those that its messages can reach; what its namespace would name beside is refused message by message."""
    fields: tuple[MessageField, ...]
    """What it takes from each message; without any, a message's way follows from its topic alone."""

    @property
    def key_is_the_topic(self) -> bool:
        """Whether every MQTT topic has a key of its own."""
        return self.key.text == "{mqtt_topic}"

    @property
    def captures(self) -> tuple[str, ...]:
        """What its key, device and command topic take from the MQTT topic."""
        fields = {field.name for field in self.fields}
        templates = [t for t in (self.key, self.device, self.command_topic) if t is not None]
        return tuple(dict.fromkeys(name for t in templates for name in t.names if name not in fields))

    @property
    def topic_is_fixed(self) -> bool:
        """Whether no part of an MQTT topic or a message chooses the Pulsar topic."""
        templates = [t for t in (self.topic, self.namespace) if t is not None]
        return all(isinstance(t.star_of(name), str) for t in templates for name in t.names)

    @property
    def local_pattern(self) -> Pattern:
        """The local names that it can make."""
        return self.topic.pattern(encoded=True)

    @property
    def command_pattern(self) -> Pattern:
        """The MQTT topics on which its devices take commands; a field of the message fills one level there."""
        assert self.command_topic is not None
        return self.command_topic.pattern(field=Star.LEVEL)


def default_rule() -> CompiledRule:
    """Return the rule for what no other takes: the first level names the topic, the MQTT topic is the key."""
    return CompiledRule(
        DEFAULT_RULE,
        _ALL,
        Template.parse("{level1}", _ALL),
        Template.parse("{mqtt_topic}", _ALL),
        None,
        None,
        False,
        None,
        frozenset({None}),
        (),
    )


def compile_rules(settings: IngestSettings, pulsar: PulsarSettings) -> tuple[list[CompiledRule], list[str]]:
    """Return the rules that compile, and what is wrong with the others, each with its field path."""
    rules: list[CompiledRule] = []
    problems: list[str] = []
    for number, rule in enumerate(settings.all_rules):
        preset = settings.preset_of(rule.name)
        where = f"ingest.rules.{number}" if preset is None else f"ingest.presets: {preset}"
        try:
            rules.append(_compile(rule, pulsar))
        except ValueError as e:
            problems.append(f"{where} ({rule.name}): {e}")
    names = [rule.name for rule in settings.all_rules]
    problems += [f"ingest.rules: the name {n!r} stands twice" for n in sorted({n for n in names if names.count(n) > 1})]
    return rules, problems


def _compile(rule: TopicRule, pulsar: PulsarSettings) -> CompiledRule:
    of = Filter.parse(rule.filter)
    topic = Template.parse(rule.topic, of)
    device = None if rule.device is None else Template.parse(rule.device, of)
    command = None if rule.command_topic is None else Template.parse(rule.command_topic, of, device=device)
    key = Template.parse(rule.key or rule.device or "{mqtt_topic}", of, device=device)
    problem = topic.local_problem()
    for template in (key, device):
        if template is not None and not rule.shared:
            problem = problem or template.ambiguity()
    if rule.name == DEFAULT_RULE:
        problem = problem or f"the name {DEFAULT_RULE!r} is taken by the default"
    if command is not None and any(c in literal for literal, _ in command.parts for c in "+#\0"):
        problem = (
            problem or f"command_topic {rule.command_topic!r}: devices take commands on topics without '+' and '#'"
        )
    namespace = None if rule.namespace is None else Template.parse(rule.namespace, of)
    allowed = frozenset({None}) if namespace is None else _reached(namespace, pulsar)
    if namespace is not None and (namespace.fields or not allowed):
        listed = ", ".join(pulsar.readings_namespaces)
        problem = problem or f"namespace {rule.namespace!r} is not one of pulsar.namespaces; listed: {listed}"
    problem = problem or _reading_problem(rule, of)
    if problem is not None:
        raise ValueError(problem)
    taken = [field for part in (key, device, command) if part is not None for field in part.fields]
    fields = tuple(dict.fromkeys(taken))
    return CompiledRule(rule.name, of, topic, key, device, command, rule.shared, namespace, allowed, fields)


def _reading_problem(rule: TopicRule, of: Filter) -> str | None:
    """Return what is wrong with the places of a reading's id and time."""
    for name, text in (("reading_id", rule.reading_id), ("reading_time", rule.reading_time)):
        if text is not None and not Template.parse(text, of).fields:
            return f"{name} {text!r}: name a place in each message, as {{json:$.id}} or {{user:id}}"
    return None


def _reached(namespace: Template, pulsar: PulsarSettings) -> frozenset[str | None]:
    usual, *others = pulsar.readings_namespaces
    matches = matcher(namespace.pattern())
    return frozenset({None} if matches(usual) else ()) | frozenset(name for name in others if matches(name))


def mapping_problems(settings: IngestSettings, pulsar: PulsarSettings | None = None) -> list[str]:
    """Return everything that is wrong with the rules and filters, each with its field path; empty when all is well.

    Without ``pulsar`` no namespace but the usual one is listed.
    """
    rules, problems = compile_rules(settings, pulsar or PulsarSettings())
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
    problems += _requests(rules, resume_filter(settings))
    if not settings.allow_loopback:
        problems += _loops(rules, filters or [r.filter for r in rules] or [_ALL])
    return problems


def _collisions(rules: Sequence[CompiledRule]) -> Iterator[str]:
    for number, a in enumerate(rules):
        for b in rules[number + 1 :]:
            if a.shared or b.shared or (a.key_is_the_topic and b.key_is_the_topic):
                continue
            if not a.namespaces & b.namespaces:
                continue
            if meet(a.local_pattern, b.local_pattern) and meet(a.key.pattern(), b.key.pattern()):
                yield (
                    f"ingest.rules: {a.name} and {b.name} could write different MQTT topics to one Pulsar topic under "
                    f"one key ({a.topic.text!r} with {a.key.text!r}, {b.topic.text!r} with {b.key.text!r}): give them "
                    "other topics, or set shared: true where they mean the same devices"
                )


def _requests(rules: Sequence[CompiledRule], asks: Filter | None) -> Iterator[str]:
    for rule in rules:
        if asks is None or rule.command_topic is None:
            continue
        if any(meet(rule.command_pattern, pattern) for pattern in asks.patterns):
            yield (
                f"ingest.resume_topic: {asks.mqtt!r} matches command topics of rule {rule.name} "
                f"({rule.command_topic.text!r}), so commands would count as requests: name a topic of its own"
            )


def _loops(rules: Sequence[CompiledRule], filters: Sequence[Filter]) -> Iterator[str]:
    for rule in rules:
        if rule.command_topic is None:
            continue
        commands = rule.command_pattern
        for one in filters:
            if any(meet(commands, pattern) for pattern in one.patterns):
                yield (
                    f"ingest: the filter {one.mqtt!r} matches command topics of rule {rule.name} "
                    f"({rule.command_topic.text!r}), so commands would come back: choose narrower ingest.filters, or "
                    "set ingest.allow_loopback, which leaves them out one by one"
                )


def subscriptions(settings: IngestSettings) -> tuple[str, ...]:
    """Return the MQTT filters to subscribe to, each once, in order. Raises ConfigError for filters that do not compile.

    Of the rules' filters, those that match nothing beyond another are left out: a broker may send a message once for
    each subscription that matches (MQTT 5, 3.3.4).
    """
    if settings.filters:
        return tuple(dict.fromkeys(settings.filters))
    try:
        found = [Filter.parse(rule.filter) for rule in settings.all_rules]
    except ValueError as e:
        raise ConfigError(f"ingest.rules: {e}") from e
    unique = {one.mqtt: one for one in found}
    kept = [text for text, one in unique.items() if not any(o.covers(one) for t, o in unique.items() if t != text)]
    return tuple(kept) or ("#",)


def resume_filter(settings: IngestSettings) -> Filter | None:
    """Return the filter on which devices ask for their commands, None where they may not."""
    return None if settings.resume_topic is None else Filter.parse(settings.resume_topic)


def with_resume(filters: Sequence[str], settings: IngestSettings) -> tuple[str, ...]:
    """Return the filters, and the one on which devices ask for their commands where none of them brings that."""
    asks = resume_filter(settings)
    if asks is None or any(Filter.parse(one).covers(asks) for one in filters):
        return tuple(filters)
    return (*filters, asks.mqtt)
