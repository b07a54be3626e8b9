"""One rule of the topic mapping, as it stands in the settings and in the files of ``conf/presets/``."""

from __future__ import annotations

from pydantic import Field

from bridge.settings.base import Section

__all__ = ["TopicRule"]


class TopicRule(Section):
    """One rule of the topic mapping; the first whose filter matches decides."""

    name: str = Field(min_length=1, description="Name of the rule, as it stands in the envelope and in logs.")
    filter: str = Field(
        min_length=1,
        description="MQTT filter with named captures: ``plant/+line/+device/#rest``; plain ``+`` and ``#`` match unnamed.",
    )
    topic: str = Field("{level1}", description="Template of the Pulsar topic's local name; captures in braces.")
    key: str | None = Field(None, description="Template of the key; default: the device, else the full MQTT topic.")
    device: str | None = Field(
        None,
        description="Template that names the device: a capture, or what each message says, as {user:device-id} (user "
        "property) or {json:$.device.id} (payload); a message without it is a dead letter.",
    )
    command_topic: str | None = Field(
        None, description="Template of the MQTT topic on which the device takes commands."
    )
    namespace: str | None = Field(
        None,
        description="Template of the Pulsar namespace as tenant/namespace, one of pulsar.namespaces; default: the usual one.",
    )
    reading_id: str | None = Field(
        None,
        description="Where a message has its own id, as {json:$.id} or {user:id}. Tables with keys recognize repeats "
        "by it; ingest does not read it (`topics explain` shows it).",
    )
    reading_time: str | None = Field(
        None, description="Where a message has its time, as {json:$.time}; like reading_id."
    )
    shared: bool = Field(
        False,
        description="Whether messages of other rules may meet this rule's in one Pulsar topic under one key, "
        "for example when several rules name the same devices.",
    )
