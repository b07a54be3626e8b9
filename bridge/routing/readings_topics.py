"""Finds the readings topics that the rules name, and those that a job reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from bridge.routing.patterns import Star, meet
from bridge.routing.rules import CompiledRule, compile_rules
from bridge.routing.templates import Filter

if TYPE_CHECKING:
    from bridge.settings import Settings

__all__ = ["static_topics", "topics_to_read"]


def static_topics(settings: Settings) -> list[str]:
    """Return the full names of the readings topics that rules name without a capture."""
    rules, _ = compile_rules(settings.ingest, settings.pulsar)
    return list(dict.fromkeys(name for rule in rules for name in _fixed(rule, settings) or ()))


def topics_to_read(
    settings: Settings, topics_in: Callable[[str], Iterable[str]], filters: Iterable[str] = ("#",)
) -> list[str]:
    """Return the full names of the topics that may contain messages of these MQTT filters.

    They are those of ``streaming.topics``. Without that setting they are those of the rules that may match such
    messages, if each rule names one without a capture. Otherwise they are all topics of the readings namespaces;
    ``topics_in`` lists those of one. Raises ValueError for an invalid filter.
    """
    pulsar = settings.pulsar
    if settings.streaming.topics:
        return [pulsar.readings_topic(name) for name in settings.streaming.topics]
    fixed = [_fixed(rule, settings) for text in filters for rule in _may_match(settings, Filter.parse(text))]
    if fixed and None not in fixed:
        return list(dict.fromkeys(name for names in fixed for name in names or ()))
    return [topic for namespace in pulsar.readings_namespaces for topic in topics_in(namespace)]


def _may_match(settings: Settings, wanted: Filter) -> Iterator[CompiledRule]:
    """Yield the rules that may be the first match of a message of a filter."""
    rules, _ = compile_rules(settings.ingest, settings.pulsar)
    for rule in rules:
        if any(meet(a, b) for a in wanted.patterns for b in rule.filter.patterns):
            yield rule
        if rule.filter.mqtt == wanted.mqtt:
            return


def _fixed(rule: CompiledRule, settings: Settings) -> list[str] | None:
    """Return the topics of a rule that names one without a capture, else None."""
    parts = rule.local_pattern
    if any(isinstance(part, Star) for part in parts):
        return None
    local = "".join(str(part) for part in parts)
    return [settings.pulsar.readings_topic(local, name) for name in sorted(rule.namespaces, key=str)]
