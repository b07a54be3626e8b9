"""Settings of the push tier: confirmation, retries, limits, offline devices, groups and resume requests."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

from bridge.contract.groups import GROUP_MARK, template_problem
from bridge.settings.base import COMMON, Section, checked_by
from bridge.settings.rules import DeviceFilter
from bridge.settings.units import Duration, Size

__all__ = [
    "AnswerSettings",
    "GroupRule",
    "GroupSettings",
    "OfflineSettings",
    "PresenceRule",
    "PresenceSettings",
    "PushLimits",
    "PushSettings",
    "ResumeSettings",
    "RetrySettings",
]


class PresenceRule(Section):
    """A rule for messages that show whether a device is online: birth messages and wills."""

    filter: DeviceFilter = Field(min_length=1)
    """MQTT filter that captures the device: devices/+device/status."""
    absent: tuple[str, ...] = ("offline", "")
    """Payloads for an offline device, such as its will; all others mean that it is online. Ingest takes these for no sign
    of life either, if a route reads the topic."""


class GroupRule(Section):
    """A group of devices; memberships from Spark's ``format("pulsebridge_groups")`` add to it."""

    name: str = Field(min_length=1)
    """Name of the group."""
    devices: tuple[str, ...] = ()
    """Its devices: names, and patterns with * and ?. Patterns match devices that have had a command or are in a group,
    but not devices that have only published."""


class AnswerSettings(Section):
    """The answers of devices, with ``push.confirm: device``."""

    topic: str = Field("pulsebridge/answers", min_length=1, pattern=r"^[^+#\x00]*[^+#/\x00]$")
    """MQTT topic below which devices answer; each installation at a broker needs its own. With MQTT 5 push publishes to
    its level ``nobody/+``, to test whether the broker reports topics without a subscriber: allow it."""
    timeout: Duration = Field(Duration("10s"), gt=0)
    """Maximum time of a device for its answer before its command fails."""
    stored_size: Size = Field(Size("4KiB"), ge=0, le=1024 * 1024)
    """Maximum size of an answer that its receipt keeps."""


class RetrySettings(Section):
    """Retries of commands that a device refuses or does not answer."""

    min_wait: Duration = Field(Duration("200ms"), gt=0)
    """First wait before a retry of a refused command."""
    max_wait: Duration = Field(Duration("30s"), gt=0)
    """Longest wait before a retry of a refused command."""
    attempts: int = Field(0, ge=0)
    """Failed attempts of a command, refused or not answered, after which it goes to the dead letters and the next one
    follows; 0: no limit. After push.presence.max_failures failures a silent device counts as offline, and the count
    starts at zero when it is back; with fewer attempts, commands of such a device become dead letters instead."""


class PushLimits(Section):
    """The limits of a partition."""

    window: int = Field(256, ge=1, le=32767)
    """Maximum number of unconfirmed pushed commands, per partition."""
    window_size: Size = Field(Size("16MiB"), ge=1024 * 1024)
    """Maximum size of unconfirmed pushed commands, per partition; a larger command is pushed alone."""
    pending: int = Field(4000, ge=10, le=4900)
    """Maximum number of unacknowledged commands from Pulsar, per partition; at the limit push stops reading."""
    pending_size: Size = Field(Size("64MiB"), ge=8 * 1024 * 1024)
    """Maximum size of unacknowledged commands from Pulsar, per partition, and as much of parked ones that are read."""
    device_pending: int = Field(1000, ge=1)
    """Maximum number of commands in memory for a device that refuses them; with more it is parked."""
    remembered_ids: int = Field(256, ge=64, le=4096)
    """Minimum number of command ids that each cursor remembers, to drop repeated ones: up to 16 times as many if they
    are at most a week older than the device's newest."""


class PresenceSettings(Section):
    """How push detects which devices are online."""

    rules: tuple[PresenceRule, ...] = Field((), json_schema_extra=COMMON)
    """Birth and will messages that show which devices are online; the first matching rule applies."""
    silence: Duration = Field(Duration(0), ge=0)
    """Time since its last sign of life after which a device counts as offline; 0: never."""
    max_failures: int = Field(3, ge=1)
    """Consecutive failures without a sign of life after which a device is parked."""


class OfflineSettings(Section):
    """Commands of offline devices, which wait in Pulsar: their limit, and their delivery when a device reconnects."""

    max_commands: int = Field(10_000, ge=1)
    """Maximum number of commands that wait in Pulsar for one device; newer ones go to the dead letters (receipt
    overflowed)."""
    replay_rate: int = Field(50, ge=1)
    """Parked commands pushed per second to reconnected devices, per partition. One worker pushes about a thousand
    commands a second in all: keep this much lower, so that live devices do not wait while many reconnect."""
    relocate_after: Duration = Field(Duration("1d"), ge=0)
    """Time after which waiting commands are copied to the topic parked-commands; 0: never. Then Pulsar can trim the
    commands of other devices."""
    probe_min: Duration = Field(Duration("20s"), gt=0, le=60)
    """First wait before push probes a parked device with one command; doubled at each probe. All probes use at most an
    eighth of replay_rate."""
    probe_max: Duration = Field(Duration("30m"), gt=0)
    """Longest wait between two probes."""
    resend_confirmed: Duration = Field(Duration("5m"), ge=0)
    """Maximum age of confirmed commands to resend. With confirm: broker, push resends to a device that was offline,
    marked, the commands confirmed since its last sign of life."""


