"""Which Pulsar topic, key, device and command topic a message has. Pure: no socket, no clock.

It decides by ordered rules, and by the default where none matches: the first level names the topic, the full MQTT
topic is the key. Two MQTT topics never meet in one Pulsar topic and key unless a rule says so (it names a device
or a key, or is ``shared``), and no MQTT topic, however crafted, names a Pulsar topic outside the namespaces that
the configuration lists. Which rules are refused is decided by ``bridge.topic_rules``; where messages are written,
and what becomes of those without a route, is left to the ingest worker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from bridge.bounded_map import BoundedMap
from bridge.contract import MOVES_TOPIC
from bridge.errors import ConfigError
from bridge.message_fields import MissingField, read_fields
from bridge.names import DEFAULT_MAX_NAME_BYTES, name_problem
from bridge.settings.ingest import IngestSettings
from bridge.settings.pulsar import PulsarSettings
from bridge.topic_budget import TopicBudget
from bridge.topic_patterns import matcher
from bridge.topic_rules import (
    DEFAULT_RULE,
    CompiledRule,
    compile_rules,
    default_rule,
    mapping_problems,
    resume_filter,
    subscriptions,
)
from bridge.topic_templates import MAX_LOCAL_NAME

__all__ = [
    "DEFAULT_RULE",
    "Explanation",
    "LeftOut",
    "Mapper",
    "NoRoute",
    "Outcome",
    "PerMessage",
    "ResumeAsked",
    "Route",
    "mapping_problems",
    "subscriptions",
    "topic_budget",
]

_MAX_MQTT_TOPIC: Final = 65_535
"""Longest MQTT topic, in bytes (MQTT 5, 1.5.4)."""

_CACHE_BYTES: Final = 64 * 1024 * 1024
"""What the cache of routes may hold, roughly: topics of 65,535 bytes must not fill the memory (H10)."""


class Route(NamedTuple):
    """Where a message goes. ``device`` and ``command_topic`` are None where the rule names none."""

    rule: str
    local: str
    """Local name of the Pulsar topic in its namespace."""
    key: str
    device: str | None
    command_topic: str | None
    namespace: str | None = None
    """``tenant/namespace`` where the rule names another than the usual one."""


class NoRoute(NamedTuple):
    """Why a message has no Pulsar topic; it goes to the dead letters."""

    reason: str
    local: str
    namespace: str | None = None


class LeftOut(NamedTuple):
    """Why a message is acknowledged, counted and not written: it is no reading."""

    reason: str
    rule: str


class ResumeAsked(NamedTuple):
    """A device asks for its commands after a position; it is no reading, and goes to the owner of its commands."""

    device: str


class PerMessage(NamedTuple):
    """The way of a topic whose key, device or command topic stand in each message: ask ``of`` every time."""

    rule: str
    local: str
    namespace: str | None
    of: Callable[[bytes, Sequence[tuple[str, str]]], Route | NoRoute]
    """Takes a message's payload and user properties."""


Outcome = Route | NoRoute | LeftOut | PerMessage | ResumeAsked


@dataclass(frozen=True, slots=True)
class Explanation:
    """How one MQTT topic is mapped. ``key`` and the two after it are templates where the outcome is PerMessage."""

    mqtt_topic: str
    rule: CompiledRule | None
    captures: dict[str, str]
    outcome: Outcome


class _Routes(BoundedMap["Outcome"]):
    """Routes by topic, made when first asked for."""

    def __init__(self, make: Callable[[str], Outcome], most_bytes: int) -> None:
        super().__init__(most_bytes, each=512, copies=4)  # the topic, and a key and a device made of it
        self.misses = 0
        self._make = make

    def __missing__(self, topic: str) -> Outcome:
        self.misses += 1
        route = self._make(topic)
        self.put(topic, route)
        return route


