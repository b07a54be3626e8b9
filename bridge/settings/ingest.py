"""Settings of the ingest tier: topic rules and what bounds it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from bridge.settings.base import Section

__all__ = ["IngestSettings", "TopicRule"]


class TopicRule(Section):
    """One rule of the topic mapping; the first whose filter matches decides."""

    name: str = Field(min_length=1, description="Name of the rule, as it stands in the envelope and in logs.")
    filter: str = Field(
        min_length=1,
        description="MQTT filter with named captures: ``plant/+line/+device/#rest``; plain ``+`` and ``#`` match unnamed.",
    )
    topic: str = Field(
        "{level1}", description="Template of the Pulsar topic's local name; captures in braces."
    )
    key: str | None = Field(
        None, description="Template of the key; default: the device, else the full MQTT topic."
    )
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
    shared: bool = Field(
        False,
        description="Whether messages of other rules may meet this rule's in one Pulsar topic under one key, "
        "for example when several rules name the same devices.",
    )


class IngestSettings(Section):
    """What is read from MQTT, where it goes, and how much may be in flight."""

    rules: tuple[TopicRule, ...] = Field((), description="Topic rules, in order.")
    filters: tuple[str, ...] = Field(
        (), description="MQTT filters to subscribe to; default: the rules' own filters, without rules ``#``."
    )
    qos: Literal[0, 1] = Field(
        1, description="QoS of the subscriptions; at 1 a message published at QoS 2 arrives at least once."
    )
    max_in_flight: int = Field(
        1000, ge=1, le=32767, description="Messages taken from MQTT and not yet acknowledged."
    )
    max_in_flight_bytes: int = Field(
        64 * 1024 * 1024, ge=1024 * 1024, description="Bytes taken from MQTT and not yet stored in Pulsar."
    )
    max_message_bytes: int = Field(
        5 * 1024 * 1024,
        ge=128 * 1024,
        description="Pulsar's maxMessageSize, in bytes; larger ones are dead letters.",
    )
    max_topics: int = Field(
        1000, ge=1, description="Pulsar topics that mapping may name; beyond it: dead letters."
    )
    retained: Literal["keep", "mark", "skip"] = Field(
        "mark",
        description="Messages that the broker sends because of a subscription: keep them like any other, "
        "mark them in the envelope, or skip them.",
    )
    allow_loopback: bool = Field(
        False, description="Accept filters that match a command topic (commands are still left out)."
    )
    drain_s: float = Field(
        20.0, gt=0, description="How long a clean stop may wait for Pulsar's receipts, in seconds."
    )
    stall_s: float = Field(
        10.0, gt=0, description="Age of the oldest unacknowledged message that gives a WARNING, in seconds."
    )
