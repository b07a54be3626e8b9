"""Explanation of the route of one MQTT topic, for ``pulsebridge topics explain``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bridge.contract import DEAD_LETTERS_TOPIC, RESUME_TOPIC
from bridge.contract.partitioning import partition_of
from bridge.routing.mapper import Mapper, NoRoute, PerMessage, ResumeAsked, Route
from bridge.routing.rules import subscriptions, with_resume
from bridge.routing.templates import Filter
from bridge.settings import Settings
from pulsebridge.output.text import text_of

__all__ = ["explanation_of", "explanation_text"]

_LEFT_OUT = {
    "broker": "topics that begin with $ belong to the MQTT broker",
    "command": "it is a topic of commands or of push's answers, not of readings",
    "move": "ingest itself publishes there when filters move between sessions",
}


def explanation_of(
    settings: Settings,
    mqtt_topic: str,
    payload: bytes | None = None,
    user: Sequence[tuple[str, str]] = (),
) -> dict[str, Any]:
    """Return the explanation for ``--json``. Raises ConfigError if the rules are invalid.

    If a rule reads the device from each message, ``payload`` and ``user`` properties are those of the message.
    """
    found = Mapper(settings).explain(mqtt_topic, payload, user)
    rule = found.rule
    levels = mqtt_topic.split("/")
    filters = with_resume(subscriptions(settings.ingest), settings.ingest)
    subscribed = [f for f in filters if Filter.parse(f).match(levels) is not None]
    explanation: dict[str, Any] = {
        "mqtt_topic": mqtt_topic,
        "subscribed_by": subscribed,
        "rule": None if rule is None else rule.name,
        "preset": None if rule is None else settings.ingest.preset_of(rule.name),
        "filter": None if rule is None else rule.filter.mqtt,
        "captures": {n: v for n, v in found.captures.items() if n != "mqtt_topic" and not n.startswith("level")},
        "outcome": "written",
    }
    outcome = found.outcome
    if not subscribed and isinstance(outcome, Route | PerMessage):  # the default rule, not subscribed
        explanation |= {"outcome": "not received", "rule": None, "captures": {}}
    elif isinstance(outcome, Route):
        partitions = settings.pulsar.partitions
        explanation |= {
            "pulsar_topic": outcome.topic,
            "partition": partition_of(outcome.key, partitions),
            "partitions": partitions,
            "key": outcome.key,
            "device": outcome.device,
            "command_topic": outcome.command_topic,
        }
    elif isinstance(outcome, PerMessage):
        assert rule is not None
        explanation |= {
            "outcome": "written, with key and device from each message",
            "pulsar_topic": outcome.topic,
            "key": rule.key.text,
            "device": None if rule.device is None else rule.device.text,
            "command_topic": None if rule.command_topic is None else rule.command_topic.text,
        }
    elif isinstance(outcome, ResumeAsked):
        explanation |= {
            "outcome": "written for push: a request of the device for its commands after a position",
            "pulsar_topic": settings.pulsar.system_topic(RESUME_TOPIC),
        }
    elif isinstance(outcome, NoRoute):
        explanation |= {
            "outcome": "dead letter",
            "why": outcome.reason,
            "pulsar_topic": settings.pulsar.system_topic(DEAD_LETTERS_TOPIC),
        }
    else:
        explanation |= {"outcome": "left out", "why": _LEFT_OUT[outcome.reason], "rule": outcome.rule or None}
    given = next((r for r in settings.ingest.all_routes if rule is not None and r.name == rule.name), None)
    if given is not None and "key" in explanation:
        explanation |= {"reading_id": given.reading_id, "reading_time": given.reading_time}
    return explanation


def explanation_text(explanation: dict[str, Any]) -> str:
    """Return the explanation for people."""
    lines = [("MQTT topic", explanation["mqtt_topic"])]
    lines.append(("subscribed by", ", ".join(explanation["subscribed_by"]) or "no filter"))
    lines.append(("outcome", explanation["outcome"] + (f", {explanation['why']}" if "why" in explanation else "")))
    if explanation["rule"]:
        lines.append(("rule", explanation["rule"] + (f" ({explanation['filter']})" if explanation["filter"] else "")))
    if explanation.get("preset"):
        lines.append(("preset", explanation["preset"]))
    if explanation["captures"]:
        lines.append(("captures", ", ".join(f"{name} = {value}" for name, value in explanation["captures"].items())))
    if "pulsar_topic" in explanation:
        lines.append(("Pulsar topic", explanation["pulsar_topic"]))
    if "partition" in explanation:
        lines.append(
            (
                "partition",
                f"{explanation['partition']} of {explanation['partitions']}, if this configuration creates the topic",
            )
        )
    if "key" in explanation:
        lines.append(("key", explanation["key"]))
        lines.append(("device", explanation["device"] or "none: no rule names one"))
        lines.append(("command topic", explanation["command_topic"] or "none"))
    lines += [
        (name.replace("_", " "), explanation[name]) for name in ("reading_id", "reading_time") if explanation.get(name)
    ]
    width = max(len(name) for name, _ in lines)
    return text_of(f"{name:<{width}}  {value}" for name, value in lines)