class Mapper:
    """Maps MQTT topics by the rules of one configuration. Used by one thread.

    ``known`` are the topics that exist already, by local name, with ``tenant/namespace/`` before those outside the
    usual namespace: they count towards ``max_topics``. A budget is shared with the mappers of other threads. A name
    has at most ``max_name_bytes``. Results are remembered within ``cache_bytes``.
    """

    def __init__(
        self,
        settings: IngestSettings,
        *,
        pulsar: PulsarSettings | None = None,
        known: Iterable[str] | TopicBudget = (),
        answers: str | None = None,
        max_name_bytes: int = DEFAULT_MAX_NAME_BYTES,
        cache_bytes: int = _CACHE_BYTES,
    ) -> None:
        pulsar = pulsar or PulsarSettings()
        problems = mapping_problems(settings, pulsar)
        if problems:
            raise ConfigError("; ".join(problems))
        self._rules, _ = compile_rules(settings, pulsar)
        self._usual = pulsar.readings_namespaces[0]
        self._max_name = max_name_bytes
        self._max_payload = settings.max_message_bytes
        self._budget = known if isinstance(known, TopicBudget) else topic_budget(settings, known)
        self._period = self._budget.period
        self._commands = [(rule.name, matcher(rule.command_pattern)) for rule in self._rules if rule.command_topic]
        self._claimed = [
            (rule.name, matcher(rule.local_pattern), matcher(rule.key.pattern()))
            for rule in self._rules
            if not rule.shared and not rule.key_is_the_topic and None in rule.namespaces
        ]
        self._answers = None if answers is None else f"{answers}/"
        self._resume = resume_filter(settings)
        self._default = default_rule()
        for rule in (*self._rules, self._default):
            self._budget.claim(rule.name, _names_of(rule))
        self._routes = _Routes(self._route, cache_bytes)
        self.route = self._routes.__getitem__
        """Map one topic: a Route, a PerMessage, a NoRoute or a LeftOut."""

    @property
    def topics(self) -> int:
        """How many Pulsar topics exist or were named, without those that were released."""
        return len(self._budget)

    def forgets(self, now: float) -> bool:
        """Forget all routes if topics were released at ``now``, in seconds, or lately. Returns whether they were: then
        forget what this mapper returned.
        """
        self._budget.turn(now)
        if self._period == self._budget.period:
            return False
        self._period = self._budget.period
        self._routes.clear()
        return True

    @property
    def remembered(self) -> int:
        """How many MQTT topics have their route remembered."""
        return len(self._routes)

    @property
    def misses(self) -> int:
        """How often a route was not remembered and had to be found."""
        return self._routes.misses

    def explain(
        self, mqtt_topic: str, payload: bytes | None = None, user: Sequence[tuple[str, str]] = ()
    ) -> Explanation:
        """Return which rule takes a topic, what it captures and where the message goes. Changes nothing.

        With a payload or user properties, what stands in the message is looked up in them.
        """
        budget, self._budget = self._budget, self._budget.copy()
        outcome = self._route(mqtt_topic)
        self._budget = budget
        if isinstance(outcome, PerMessage) and (payload is not None or user):
            outcome = outcome.of(payload or b"", user)
        if isinstance(outcome, LeftOut | ResumeAsked) or _topic_problem(mqtt_topic):
            return Explanation(mqtt_topic, None, {}, outcome)
        rule, captures = self._match(mqtt_topic)
        return Explanation(mqtt_topic, rule, captures, outcome)

    def _route(self, mqtt_topic: str) -> Outcome:
        problem = _topic_problem(mqtt_topic)
        if problem is not None:
            return NoRoute(problem, "")
        if mqtt_topic.startswith("$"):
            return LeftOut("broker", "")
        if mqtt_topic.startswith(f"{MOVES_TOPIC}/"):
            return LeftOut("move", "")
        if self._answers is not None and mqtt_topic.startswith(self._answers):
            return LeftOut("command", "")
        for name, matches in self._commands:
            if matches(mqtt_topic):
                return LeftOut("command", name)
        asks = None if self._resume is None else self._resume.match(mqtt_topic.split("/"))
        if asks is not None:
            problem = name_problem(asks["device"], self._max_name)
            return NoRoute(f"the device {problem}", "") if problem else ResumeAsked(asks["device"])
        rule, captures = self._match(mqtt_topic)
        namespace = None
        if rule.namespace is not None:
            named = rule.namespace.fill(captures)
            namespace = None if named == self._usual else named
            if namespace not in rule.namespaces:
                return NoRoute(f"the namespace {named[:100]!r} is not one of pulsar.namespaces", "")
        local = rule.topic.fill_encoded(captures)
        device = None if rule.device is None or rule.device.fields else rule.device.fill(captures)
        route: Route | NoRoute | PerMessage
        if rule.fields:
            kept = {name: captures[name] for name in rule.captures}
            of = partial(self._of_message, rule, kept, local, namespace)
            route = PerMessage(rule.name, local, namespace, of)
        else:
            route = self._filled(rule, captures, local, namespace)
        if isinstance(route, NoRoute):
            return route
        return self._refused(rule, local, namespace, mqtt_topic, device) or route

    def _refused(
        self, rule: CompiledRule, local: str, namespace: str | None, mqtt_topic: str, device: str | None
    ) -> NoRoute | None:
        """Return why no message of this topic may be written there; else count the Pulsar topic."""
        if len(local) > MAX_LOCAL_NAME:
            return NoRoute(
                f"the Pulsar topic's name would have {len(local)} characters, at most {MAX_LOCAL_NAME} are taken",
                "",
            )
        if rule is self._default:
            for name, topics, keys in self._claimed:
                if topics(local) and keys(mqtt_topic):
                    return NoRoute(
                        f"no rule matches, and under this key the topic {local} belongs to rule {name}", local
                    )
        full = local if namespace is None else f"{namespace}/{local}"
        why = self._budget.refusal(rule.name, device, full, fixed=rule.topic_is_fixed)
        return None if why is None else NoRoute(f"{why}, and this would be one more", local, namespace)

    def _filled(
        self, rule: CompiledRule, captures: dict[str, str], local: str, namespace: str | None
    ) -> Route | NoRoute:
        device = None if rule.device is None else rule.device.fill(captures)
        key = rule.key.fill(captures)
        if not key or device == "":
            return NoRoute(f"rule {rule.name} finds no text for its key or device", local, namespace)
        for what, name in (("device", device), ("key", key)):
            problem = None if name is None else name_problem(name, self._max_name)
            if problem is not None:
                return NoRoute(f"rule {rule.name}: the {what} {problem}", local, namespace)
        command = None
        if rule.command_topic is not None:
            command = rule.command_topic.fill(captures)
            if _topic_problem(command):
                return NoRoute(f"rule {rule.name}: the command topic would be no MQTT topic", local, namespace)
        return Route(rule.name, local, key, device, command, namespace)

    def _of_message(
        self,
        rule: CompiledRule,
        captures: dict[str, str],
        local: str,
        namespace: str | None,
        payload: bytes,
        user: Sequence[tuple[str, str]],
    ) -> Route | NoRoute:
        if len(payload) > self._max_payload:
            return NoRoute(f"rule {rule.name}: a payload of {len(payload)} bytes is not searched", local, namespace)
        try:
            found = read_fields(rule.fields, payload, user)
        except MissingField as e:
            return NoRoute(f"rule {rule.name} finds no device or key: {e}", local, namespace)
        if rule.command_topic is not None:
            for field in rule.command_topic.fields:
                if any(c in found[field.name] for c in "/+#\0"):
                    return NoRoute(
                        f"rule {rule.name}: {{{field.name}}} has a character that cannot stand in a level of the "
                        "command topic",
                        local,
                        namespace,
                    )
        return self._filled(rule, captures | found, local, namespace)

    def _match(self, mqtt_topic: str) -> tuple[CompiledRule, dict[str, str]]:
        levels = mqtt_topic.split("/")
        for rule in (*self._rules, self._default):
            captures = rule.filter.match(levels)
            if captures is not None:
                for number, level in enumerate(levels, 1):
                    captures[f"level{number}"] = level
                captures["mqtt_topic"] = mqtt_topic
                return rule, captures
        raise AssertionError("the default matches every topic")


def topic_budget(settings: IngestSettings, known: Iterable[str] = ()) -> TopicBudget:
    """Return the budget of the Pulsar topics that routes may name; ``known`` ones exist."""
    return TopicBudget(settings.max_topics, settings.max_topics_per_device, settings.topic_idle_s, known)


def _names_of(rule: CompiledRule) -> Callable[[str], bool]:
    """Return whether a rule can name a Pulsar topic."""
    matches = matcher(rule.local_pattern)

    def names(full: str) -> bool:
        namespace, _, local = full.rpartition("/")
        return (namespace or None) in rule.namespaces and matches(local)

    return names


def _topic_problem(topic: str) -> str | None:
    """Return why nobody can publish to a topic (MQTT 5, 4.7.3), None when somebody can."""
    try:
        size = len(topic) if topic.isascii() else len(topic.encode())
    except UnicodeEncodeError:
        size = 0
    if not size:
        return "the MQTT topic is empty or not UTF-8"
    if size > _MAX_MQTT_TOPIC:
        return f"the MQTT topic has {size} bytes, MQTT allows {_MAX_MQTT_TOPIC}"
    if "+" in topic or "#" in topic or "\0" in topic:
        return "the MQTT topic has a wildcard or U+0000, which MQTT forbids"
    return None