def _is_template(text: str) -> None:
    problem = template_problem(text)
    if problem is not None:
        raise ValueError(f"{problem}, for example devices/{{device}}/commands")


def _is_group_template(text: str) -> None:
    problem = template_problem(text, GROUP_MARK)
    if problem is not None:
        raise ValueError(f"{problem}, for example groups/{{group}}/commands")


class GroupSettings(Section):
    """Groups of devices, and commands to groups."""

    declared: tuple[GroupRule, ...] = ()
    """Groups of devices, in addition to those that Spark writes; names must be unique."""
    max_matches: int = Field(100_000, ge=1)
    """Maximum number of devices that the patterns of one group match; others get no commands to the group."""
    topic: Annotated[str, checked_by(_is_template)] = "devices/{device}/commands"
    """MQTT topic of group commands without one; {device} is the device."""
    broadcast_topic: Annotated[str, checked_by(_is_group_template)] = "groups/{group}/commands"
    """MQTT topic of broadcasts, which the members of a group subscribe to; {group} is the group. With position_in: topic
    the positions of the broadcast and of the group's command before it follow as levels."""
    expiry: Duration = Field(Duration("7d"), gt=0, le=31_622_400)
    """Latest expiry of a group command; until then new members get it, and Pulsar keeps it."""
    cache_size: Size = Field(Size("64MiB"), ge=8 * 1024 * 1024)
    """Maximum size of the payloads of group commands in the cache of a push process."""

    @field_validator("declared")
    @classmethod
    def _once(cls, value: tuple[GroupRule, ...]) -> tuple[GroupRule, ...]:
        names = [rule.name for rule in value]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(
                    f"group {name!r} is listed {names.count(name)} times: list all its devices in one entry"
                )
        return value


class ResumeSettings(Section):
    """Requests of devices to resend the commands after a position (``ingest.resume_topic``)."""

    answer_topic: str = Field("pulsebridge/resumed", min_length=1, pattern=r"^[^+#\x00]*[^+#/\x00]$")
    """MQTT topic below which push answers resume requests (ingest.resume_topic): <answer_topic>/<device>; ingest reads
    no messages of it. Each installation at a broker needs its own."""
    max_commands: int = Field(10_000, ge=1)
    """Maximum number of commands that push resends for one resume request; of more it resends the newest, and the
    answer reports it."""
    interval: Duration = Field(Duration("5s"), ge=0)
    """If a device sends more than one resume request in this time, the latest one counts."""
    allow_earliest: bool = False
    """Whether a resume request may be earliest. The tag of a position proves that its device sends it; earliest has no
    proof, so allow it only if the MQTT broker lets each device publish only to its own resume topic."""
    refusals_per_second: float = Field(20.0, gt=0)
    """Maximum number of resume requests per second that push refuses with an answer, per partition; more are dropped.
    """


class PushSettings(Section):
    """Pulling of commands from Pulsar, and pushing to the devices."""

    client_id: str = Field("pulsebridge-push", min_length=1)
    """Prefix of the client ids of each partition's links."""
    confirm: Literal["broker", "device"] = Field("broker", json_schema_extra=COMMON)
    """Confirmation of a command: the MQTT broker's PUBACK, or the device's answer. Only the answer guarantees delivery.
    """
    puback_timeout: Duration = Field(Duration("60s"), gt=0)
    """Maximum time of the MQTT broker to confirm a command on a working connection; then push reconnects and resends
    unconfirmed commands."""
    position_in: Literal["properties", "topic"] = "properties"
    """Where devices find the position of a command: in user properties (MQTT 5), or, for devices that cannot read
    those, also in six levels after its topic: <mqtt_topic>/0/3/7/1/-1/<tag>, with /repeat after a repeated one."""
    drain: Duration = Field(Duration("20s"), gt=0)
    """Maximum time of a clean stop for PUBACKs and receipts."""
    answers: AnswerSettings = Field(default_factory=AnswerSettings)
    retry: RetrySettings = Field(default_factory=RetrySettings)
    limits: PushLimits = Field(default_factory=PushLimits)
    presence: PresenceSettings = Field(default_factory=PresenceSettings)
    offline: OfflineSettings = Field(default_factory=OfflineSettings)
    groups: GroupSettings = Field(default_factory=GroupSettings)
    resume: ResumeSettings = Field(default_factory=ResumeSettings)
