"""The rules of the topic mapping in compiled form, and their validation.

It refuses a rule that does not compile or names an unlisted namespace. It refuses rules that could write two MQTT
topics to one Pulsar topic under one key, or commands as readings. ``bridge.routing.mapper`` applies the rules.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from bridge.contract import NAMESPACE, TENANT
from bridge.errors import ConfigError
from bridge.routing.message_fields import MessageField
from bridge.routing.patterns import Pattern, Star, matcher, meet
from bridge.routing.templates import Filter, Template

if TYPE_CHECKING:
    from bridge.settings.ingest import IngestSettings
    from bridge.settings.pulsar import PulsarSettings
    from bridge.settings.rules import TopicRule

__all__ = [
    "DEFAULT",
    "CompiledRule",
    "compile_rules",
    "mapping_problems",
    "resume_filter",
    "subscriptions",
    "with_resume",
]

_ALL: Final = Filter.parse("#")


@dataclass(frozen=True, slots=True)
class CompiledRule:
    """One rule. ``None`` among the namespaces is the default one."""

    name: str
    filter: Filter
    topic: Template
    key: Template
    device: Template | None
    command_topic: Template | None
    shared: bool
    namespace: Template | None
    namespaces: frozenset[str | None]
    """The possible namespaces of its messages. The mapper refuses messages of any other one."""
    fields: tuple[MessageField, ...]
    """The fields that it reads from each message. Without any, the MQTT topic alone decides the route."""

    @property
    def key_is_the_topic(self) -> bool:
        """Whether every MQTT topic has a different key."""
        return self.key.text == "{mqtt_topic}"

    @property
    def captures(self) -> tuple[str, ...]:
        """The captures of the MQTT topic in its key, device and command topic."""
        fields = {field.name for field in self.fields}
        templates = [t for t in (self.key, self.device, self.command_topic) if t is not None]
        return tuple(dict.fromkeys(name for t in templates for name in t.names if name not in fields))

    @property
    def topic_is_fixed(self) -> bool:
        """Whether the Pulsar topic is the same for all its messages."""
        templates = [t for t in (self.topic, self.namespace) if t is not None]
        return all(isinstance(t.star_of(name), str) for t in templates for name in t.names)

    @property
    def local_pattern(self) -> Pattern:
        """The possible local names of its Pulsar topics."""
        return self.topic.pattern(encoded=True)

    @property
    def command_pattern(self) -> Pattern:
        """The MQTT topics for commands to its devices; a field of the message fills one level."""
        assert self.command_topic is not None
        return self.command_topic.pattern(field=Star.LEVEL)


DEFAULT: Final = CompiledRule(
    name="default",
    filter=_ALL,
    topic=Template.parse("{level1}", _ALL),
    key=Template.parse("{mqtt_topic}", _ALL),
    device=None,
    command_topic=None,
    shared=False,
    namespace=None,
    namespaces=frozenset({None}),
    fields=(),
)
"""The rule for topics without a rule: the first level names the topic, the MQTT topic is the key."""


def compile_rules(settings: IngestSettings, pulsar: PulsarSettings | None) -> tuple[list[CompiledRule], list[str]]:
    """Return the valid rules, and the problems of the others, each with its field path.

    Without ``pulsar`` only the default namespace is listed.
    """
    rules: list[CompiledRule] = []
    problems: list[str] = []
    usable = (f"{TENANT}/{NAMESPACE}",) if pulsar is None else pulsar.readings_namespaces
    for number, rule in enumerate(settings.all_routes):
        preset = settings.preset_of(rule.name)
        where = f"ingest.routes.{number}" if preset is None else f"ingest.presets: {preset}"
        try:
            rules.append(_compile(rule, usable))
        except ValueError as e:
            problems.append(f"{where} ({rule.name}): {e}")
    names = [rule.name for rule in settings.all_routes]
    problems += [
        f"ingest.routes: the name {n!r} is duplicate" for n in sorted({n for n in names if names.count(n) > 1})
    ]
    return rules, problems


def _compile(rule: TopicRule, usable: Sequence[str]) -> CompiledRule:
    of = Filter.of_settings(rule.filter)
    topic = Template.parse(rule.topic, of)
    device = None if rule.device is None else Template.parse(rule.device, of)
    command = None if rule.command_topic is None else Template.parse(rule.command_topic, of, device=device)
    key = Template.parse(rule.key or rule.device or "{mqtt_topic}", of, device=device)
    problem = topic.local_problem()
    for template in (key, device):
        if template is not None and not rule.shared:
            problem = problem or template.ambiguity()
    if rule.name == DEFAULT.name:
        problem = problem or f"the name {rule.name!r} is reserved for the default rule"
    if command is not None and any(c in literal for literal, _ in command.parts for c in "+#\0"):
        problem = problem or f"command_topic {rule.command_topic!r}: a topic for commands must not contain '+' or '#'"
    namespace = None if rule.namespace is None else Template.parse(rule.namespace, of)
    allowed = frozenset({None}) if namespace is None else _reached(namespace, usable)
    if namespace is not None and (namespace.fields or not allowed):
        listed = ", ".join(usable)
        problem = problem or f"namespace {rule.namespace!r} is not one of pulsar.namespaces; listed: {listed}"
    problem = problem or _reading_problem(rule, of)
    if problem is not None:
        raise ValueError(problem)
    used = [field for part in (key, device, command) if part is not None for field in part.fields]
    fields = tuple(dict.fromkeys(used))
    return CompiledRule(rule.name, of, topic, key, device, command, rule.shared, namespace, allowed, fields)


def _reading_problem(rule: TopicRule, of: Filter) -> str | None:
    """Return the problem of the fields for a reading's id, time and number, None without one."""
    for name in ("reading_id", "reading_time", "sequence"):
        text = getattr(rule, name)
        if text is not None and not Template.parse(text, of).fields:
            return f"{name} {text!r}: name a field of each message, as {{json:$.id}} or {{user:id}}"
    return None


