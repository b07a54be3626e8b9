"""Decides the Pulsar topic, key, device and command topic of a message.

It applies ordered rules, and a default if no rule matches: the first level names the topic, the full MQTT topic is the
key. Two MQTT topics have the same Pulsar topic and key only if a rule specifies it: it names a device or a key, or is
``shared``. No MQTT topic names a Pulsar topic outside the configured namespaces. ``bridge.routing.rules`` decides
which rules are refused. The ingest worker writes messages, and handles those without a route.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from bridge.contract import MOVES_TOPIC, namespace_of
from bridge.contract.names import name_problem
from bridge.errors import ConfigError
from bridge.routing.message_fields import MissingField, read_fields
from bridge.routing.patterns import matcher
from bridge.routing.rules import (
    DEFAULT,
    CompiledRule,
    compile_rules,
    mapping_problems,
    resume_filter,
)
from bridge.routing.templates import MAX_LOCAL_NAME
from bridge.routing.topic_budget import TopicBudget

if TYPE_CHECKING:
    from bridge.settings import Settings
    from bridge.settings.pulsar import PulsarSettings

__all__ = [
    "Explanation",
    "LeftOut",
    "Mapper",
    "NoRoute",
    "Outcome",
    "PerMessage",
    "ResumeAsked",
    "Route",
]

_MAX_MQTT_TOPIC: Final = 65_535
"""Maximum length of an MQTT topic, in bytes (MQTT 5, 1.5.4)."""


class Route(NamedTuple):
    """The target of a message. ``device`` and ``command_topic`` are None if the rule names none."""

    rule: str
    topic: str
    """Full name of the Pulsar topic."""
    key: str
    device: str | None
    command_topic: str | None


class NoRoute(NamedTuple):
    """The reason why a message has no Pulsar topic; it goes to the dead letters."""

    reason: str
    topic: str = ""
    """Full name of the topic that the rule names, empty without one."""


class LeftOut(NamedTuple):
    """The reason why a message is not a reading: it is acknowledged, counted and not written."""

    reason: str
    rule: str


class ResumeAsked(NamedTuple):
    """A resume request of a device, for its commands after a position; it goes to the owner of its commands."""

    device: str


class PerMessage(NamedTuple):
    """The route of a topic whose messages contain the key, device or command topic. Call ``of`` for each message."""

    topic: str
    of: Callable[[bytes, Sequence[tuple[str, str]]], Route | NoRoute]
    """Maps a message's payload and user properties."""


Outcome = Route | NoRoute | LeftOut | PerMessage | ResumeAsked


@dataclass(frozen=True, slots=True)
class Explanation:
    """The mapping of one MQTT topic: its rule, captures and outcome."""

    rule: CompiledRule | None
    captures: dict[str, str]
    outcome: Outcome


