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
        window=push.window,
        window_bytes=push.window_mb * 1024 * 1024,
        remembered_ids=push.remembered_ids,
        pending=push.pending,
        pending_bytes=push.pending_mb * 1024 * 1024,
        device_pending=push.device_pending,
        retry_min_us=int(push.retry_min_s * 1e6),
        retry_max_us=int(push.retry_max_s * 1e6),
        answers=push.confirm == "device",
        answer_timeout_us=int(push.answer_timeout_s * 1e6),
        answer_bytes=push.answer_bytes,
        resume_max=push.resume_max,
        resume_every_us=int(push.resume_every_s * 1e6),
        puback_timeout_us=int(push.puback_timeout_s * 1e6),
        attempts=push.attempts,
        park_absent=push.offline == "park",
        park_after=push.park_after,
        silence_us=int(push.silence_s * 1e6),
        parked_max=push.parked_max,
        replay_rate=push.replay_rate,
        move_after_us=int(push.move_parked_after_s * 1e6),
        probe_min_us=int(push.probe_min_s * 1e6),
        probe_max_us=int(max(push.probe_min_s, push.probe_max_s) * 1e6),
        unsure_us=int(push.unsure_s * 1e6),
    )
