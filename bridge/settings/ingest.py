"""Settings of the ingest tier: topic rules and limits."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from bridge.routing.shard import Shard
from bridge.routing.templates import Filter
from bridge.settings.base import Section
from bridge.settings.links import LinkSettings
from bridge.settings.presets import load_preset, preset_names
from bridge.settings.rules import TopicRule

__all__ = ["IngestSettings", "TopicRule"]


class IngestSettings(Section):
    """The sources in MQTT, the targets in Pulsar, and the limits of ingest."""

    links: tuple[LinkSettings, ...] = Field(
        (),
        description="MQTT brokers to read from, each with its differences from the section mqtt; default: only that "
        "one.",
    )
    rules: tuple[TopicRule, ...] = Field((), description="Topic rules, in order.")
    presets: tuple[str, ...] = Field(
        (),
        description="Names of ready-made rules that apply after ingest.rules: zigbee2mqtt, tasmota, homie, homie4, "
        "chirpstack, thethingsstack. A rule in ingest.rules replaces a ready-made one of the same name.",
    )
    filters: tuple[str, ...] = Field(
        (), description="MQTT filters to subscribe to; default: the rules' own filters, without rules ``#``."
    )
    shard: str | None = Field(
        None,
        description="Number of this worker among several, as I/N from 0 on; with host/N, I is the number at the end of "
        "the host's name. Groups of filters without a common device are distributed to the workers, each with its own "
        "session.",
    )
    share: str | None = Field(
        None,
        pattern=r"^[^/+#\s]+$",
        description="Group of a shared subscription ($share). The broker sends each message to any worker of the "
        "group, so the order per device is lost. It sends no retained messages.",
    )
    qos: Literal[0, 1] = Field(
        1,
        description="QoS of the subscriptions, 0 or 1; at 1 a message published at QoS 2 arrives at least once, never "
        "less.",
    )
    max_in_flight: int = Field(1000, ge=1, le=32767, description="Maximum number of unacknowledged messages from MQTT.")
    max_in_flight_bytes: int = Field(
        64 * 1024 * 1024, ge=1024 * 1024, description="Maximum bytes from MQTT that are not yet stored in Pulsar."
    )
    max_message_bytes: int = Field(
        5 * 1024 * 1024,
        ge=128 * 1024,
        description="Pulsar's maxMessageSize, in bytes; larger messages are dead letters.",
    )
    max_dead_letter_bytes: int = Field(
        32 * 1024 * 1024,
        ge=64 * 1024,
        description="Payloads that Pulsar does not accept are kept as dead letters, in chunks, up to this size, in "
        "bytes; of larger ones only the head is kept, and they count as lost.",
    )
    max_topics: int = Field(
        1000,
        ge=1,
        description="Maximum number of Pulsar topics that devices may name by one rule, and as many for messages "
        "without a rule; beyond it: dead letters.",
    )
    max_topics_per_device: int = Field(
        100,
        ge=1,
        description="Maximum number of these topics that one device may name, if the MQTT topic contains the device.",
    )
    topic_idle_s: float = Field(
        86_400.0,
        gt=0,
        description="A Pulsar topic without messages for one to two times this, in seconds, does not count towards "
        "both; it stays in Pulsar.",
    )
    idle_producer_s: float = Field(
        600.0,
        gt=0,
        description="The producer of a partition without messages is closed after this, in seconds; the next message "
        "opens another.",
    )
    max_producers: int = Field(
        2000,
        ge=1,
        description="Maximum number of open producers of a link, one for each written partition; beyond it those "
        "without a message for 5 seconds are closed, the longest idle first.",
    )
    retained: Literal["keep", "mark", "skip"] = Field(
        "mark",
        description="Messages that the broker sends because of a subscription: keep them like any other, "
        "mark them in the envelope, or skip them.",
    )
    allow_loopback: bool = Field(
        False, description="Accept filters that match a command topic (commands are still left out)."
    )
    advertise_s: float = Field(
        15.0,
        gt=0,
        description="How often this process renews its record for `pulsebridge status`, in seconds; after four times "
        "that without a record it counts as ended.",
    )
    presence_every_s: float = Field(
        30.0,
        ge=0,
        description="How often ingest records a publishing device in Pulsar, in seconds; it records the first message "
        "after a silence at once. Push wakes parked devices by these records. 0: never.",
    )
    resume_topic: str | None = Field(
        "pulsebridge/resume/+device",
        description="MQTT filter that captures the device. Devices publish the position of their last command on it, "
        "and push sends them the commands after it. Each installation at a broker needs its own filter. null: no "
        "resume.",
    )
    drain_s: float = Field(20.0, gt=0, description="Maximum time of a clean stop for Pulsar's receipts, in seconds.")
    stall_s: float = Field(
        10.0, gt=0, description="Age of the oldest unacknowledged message that gives a WARNING, in seconds."
    )
    silent_s: float = Field(
        300.0,
        ge=0,
        description="If a link gets no message for this long after its subscription, a WARNING names possible causes "
        "at the broker, in seconds; 0 never.",
    )
    on_blocked: Literal["wait", "deadletter"] = Field(
        "wait",
        description="What happens to messages of a topic that accepts none while Pulsar accepts others, for example "
        "over its quota. wait: the whole link waits; deadletter: the messages go to the dead letters until a replay.",
    )
    blocked_s: float = Field(
        60.0, gt=0, description="A topic that accepts no message for this long counts as blocked, in seconds."
    )

    @field_validator("qos", mode="before")
    @classmethod
    def _safe(cls, value: object) -> object:
        if str(value) == "2":
            raise ValueError(
                "must be 0 or 1: Pulsar gets each message at least once, so QoS 2 would cost two more packets without "
                "another guarantee. Leave it at 1: messages at QoS 2 then arrive at least once, and with an id in the "
                "payload tables drop repeats"
            )
        return value

    @field_validator("resume_topic")
    @classmethod
    def _captures_device(cls, value: str | None) -> str | None:
        if value is not None and "device" not in Filter.parse(value).names:
            raise ValueError(f"filter {value!r} captures no device: write +device for its level")
        return value

    @field_validator("presets")
    @classmethod
    def _known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if name not in preset_names():
                raise ValueError(f"unknown preset {name!r}; known: {', '.join(preset_names())}")
        return tuple(dict.fromkeys(names))

    @property
    def all_rules(self) -> tuple[TopicRule, ...]:
        """The rules in force, in order: ``rules``, then those of the presets that none of them replaces."""
        names = {rule.name for rule in self.rules}
        ready = [rule for name in self.presets for rule in load_preset(name).rules]
        return (*self.rules, *(rule for rule in ready if rule.name not in names))

    def preset_of(self, rule: str) -> str | None:
        """Return the preset of a rule in force, None for a rule of ``rules``."""
        if any(one.name == rule for one in self.rules):
            return None
        return next((n for n in self.presets if any(r.name == rule for r in load_preset(n).rules)), None)

    @field_validator("shard")
    @classmethod
    def _numbered(cls, value: str | None) -> str | None:
        if value is not None:
            Shard.parse(value)
        return value