class Mapper:
    """Maps MQTT topics by the rules of one configuration. Used by one thread.

    ``known`` are the full names of the existing topics, which count towards ``limits.topics``. A budget is shared with
    the mappers of other threads. Raises ConfigError if the rules are invalid.
    """

    def __init__(self, settings: Settings, known: Iterable[str] | TopicBudget = ()) -> None:
        ingest, pulsar = settings.ingest, settings.pulsar
        problems = mapping_problems(ingest, pulsar)
        if problems:
            raise ConfigError("; ".join(problems))
        self._rules, _ = compile_rules(ingest, pulsar)
        self._default_namespace = pulsar.readings_namespaces[0]
        self._full_name = pulsar.readings_topic
        self._max_name = settings.max_name_bytes
        self._max_payload = ingest.limits.message_size
        self._budget = known if isinstance(known, TopicBudget) else TopicBudget(ingest.limits, known)
        self._period = self._budget.period
        self._commands = [(rule.name, matcher(rule.command_pattern)) for rule in self._rules if rule.command_topic]
        self._claimed = [
            (rule.name, matcher(rule.local_pattern), matcher(rule.key.pattern()))
            for rule in self._rules
            if not rule.shared and not rule.key_is_the_topic and None in rule.namespaces
        ]
        self._answers = f"{settings.push.resume.answer_topic}/"
        self._resume = resume_filter(ingest)
        for rule in (*self._rules, DEFAULT):
            self._budget.claim(rule.name, _names_of(rule, pulsar))

    @property
    def topics(self) -> int:
        """The number of Pulsar topics that exist or were named, without released ones."""
        return len(self._budget)

    def forgets(self, now: float) -> bool:
        """Return whether topics were released since the last call: then the caller drops all results of this mapper.

        ``now`` is in seconds.
        """
        self._budget.turn(now)
        if self._period == self._budget.period:
            return False
        self._period = self._budget.period
        return True

    def explain(
        self, mqtt_topic: str, payload: bytes | None = None, user: Sequence[tuple[str, str]] = ()
    ) -> Explanation:
        """Return the rule of a topic, its captures and its outcome; counts its Pulsar topic as ``route`` does.

        Fields of the message are read from the payload and the user properties, if they are given.
        """
        outcome = self.route(mqtt_topic)
        if isinstance(outcome, PerMessage) and (payload is not None or user):
            outcome = outcome.of(payload or b"", user)
        if isinstance(outcome, LeftOut | ResumeAsked) or _topic_problem(mqtt_topic):
            return Explanation(None, {}, outcome)
        rule, captures = self._match(mqtt_topic)
        return Explanation(rule, captures, outcome)

    def route(self, mqtt_topic: str) -> Outcome:
        """Map one topic, and count its Pulsar topic."""
        problem = _topic_problem(mqtt_topic)
        if problem is not None:
            return NoRoute(problem)
        if mqtt_topic.startswith("$"):
            return LeftOut("broker", "")
        if mqtt_topic.startswith(f"{MOVES_TOPIC}/"):
            return LeftOut("move", "")
        if mqtt_topic.startswith(self._answers):
            return LeftOut("command", "")
        for name, matches in self._commands:
            if matches(mqtt_topic):
                return LeftOut("command", name)
        resume = None if self._resume is None else self._resume.match(mqtt_topic.split("/"))
        if resume is not None:
            problem = name_problem(resume["device"], self._max_name)
            return NoRoute(f"the device {problem}") if problem else ResumeAsked(resume["device"])
        rule, captures = self._match(mqtt_topic)
        namespace = None
        if rule.namespace is not None:
            named = rule.namespace.fill(captures)
            namespace = None if named == self._default_namespace else named
            if namespace not in rule.namespaces:
                return NoRoute(f"the namespace {named[:100]!r} is not one of pulsar.namespaces")
        local = rule.topic.fill_encoded(captures)
        topic = self._full_name(local, namespace)
        device = None if rule.device is None or rule.device.fields else rule.device.fill(captures)
        route: Route | NoRoute | PerMessage
        if rule.fields:
            used = {name: captures[name] for name in rule.captures}
            route = PerMessage(topic, partial(self._of_message, rule, used, topic))
        else:
            route = self._filled(rule, captures, topic)
        if isinstance(route, NoRoute):
            return route
        return self._refused(rule, local, topic, mqtt_topic, device) or route

    def _refused(
        self, rule: CompiledRule, local: str, topic: str, mqtt_topic: str, device: str | None
    ) -> NoRoute | None:
        """Return why messages of this topic may not be written there; else count the Pulsar topic."""
        if len(local) > MAX_LOCAL_NAME:
            return NoRoute(f"the Pulsar topic's name would have {len(local)} characters, the limit is {MAX_LOCAL_NAME}")
        if rule is DEFAULT:
            for name, topics, keys in self._claimed:
                if topics(local) and keys(mqtt_topic):
                    return NoRoute(
                        f"no rule matches, and rule {name} can write to the topic {local} under this key", topic
                    )
        why = self._budget.refusal(rule.name, device, topic, fixed=rule.topic_is_fixed)
        return None if why is None else NoRoute(f"{why}, and this topic would exceed it", topic)

    def _filled(self, rule: CompiledRule, captures: dict[str, str], topic: str) -> Route | NoRoute:
        device = None if rule.device is None else rule.device.fill(captures)
        key = rule.key.fill(captures)
        if not key or device == "":
            return NoRoute(f"rule {rule.name} finds no text for its key or device", topic)
        for what, name in (("device", device), ("key", key)):
            problem = None if name is None else name_problem(name, self._max_name)
            if problem is not None:
                return NoRoute(f"rule {rule.name}: the {what} {problem}", topic)
        command = None
        if rule.command_topic is not None:
            command = rule.command_topic.fill(captures)
            if _topic_problem(command):
                return NoRoute(f"rule {rule.name}: the command topic is not a valid MQTT topic", topic)
        return Route(rule.name, topic, key, device, command)

    def _of_message(
        self,
        rule: CompiledRule,
        captures: dict[str, str],
        topic: str,
        payload: bytes,
        user: Sequence[tuple[str, str]],
    ) -> Route | NoRoute:
        if len(payload) > self._max_payload:
            return NoRoute(f"rule {rule.name}: a payload of {len(payload)} bytes is not searched", topic)
        try:
            found = read_fields(rule.fields, payload, user)
        except MissingField as e:
            return NoRoute(f"rule {rule.name} finds no device or key: {e}", topic)
        if rule.command_topic is not None:
            for field in rule.command_topic.fields:
                if any(c in found[field.name] for c in "/+#\0"):
                    return NoRoute(
                        f"rule {rule.name}: {{{field.name}}} has a character that is not valid in a level of the "
                        "command topic",
                        topic,
                    )
        return self._filled(rule, captures | found, topic)

    def _match(self, mqtt_topic: str) -> tuple[CompiledRule, dict[str, str]]:
        levels = mqtt_topic.split("/")
        for rule in (*self._rules, DEFAULT):
            captures = rule.filter.match(levels)
            if captures is not None:
                for number, level in enumerate(levels, 1):
                    captures[f"level{number}"] = level
                captures["mqtt_topic"] = mqtt_topic
                return rule, captures
        raise AssertionError("the default matches every topic")


def _names_of(rule: CompiledRule, pulsar: PulsarSettings) -> Callable[[str], bool]:
    """Return a function that decides whether a rule can name a Pulsar topic."""
    matches = matcher(rule.local_pattern)
    namespaces = {namespace_of(pulsar.readings_topic("", name)) for name in rule.namespaces}

    def names(topic: str) -> bool:
        return namespace_of(topic) in namespaces and matches(topic.rpartition("/")[2])

    return names


def _topic_problem(topic: str) -> str | None:
    """Return why a topic is not valid in a PUBLISH (MQTT 5, 4.7.3), None if it is."""
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
