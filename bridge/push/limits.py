"""What bounds a partition, in the units of its core."""

from __future__ import annotations

from dataclasses import dataclass

from bridge.settings.push import PushSettings

__all__ = ["Limits", "limits_of"]


@dataclass(frozen=True, slots=True)
class Limits:
    """What bounds a partition. Counts of commands; times in µs."""

    window: int = 256
    window_bytes: int = 16 * 1024 * 1024
    """Payloads sent and not confirmed, in bytes; a larger one goes alone."""
    remembered_ids: int = 256
    pending: int = 4000
    pending_bytes: int = 64 * 1024 * 1024
    """Payloads received and not acknowledged, in bytes; the last one received may go beyond."""
    device_pending: int = 1000
    retry_min_us: int = 200_000
    retry_max_us: int = 30_000_000
    answers: bool = False
    """Whether the device's own answer confirms a command (``confirm: device``), not the broker's PUBACK."""
    answer_timeout_us: int = 10_000_000
    answer_bytes: int = 4096
    """How much of an answer the receipt contains."""
    park_absent: bool = True
    """Whether a sign of absence parks; else only refusals of the broker and missing answers do."""
    park_after: int = 3
    """So many failures in a row park a device."""
    silence_us: int = 0
    """A device without a sign of life for so long counts as absent; 0: never."""
    parked_max: int = 10_000
    """Parked commands of one device; newer ones go to the dead letters."""
    coalesce_us: int = 50_000
    """How long parked ids are gathered before they are stored (H29)."""
    replay_rate: int = 500
    """Parked commands read for replay, per second."""
    move_after_us: int = 0
    """Commands that are parked for longer are relocated to a topic of their own; 0: never."""
    replay_window: int = 512
    """Parked commands read and not settled, of all devices."""
    probe_min_us: int = 20_000_000
    probe_max_us: int = 1_800_000_000
    unsure_us: int = 300_000_000
    """Commands that the broker confirmed longer ago are not sent again on parking."""
    resume_max: int = 10_000
    """Commands that a device gets when it asks for them; of more the newest."""
    resume_every_us: int = 5_000_000
    """A device that asks more often is served by its latest request."""
    puback_timeout_us: int = 60_000_000
    """A PUBACK that takes longer ends the connection."""
    attempts: int = 0
    """A command that failed this often goes to the dead letters; 0: no limit."""


def limits_of(push: PushSettings) -> Limits:
    """Return the limits that the settings give."""
    return Limits(
        window=push.limits.window,
        window_bytes=push.limits.window_size,
        remembered_ids=push.limits.remembered_ids,
        pending=push.limits.pending,
        pending_bytes=push.limits.pending_size,
        device_pending=push.limits.device_pending,
        retry_min_us=int(push.retry.min_wait * 1e6),
        retry_max_us=int(push.retry.max_wait * 1e6),
        answers=push.confirm == "device",
        answer_timeout_us=int(push.answers.timeout * 1e6),
        answer_bytes=push.answers.stored_size,
        resume_max=push.resume.max_commands,
        resume_every_us=int(push.resume.interval * 1e6),
        puback_timeout_us=int(push.puback_timeout * 1e6),
        attempts=push.retry.attempts,
        park_absent=push.offline.store == "pulsar",
        park_after=push.presence.max_failures,
        silence_us=int(push.presence.silence * 1e6),
        parked_max=push.offline.max_commands,
        replay_rate=push.offline.replay_rate,
        move_after_us=int(push.offline.relocate_after * 1e6),
        probe_min_us=int(push.offline.probe_min * 1e6),
        probe_max_us=int(max(push.offline.probe_min, push.offline.probe_max) * 1e6),
        unsure_us=int(push.offline.resend_confirmed * 1e6),
    )
