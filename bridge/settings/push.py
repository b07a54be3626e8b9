"""Settings of the push tier: windows, confirmation and expiry of commands."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from bridge.groups import template_problem
from bridge.settings.base import Section
from bridge.topic_templates import Filter

__all__ = ["GroupRule", "PresenceRule", "PushSettings"]


class PresenceRule(Section):
    """Which messages tell that a device is there: birth messages and wills."""

    filter: str = Field(min_length=1, description="MQTT filter that captures the device: devices/+device/status.")
    absent: tuple[str, ...] = Field(
        ("offline", ""),
        description="Payloads that say that the device is gone, as its will does; all others say that it is there.",
    )

    @field_validator("filter")
    @classmethod
    def _captures(cls, value: str) -> str:
        if "device" not in Filter.parse(value).names:
            raise ValueError(f"filter {value!r} captures no device: write +device for the level that names it")
        return value


class GroupRule(Section):
    """A group of devices; what Spark writes with ``format("pulsebridge_groups")`` adds to it."""

    name: str = Field(min_length=1, description="Name of the group.")
    devices: tuple[str, ...] = Field(
        (),
        description="Its devices: names, and patterns with * and ? over the devices that have had a command or are "
        "in a group; to have published makes no member.",
    )


class PushSettings(Section):
    """How commands are pulled from Pulsar and pushed to the devices."""

    confirm: Literal["broker", "device"] = Field(
        "broker",
        description="What settles a command: the MQTT broker's PUBACK, or the device's own answer, which alone promises "
        "delivery.",
    )
    answer_topic: str = Field(
        "pulsebridge/answers",
        min_length=1,
        pattern=r"^[^+#\x00]*[^+#/\x00]$",
        description="MQTT topic below which devices answer; each installation at a broker needs its own. With MQTT 5 push "
        "publishes to its level nobody/+, to see whether the broker tells when nobody is subscribed: let it write there.",
    )
    resumed_topic: str = Field(
        "pulsebridge/resumed",
        min_length=1,
        pattern=r"^[^+#\x00]*[^+#/\x00]$",
        description="MQTT topic below which a device that has asked where to go on (ingest.resume_topic) is told what became "
        "of that: <resumed_topic>/<device>; ingest takes nothing from there. Each installation at a broker needs its own.",
    )
    resume_max: int = Field(
        10_000,
        ge=1,
        description="Commands that a device gets once more by one such request; of more the newest, and it is told so.",
    )
    resume_every_s: float = Field(
        5.0,
        ge=0,
        description="A device that asks more often than this is served by its latest request, in seconds.",
    )
    resume_earliest: bool = Field(
        False,
        description="Whether such a request may say earliest. A position proves by its tag that its device sends it; earliest "
        "proves nothing, so allow it only if the MQTT broker lets each device publish to its own resume topic alone.",
    )
    resume_refusals_per_s: float = Field(
        20.0,
        gt=0,
        description="Requests per second that push refuses with an answer, per partition; more are dropped.",
    )
    answer_timeout_s: float = Field(
        10.0, gt=0, description="How long a device may take to answer before its command fails, in seconds."
    )
    puback_timeout_s: float = Field(
        60.0,
        gt=0,
        description="How long the MQTT broker may take to confirm a command on a connection that lives, in seconds; then the "
        "connection is made anew, and what is not confirmed goes again.",
    )
    answer_bytes: int = Field(
        4096, ge=0, le=1024 * 1024, description="How much of an answer its receipt keeps, in bytes."
    )
    attempts: int = Field(
        0,
        ge=0,
        description="A command that was refused or not answered this often goes to the dead letters, and the next one has "
        "its turn; 0: it is sent again without end.",
    )
    position_in: Literal["properties", "topic"] = Field(
        "properties",
        description="Where a command says its position: user properties (MQTT 5), or, for devices that cannot read those, "
        "also six levels behind its topic: <mqtt_topic>/0/3/7/1/-1/<tag>, and /repeat behind a repeated one.",
    )
    window: int = Field(256, ge=1, le=32767, description="Commands pushed and not yet confirmed, per partition.")
    window_mb: int = Field(
        16,
        ge=1,
        description="MB of commands pushed and not yet confirmed, per partition; a larger one goes alone.",
    )
    device_window: int = Field(
        1,
        ge=1,
        le=64,
        description="Commands pushed beyond the stored cursor, per device; above 1 a refused command can be overtaken.",
    )
    client_id: str = Field(
        "pulsebridge-push", min_length=1, description="Prefix of the client id of each partition's link."
    )
    pending: int = Field(
        4000,
        ge=10,
        le=4900,
        description="Commands taken from Pulsar and not acknowledged, per partition; full means stop reading.",
    )
    pending_mb: int = Field(
        64,
        ge=8,
        description="MB of commands taken from Pulsar and not acknowledged, per partition, and as much of parked ones that are read again.",
    )
    device_pending: int = Field(
        1000,
        ge=1,
        description="Commands that wait here for a device that refuses them; with more it is parked, and with "
        "push.offline: retry later ones go to the dead letters.",
    )
    remembered_ids: int = Field(
        256,
        ge=64,
        le=4096,
        description="Command ids that each cursor remembers at least, to drop repeated ones: 16 times as many where they are "
        "at most a week older than the device's newest.",
    )
    retry_min_s: float = Field(0.2, gt=0, description="First wait before a refused command is sent again, in seconds.")
    retry_max_s: float = Field(
        30.0, gt=0, description="Longest wait before a refused command is sent again, in seconds."
    )
    drain_s: float = Field(
        20.0, gt=0, description="How long a clean stop may wait for PUBACKs and receipts, in seconds."
    )
    offline: Literal["park", "refused", "retry"] = Field(
        "park",
        description="What holds commands of devices that are away. park: Pulsar, as soon as the absence is known; refused: "
        "the MQTT broker in the device's persistent session, and Pulsar where it refuses or nobody answers; retry: they "
        "are sent again until they are taken.",
    )
    presence: tuple[PresenceRule, ...] = Field(
        (),
        description="Birth and will messages that tell which devices are there; the first rule that matches decides.",
    )
    park_after: int = Field(3, ge=1, description="So many failures in a row, without a sign of life, park a device.")
    silence_s: float = Field(
        0.0,
        ge=0,
        description="A device that was heard of, and not for so long, counts as absent, in seconds; 0: never.",
    )
    parked_max: int = Field(
        10_000,
        ge=1,
        description="Commands that wait in Pulsar for one device; newer ones go to the dead letters (receipt overflowed).",
    )
    replay_rate: int = Field(
        50,
        ge=1,
        description="Waiting commands pushed in a second to devices that are back, per partition. One worker pushes about a "
        "thousand commands a second in all: keep this well below, or live devices wait while many come back at once.",
    )
    move_parked_after_s: float = Field(
        86_400.0,
        ge=0,
        description="Commands that wait in Pulsar for longer are moved to the topic parked-commands, so that one device that "
        "is away does not keep everybody's commands from being trimmed, in seconds; 0: never.",
    )
    probe_min_s: float = Field(
        20.0,
        gt=0,
        le=60,
        description="First wait before a parked device is tried with one command, in seconds; doubled at each try. All such "
        "tries take an eighth of replay_rate at most.",
    )
    probe_max_s: float = Field(1800.0, gt=0, description="Longest wait between two such tries, in seconds.")
    unsure_s: float = Field(
        300.0,
        ge=0,
        description="With confirm: broker, commands confirmed since a device's last sign of life are sent again, marked, "
        "after it was away; those confirmed longer ago than this are not. In seconds.",
    )
    groups: tuple[GroupRule, ...] = Field(
        (), description="Groups of devices, beside those that Spark writes; a name may come once."
    )
    group_pattern_max: int = Field(
        100_000,
        ge=1,
        description="Devices that the patterns of one group may mean; the others get no commands to it.",
    )
    group_topic: str = Field(
        "devices/{device}/commands",
        description="MQTT topic of commands to groups, for those that name none; {device} stands for the device.",
    )
    group_expiry_s: float = Field(
        604_800.0,
        gt=0,
        le=31_622_400,
        description="A command to a group expires after this at the latest, in seconds; until then those who join get "
        "it, and Pulsar keeps it.",
    )
    group_cache_mb: int = Field(
        64, ge=8, description="MB of payloads of commands to groups that a push process keeps at hand."
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
                raise ValueError(f"group {name!r} is there {names.count(name)} times: give it all its devices in one")
        return value