def _reached(namespace: Template, usable: Sequence[str]) -> frozenset[str | None]:
    default, *others = usable
    matches = matcher(namespace.pattern())
    return frozenset({None} if matches(default) else ()) | frozenset(name for name in others if matches(name))


def mapping_problems(settings: IngestSettings, pulsar: PulsarSettings | None = None) -> list[str]:
    """Return all problems of the rules and filters, each with its field path.

    Without ``pulsar`` only the default namespace is listed.
    """
    rules, problems = compile_rules(settings, pulsar)
    filters: list[Filter] = []
    for number, text in enumerate(settings.filters):
        try:
            parsed = Filter.parse(text)
            if any(parsed.names):
                raise ValueError(f"filter {text!r}: names are allowed in ingest.routes only")
            filters.append(parsed)
        except ValueError as e:
            problems.append(f"ingest.filters.{number}: {e}")
    if problems:
        return problems
    problems += _collisions(rules)
    resume = resume_filter(settings)
    problems += [
        f"ingest.resume_topic: {mqtt!r} matches command topics of rule {rule} ({topic!r}), so commands would count as "
        "requests: give a separate topic"
        for mqtt, rule, topic in _met(rules, [] if resume is None else [resume])
    ]
    if not settings.allow_loopback:
        problems += [
            f"ingest: the filter {mqtt!r} matches command topics of rule {rule} ({topic!r}), so ingest would receive "
            "commands: choose narrower ingest.filters, or set ingest.allow_loopback, with which ingest leaves out each "
            "command"
            for mqtt, rule, topic in _met(rules, filters or [r.filter for r in rules] or [_ALL])
        ]
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
                    f"ingest.routes: {a.name} and {b.name} could write different MQTT topics to one Pulsar topic under "
                    f"one key ({a.topic.text!r} with {a.key.text!r}, {b.topic.text!r} with {b.key.text!r}): give them "
                    "other topics, or set shared: true if they are for the same devices"
                )


def _met(rules: Sequence[CompiledRule], filters: Sequence[Filter]) -> Iterator[tuple[str, str, str]]:
    """Yield each filter that matches command topics, with the name and the command topic of the rule."""
    for rule in rules:
        if rule.command_topic is None:
            continue
        for one in filters:
            if any(meet(rule.command_pattern, pattern) for pattern in one.patterns):
                yield one.mqtt, rule.name, rule.command_topic.text


def subscriptions(settings: IngestSettings) -> tuple[str, ...]:
    """Return the MQTT filters to subscribe to, each once, in order. Raises ConfigError for invalid filters.

    A rule's filter that another one covers is left out. A broker may send a message once for each matching subscription
    (MQTT 5, 3.3.4).
    """
    if settings.filters:
        return tuple(dict.fromkeys(settings.filters))
    try:
        found = [Filter.parse(rule.filter) for rule in settings.all_routes]
    except ValueError as e:
        raise ConfigError(f"ingest.routes: {e}") from e
    unique = {one.mqtt: one for one in found}
    kept = [text for text, one in unique.items() if not any(o.covers(one) for t, o in unique.items() if t != text)]
    return tuple(kept) or ("#",)


def resume_filter(settings: IngestSettings) -> Filter | None:
    """Return the filter of resume requests, None if devices may not send them."""
    return None if settings.resume_topic is None else Filter.parse(settings.resume_topic)


def with_resume(filters: Sequence[str], settings: IngestSettings) -> tuple[str, ...]:
    """Return the filters, and the one of resume requests if none of them covers it."""
    resume = resume_filter(settings)
    if resume is None or any(Filter.parse(one).covers(resume) for one in filters):
        return tuple(filters)
    return (*filters, resume.mqtt)
