"""Settings of the ingest tier: topic rules and what bounds it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from bridge.settings.base import Section
from bridge.settings.links import LinkSettings
from bridge.settings.presets import load_preset, preset_names
from bridge.settings.rules import TopicRule
from bridge.settings.shard import Shard
from bridge.topic_templates import Filter

__all__ = ["IngestSettings", "TopicRule"]


class IngestSettings(Section):
    """What is read from MQTT, where it goes, and how much may be in flight."""

    links: tuple[LinkSettings, ...] = Field(
        (),
        description="MQTT brokers to read from, each with what differs from the section mqtt; default: that one alone.",
    )
    rules: tuple[TopicRule, ...] = Field((), description="Topic rules, in order.")
    presets: tuple[str, ...] = Field(
        (),
        description="Names of ready-made rules that come after your own: zigbee2mqtt, tasmota, homie, homie4, "
        "chirpstack, thethingsstack. A rule of yours with the name of one of theirs replaces it.",
    )
    filters: tuple[str, ...] = Field(
        (), description="MQTT filters to subscribe to; default: the rules' own filters, without rules ``#``."
    )
    shard: str | None = Field(
        None,
        description="Which of several workers this is, as I/N from 0 on, or host/N to take I from the end of the host's "
        "name; groups of filters that have no device in common are dealt to them, each with a session of its own.",
    )
    share: str | None = Field(
        None,
        pattern=r"^[^/+#\s]+$",
        description="Group of a shared subscription ($share): the broker deals each message to any worker of the group, "
        "so the order per device is lost, and no retained message is sent.",
    )
    qos: Literal[0, 1] = Field(
        1,
        description="QoS of the subscriptions, 0 or 1; at 1 a message published at QoS 2 arrives at least once, never less.",
    )
    max_in_flight: int = Field(1000, ge=1, le=32767, description="Messages taken from MQTT and not yet acknowledged.")
    max_in_flight_bytes: int = Field(
        64 * 1024 * 1024, ge=1024 * 1024, description="Bytes taken from MQTT and not yet stored in Pulsar."
    )
    max_message_bytes: int = Field(
        5 * 1024 * 1024,
        ge=128 * 1024,
        description="Pulsar's maxMessageSize, in bytes; larger ones are dead letters.",
    )
    max_dead_letter_bytes: int = Field(
        32 * 1024 * 1024,
        ge=64 * 1024,
        description="Payloads that Pulsar does not take are kept as dead letters, in chunks, up to this size, in bytes; "
        "of larger ones only the head, and they count as lost.",
    )
    max_topics: int = Field(
        1000,
        ge=1,
        description="Pulsar topics that one rule may name by what devices publish, and as many for what has no rule; beyond "
        "it: dead letters.",
    )
    max_topics_per_device: int = Field(
        100,
        ge=1,
        description="Of these, the topics that one device may name, where the MQTT topic names the device.",
    )
    topic_idle_s: float = Field(
        86_400.0,
        gt=0,
        description="A Pulsar topic without messages for this to twice this long, in seconds, no longer counts towards both; "
        "it stays in Pulsar.",
    )
    idle_producer_s: float = Field(
        600.0,
        gt=0,
        description="How long a partition may get no message until its producer is closed, in seconds; the next message "
        "opens another.",
    )
    max_producers: int = Field(
        2000,
        ge=1,
        description="Open producers of a link, one for each partition written to; beyond it those are closed that have had "
        "no message for 5 seconds, longest first.",
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
        description="How often this process renews what `pulsebridge status` shows of it, in seconds; after four times "
        "that without a sign it counts as gone.",
    )
    presence_every_s: float = Field(
        30.0,
        ge=0,
        description="While a device goes on publishing, how often it is noted in Pulsar that it is there, in seconds; its "
        "first message after a silence is noted at once. Push wakes parked devices by that. 0: never.",
    )
    resume_topic: str | None = Field(
        "pulsebridge/resume/+device",
        description="MQTT filter that captures the device: there devices publish the position of the last command that they "
        "have had, and push sends them what comes after it; each installation at a broker needs its own. null: nowhere.",
    )
    drain_s: float = Field(20.0, gt=0, description="How long a clean stop may wait for Pulsar's receipts, in seconds.")
    stall_s: float = Field(
        10.0, gt=0, description="Age of the oldest unacknowledged message that gives a WARNING, in seconds."
    )
    silent_s: float = Field(
        300.0,
        ge=0,
        description="How long a link may stay without any message after its subscription until a WARNING names what the "
        "broker may hold back, in seconds; 0 never.",
    )
    on_blocked: Literal["wait", "deadletter"] = Field(
        "wait",
        description="What becomes of messages for a topic that takes none while Pulsar takes others (over its quota, for "
        "example): they wait, and the whole link with them, or they go to the dead letters until a replay.",
    )
    blocked_s: float = Field(
        60.0, gt=0, description="How long a topic may take nothing until it counts as blocked, in seconds."
    )

    @field_validator("qos", mode="before")
    @classmethod
    def _safe(cls, value: object) -> object:
        if str(value) == "2":
            raise ValueError(
                "must be 0 or 1: Pulsar gets each message at least once, so that QoS 2 would cost two packets more and "
                "promise no more. Leave it at 1: what devices publish at QoS 2 then arrives at least once, and an id in "
                "the payload lets tables drop repeats"
            )
        return value

    @field_validator("resume_topic")
    @classmethod
    def _captures_device(cls, value: str | None) -> str | None:
        if value is not None and "device" not in Filter.parse(value).names:
            raise ValueError(f"filter {value!r} captures no device: write +device for the level that names it")
        return value

    @field_validator("presets")
    @classmethod
    def _known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if name not in preset_names():
                raise ValueError(f"there is no preset {name!r}; known: {', '.join(preset_names())}")
        return tuple(dict.fromkeys(names))

    @property
    def all_rules(self) -> tuple[TopicRule, ...]:
        """The rules in force, in order: one's own, then those of the presets that none of them replaces."""
        own = {rule.name for rule in self.rules}
        ready = [rule for name in self.presets for rule in load_preset(name).rules]
        return (*self.rules, *(rule for rule in ready if rule.name not in own))

    def preset_of(self, rule: str) -> str | None:
        """Return the name of the preset that a rule in force comes from, None for one's own."""
        if any(own.name == rule for own in self.rules):
            return None
        return next((n for n in self.presets if any(r.name == rule for r in load_preset(n).rules)), None)

    @field_validator("shard")
    @classmethod
    def _numbered(cls, value: str | None) -> str | None:
        if value is not None:
            Shard.parse(value)
        return value
