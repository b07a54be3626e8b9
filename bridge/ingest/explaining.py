"""What ``pulsebridge topics explain`` tells of one MQTT topic. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bridge.contract import DEAD_LETTERS_TOPIC, RESUME_TOPIC
from bridge.display import text_of
from bridge.mapping import Mapper, NoRoute, PerMessage, ResumeAsked, Route
from bridge.murmur3 import partition_of
from bridge.settings import Settings
from bridge.topic_rules import subscriptions, with_resume
from bridge.topic_templates import Filter

__all__ = ["explanation_of", "explanation_text"]

_LEFT_OUT = {
    "broker": "topics that begin with $ are the MQTT broker's own",
    "command": "it is a topic of commands or of push's answers, and those are no readings",
    "move": "ingest itself publishes there when filters move between sessions",
}


def explanation_of(
    settings: Settings,
    mqtt_topic: str,
    payload: bytes | None = None,
    user: Sequence[tuple[str, str]] = (),
) -> dict[str, Any]:
    """Return the explanation as it is printed with ``--json``. Raises ConfigError when the rules are wrong.

    Where a rule takes the device from each message, ``payload`` and ``user`` properties stand for one.
    """
    mapper = Mapper(
        settings.ingest,
        pulsar=settings.pulsar,
        answers=settings.push.resumed_topic,
        max_name_bytes=settings.max_name_bytes,
    )
    found = mapper.explain(mqtt_topic, payload, user)
    rule = found.rule
    levels = mqtt_topic.split("/")
    filters = with_resume(subscriptions(settings.ingest), settings.ingest)
    subscribed = [f for f in filters if Filter.parse(f).match(levels) is not None]
    explained: dict[str, Any] = {
        "mqtt_topic": mqtt_topic,
        "subscribed_by": subscribed,
        "rule": None if rule is None else rule.name,
        "preset": None if rule is None else settings.ingest.preset_of(rule.name),
        "filter": None if rule is None else rule.filter.mqtt,
        "captures": {n: v for n, v in found.captures.items() if n != "mqtt_topic" and not n.startswith("level")},
        "outcome": "written",
    }
    outcome = found.outcome
    if not subscribed and isinstance(outcome, Route | PerMessage):  # the default rule; it subscribes to nothing here
        explained |= {"outcome": "not received", "rule": None, "captures": {}}
    elif isinstance(outcome, Route):
        partitions = settings.pulsar.partitions
        explained |= {
            "pulsar_topic": settings.pulsar.readings_topic(outcome.local, outcome.namespace),
            "partition": partition_of(outcome.key, partitions),
            "partitions": partitions,
            "key": outcome.key,
            "device": outcome.device,
            "command_topic": outcome.command_topic,
        }
    elif isinstance(outcome, PerMessage):
        assert rule is not None
        explained |= {
            "outcome": "written, key and device by what each message says",
            "pulsar_topic": settings.pulsar.readings_topic(outcome.local, outcome.namespace),
            "key": rule.key.text,
            "device": None if rule.device is None else rule.device.text,
            "command_topic": None if rule.command_topic is None else rule.command_topic.text,
        }
    elif isinstance(outcome, ResumeAsked):
        explained |= {
            "outcome": "written for push: the device asks for its commands after a position",
            "pulsar_topic": settings.pulsar.system_topic(RESUME_TOPIC),
        }
    elif isinstance(outcome, NoRoute):
        explained |= {
            "outcome": "dead letter",
            "why": outcome.reason,
            "pulsar_topic": settings.pulsar.system_topic(DEAD_LETTERS_TOPIC),
        }
    else:
        explained |= {"outcome": "left out", "why": _LEFT_OUT[outcome.reason], "rule": outcome.rule or None}
    given = next((r for r in settings.ingest.all_rules if rule is not None and r.name == rule.name), None)
    if given is not None and "key" in explained:
        explained |= {"reading_id": given.reading_id, "reading_time": given.reading_time}
    return explained


def explanation_text(explained: dict[str, Any]) -> str:
    """Return the explanation for people."""
    lines = [("MQTT topic", explained["mqtt_topic"])]
    lines.append(("subscribed by", ", ".join(explained["subscribed_by"]) or "no filter"))
    lines.append(("outcome", explained["outcome"] + (f", {explained['why']}" if "why" in explained else "")))
    if explained["rule"]:
        lines.append(("rule", explained["rule"] + (f" ({explained['filter']})" if explained["filter"] else "")))
    if explained.get("preset"):
        lines.append(("preset", explained["preset"]))
    if explained["captures"]:
        lines.append(("captures", ", ".join(f"{name} = {value}" for name, value in explained["captures"].items())))
    if "pulsar_topic" in explained:
        lines.append(("Pulsar topic", explained["pulsar_topic"]))
    if "partition" in explained:
        lines.append(
            (
                "partition",
                f"{explained['partition']} of {explained['partitions']}, if the topic is made by this configuration",
            )
        )
    if "key" in explained:
        lines.append(("key", explained["key"]))
        lines.append(("device", explained["device"] or "none: no rule names one"))
        lines.append(("command topic", explained["command_topic"] or "none"))
    lines += [
        (name.replace("_", " "), explained[name]) for name in ("reading_id", "reading_time") if explained.get(name)
    ]
    width = max(len(name) for name, _ in lines)
    return text_of(f"{name:<{width}}  {value}" for name, value in lines)
