"""Settings of the push tier: windows, confirmation and expiry of commands."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from bridge.contract.groups import template_problem
from bridge.routing.templates import Filter
from bridge.settings.base import Section

__all__ = ["GroupRule", "PresenceRule", "PushSettings"]


class PresenceRule(Section):
    """A rule for messages that show whether a device is online: birth messages and wills."""

    filter: str = Field(min_length=1, description="MQTT filter that captures the device: devices/+device/status.")
    absent: tuple[str, ...] = Field(
        ("offline", ""),
        description="Payloads for an offline device, such as its will; all others mean that it is online.",
    )

    @field_validator("filter")
    @classmethod
    def _captures(cls, value: str) -> str:
        if "device" not in Filter.parse(value).names:
            raise ValueError(f"filter {value!r} captures no device: write +device for its level")
        return value


class GroupRule(Section):
    """A group of devices; memberships from Spark's ``format("pulsebridge_groups")`` add to it."""

    name: str = Field(min_length=1, description="Name of the group.")
    devices: tuple[str, ...] = Field(
        (),
        description="Its devices: names, and patterns with * and ?. Patterns match devices that have had a command or "
        "are in a group, but not devices that have only published.",
    )


class PushSettings(Section):
    """Pulling of commands from Pulsar, and pushing to the devices."""

    confirm: Literal["broker", "device"] = Field(
        "broker",
        description="Confirmation of a command: the MQTT broker's PUBACK, or the device's answer. Only the answer "
        "guarantees delivery.",
    )
    answer_topic: str = Field(
        "pulsebridge/answers",
        min_length=1,
        pattern=r"^[^+#\x00]*[^+#/\x00]$",
        description="MQTT topic below which devices answer; each installation at a broker needs its own. With MQTT 5 "
        "push publishes to its level nobody/+, to test whether the broker reports topics without a subscriber: allow "
        "it.",
    )
    resumed_topic: str = Field(
        "pulsebridge/resumed",
        min_length=1,
        pattern=r"^[^+#\x00]*[^+#/\x00]$",
        description="MQTT topic below which push answers resume requests (ingest.resume_topic): "
        "<resumed_topic>/<device>; ingest reads no messages of it. Each installation at a broker needs its own.",
    )
    resume_max: int = Field(
        10_000,
        ge=1,
        description="Maximum number of commands that push resends for one resume request; of more it resends the "
        "newest, and the answer reports it.",
    )
    resume_every_s: float = Field(
        5.0,
        ge=0,
        description="If a device sends more than one resume request in this time, in seconds, the latest one counts.",
    )
    resume_earliest: bool = Field(
        False,
        description="Whether a resume request may be earliest. The tag of a position proves that its device sends it; "
        "earliest has no proof, so allow it only if the MQTT broker lets each device publish only to its own resume "
        "topic.",
    )
    resume_refusals_per_s: float = Field(
        20.0,
        gt=0,
        description="Maximum number of resume requests per second that push refuses with an answer, per partition; "
        "more are dropped.",
    )
    answer_timeout_s: float = Field(
        10.0, gt=0, description="Maximum time of a device for its answer before its command fails, in seconds."
    )
    puback_timeout_s: float = Field(
        60.0,
        gt=0,
        description="Maximum time of the MQTT broker to confirm a command on a working connection, in seconds; then "
        "push reconnects and resends unconfirmed commands.",
    )
    answer_bytes: int = Field(4096, ge=0, le=1024 * 1024, description="Bytes of an answer that its receipt keeps.")
    attempts: int = Field(
        0,
        ge=0,
        description="Failed attempts of a command, refused or not answered, after which it goes to the dead letters "
        "and the next one follows; 0: no limit.",
    )
    position_in: Literal["properties", "topic"] = Field(
        "properties",
        description="Where devices find the position of a command: in user properties (MQTT 5), or, for devices that "
        "cannot read those, also in six levels after its topic: <mqtt_topic>/0/3/7/1/-1/<tag>, with /repeat after a "
        "repeated one.",
    )
    window: int = Field(
        256, ge=1, le=32767, description="Maximum number of unconfirmed pushed commands, per partition."
    )
    window_mb: int = Field(
        16,
        ge=1,
        description="Maximum MB of unconfirmed pushed commands, per partition; a larger command is pushed alone.",
    )
    client_id: str = Field(
        "pulsebridge-push", min_length=1, description="Prefix of the client id of each partition's link."
    )
    pending: int = Field(
        4000,
        ge=10,
        le=4900,
        description="Maximum number of unacknowledged commands from Pulsar, per partition; at the limit push stops "
        "reading.",
    )
    pending_mb: int = Field(
        64,
        ge=8,
        description="Maximum MB of unacknowledged commands from Pulsar, per partition, and as much of parked ones that "
        "are read.",
    )
    device_pending: int = Field(
        1000,
        ge=1,
        description="Maximum number of commands in memory for a device that refuses them; with more it is parked.",
    )
    remembered_ids: int = Field(
        256,
        ge=64,
        le=4096,
        description="Minimum number of command ids that each cursor remembers, to drop repeated ones: up to 16 times "
        "as many if they are at most a week older than the device's newest.",
    )
    retry_min_s: float = Field(0.2, gt=0, description="First wait before a retry of a refused command, in seconds.")
    retry_max_s: float = Field(30.0, gt=0, description="Longest wait before a retry of a refused command, in seconds.")
    drain_s: float = Field(20.0, gt=0, description="Maximum time of a clean stop for PUBACKs and receipts, in seconds.")
    offline: Literal["park", "refused"] = Field(
        "park",
        description="Store for commands of offline devices. park: Pulsar, as soon as push detects that a device is "
        "offline; refused: the MQTT broker in the device's persistent session, and Pulsar if it refuses a command or "
        "the device does not answer.",
    )
    presence: tuple[PresenceRule, ...] = Field(
        (),
        description="Birth and will messages that show which devices are online; the first matching rule applies.",
    )
    park_after: int = Field(
        3, ge=1, description="Consecutive failures without a sign of life after which a device is parked."
    )
    silence_s: float = Field(
        0.0,
        ge=0,
        description="Time since its last sign of life after which a device counts as offline, in seconds; 0: never.",
    )
    parked_max: int = Field(
        10_000,
        ge=1,
        description="Maximum number of commands that wait in Pulsar for one device; newer ones go to the dead letters "
        "(receipt overflowed).",
    )
    replay_rate: int = Field(
        50,
        ge=1,
        description="Parked commands pushed per second to reconnected devices, per partition. One worker pushes about "
        "a thousand commands a second in all: keep this much lower, so that live devices do not wait while many "
        "reconnect.",
    )
    move_parked_after_s: float = Field(
        86_400.0,
        ge=0,
        description="Time after which waiting commands are copied to the topic parked-commands, in seconds; 0: never. "
        "Then Pulsar can trim the commands of other devices.",
    )
    probe_min_s: float = Field(
        20.0,
        gt=0,
        le=60,
        description="First wait before push probes a parked device with one command, in seconds; doubled at each "
        "probe. All probes use at most an eighth of replay_rate.",
    )
    probe_max_s: float = Field(1800.0, gt=0, description="Longest wait between two probes, in seconds.")
    unsure_s: float = Field(
        300.0,
        ge=0,
        description="Maximum age of confirmed commands to resend, in seconds. With confirm: broker, push resends to a "
        "device that was offline, marked, the commands confirmed since its last sign of life.",
    )
    groups: tuple[GroupRule, ...] = Field(
        (), description="Groups of devices, in addition to those that Spark writes; names must be unique."
    )
    group_pattern_max: int = Field(
        100_000,
        ge=1,
        description="Maximum number of devices that the patterns of one group match; others get no commands to the "
        "group.",
    )
    group_topic: str = Field(
        "devices/{device}/commands",
        description="MQTT topic of group commands without one; {device} is the device.",
    )
    group_expiry_s: float = Field(
        604_800.0,
        gt=0,
        le=31_622_400,
        description="Latest expiry of a group command, in seconds; until then new members get it, and Pulsar keeps it.",
    )
    group_cache_mb: int = Field(
        64, ge=8, description="MB of payloads of group commands in the cache of a push process."
    )

    @field_validator("group_topic")
    @classmethod
    def _template(cls, value: str) -> str:
        problem = template_problem(value)
        if problem is not None:
            raise ValueError(f"{problem}, for example devices/{{device}}/commands")
        return value

    @field_validator("groups")
    @classmethod
    def _once(cls, value: tuple[GroupRule, ...]) -> tuple[GroupRule, ...]:
        names = [rule.name for rule in value]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(
                    f"group {name!r} is listed {names.count(name)} times: list all its devices in one entry"
                )
        return value
