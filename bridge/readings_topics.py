"""Which readings topics are known before the first message, and which of them a job reads. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from bridge.settings import Settings
from bridge.topic_patterns import Star
from bridge.topic_rules import compile_rules

__all__ = ["static_topics", "topics_to_read"]


def static_topics(settings: Settings) -> list[str]:
    """Return the full names of the readings topics that rules name without a capture."""
    rules, _ = compile_rules(settings.ingest, settings.pulsar)
    found = []
    for rule in rules:
        parts = rule.local_pattern
        if not any(isinstance(part, Star) for part in parts):
            local = "".join(str(part) for part in parts)
            found += [
                settings.pulsar.readings_topic(local, name) for name in sorted(rule.namespaces, key=str)
            ]
    return list(dict.fromkeys(found))


def topics_to_read(settings: Settings, topics_in: Callable[[str], Iterable[str]]) -> list[str]:
    """Return the full names of the topics that a job reads.

    They are those of ``streaming.topics``, else those that the rules name without a capture, else all that the readings
    namespaces hold now, as ``topics_in`` tells of each.
    """
    pulsar = settings.pulsar
    named = [pulsar.readings_topic(name) for name in settings.streaming.topics] or static_topics(settings)
    return list(dict.fromkeys(named)) or [
        topic for namespace in pulsar.readings_namespaces for topic in topics_in(namespace)
    ]
