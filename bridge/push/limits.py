"""What bounds a partition, in the units of its core: counts of commands, sizes in bytes, times in µs.

Each has the meaning of the setting that ``limits_of`` takes it from (``bridge.settings.push``).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bridge.settings.push import PushSettings

__all__ = ["AnswerLimits", "Limits", "ParkedLimits", "PresenceLimits", "ResumeLimits", "RetryLimits", "limits_of"]


@dataclass(frozen=True, slots=True)
class RetryLimits:
    """What bounds the retries of a command."""

    min_us: int = 200_000
    max_us: int = 30_000_000
    attempts: int = 0


@dataclass(frozen=True, slots=True)
class AnswerLimits:
    """What bounds the answers of devices."""

    confirm: bool = False
    """Whether the device's own answer confirms a command (``confirm: device``), not the broker's PUBACK."""
    timeout_us: int = 10_000_000
    size: int = 4096


@dataclass(frozen=True, slots=True)
class PresenceLimits:
    """When a device counts as offline, and when it is probed."""

    park_after: int = 3
    silence_us: int = 0
    probe_min_us: int = 20_000_000
    probe_max_us: int = 1_800_000_000


@dataclass(frozen=True, slots=True)
class ParkedLimits:
    """What bounds parked commands and their replay."""

    most: int = 10_000
    coalesce_us: int = 50_000  # how long parked ids are gathered before they are stored (H29)
    replay_rate: int = 500
    replay_window: int = 512  # parked commands read and not settled, of all devices
    relocate_after_us: int = 0
    unsure_us: int = 300_000_000


@dataclass(frozen=True, slots=True)
class ResumeLimits:
    """What bounds the requests of devices that keep their own offset."""

    most: int = 10_000
    every_us: int = 5_000_000


@dataclass(frozen=True, slots=True)
class Limits:
    """What bounds a partition."""

    window: int = 256
    window_bytes: int = 16 * 1024 * 1024  # payloads sent and not confirmed, in bytes; a larger one goes alone
    remembered_ids: int = 256
    pending: int = 4000
    pending_bytes: int = 64 * 1024 * 1024
    """Payloads received and not acknowledged, in bytes; the last one received may go beyond."""
    device_pending: int = 1000
    awake: int = 2000  # devices with nothing under way that stay in memory: those that had something lately
    puback_timeout_us: int = 60_000_000
    retry: RetryLimits = field(default_factory=RetryLimits)
    answers: AnswerLimits = field(default_factory=AnswerLimits)
    presence: PresenceLimits = field(default_factory=PresenceLimits)
    parked: ParkedLimits = field(default_factory=ParkedLimits)
    resume: ResumeLimits = field(default_factory=ResumeLimits)


def limits_of(push: PushSettings) -> Limits:
    """Return the limits that the settings give."""
    limits, offline, presence = push.limits, push.offline, push.presence
    return Limits(
        window=limits.window,
        window_bytes=limits.window_size,
        remembered_ids=limits.remembered_ids,
        pending=limits.pending,
        pending_bytes=limits.pending_size,
        device_pending=limits.device_pending,
        puback_timeout_us=_us(push.puback_timeout),
        retry=RetryLimits(_us(push.retry.min_wait), _us(push.retry.max_wait), push.retry.attempts),
        answers=AnswerLimits(push.confirm == "device", _us(push.answers.timeout), push.answers.stored_size),
        presence=PresenceLimits(
            park_after=presence.max_failures,
            silence_us=_us(presence.silence),
            probe_min_us=_us(offline.probe_min),
            probe_max_us=_us(max(offline.probe_min, offline.probe_max)),
        ),
        parked=ParkedLimits(
            most=offline.max_commands,
            replay_rate=offline.replay_rate,
            relocate_after_us=_us(offline.relocate_after),
            unsure_us=_us(offline.resend_confirmed),
        ),
        resume=ResumeLimits(push.resume.max_commands, _us(push.resume.interval)),
    )


def _us(seconds: float) -> int:
    return int(seconds * 1e6)
