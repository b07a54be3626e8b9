"""What the settings of push bound a partition by. Pure."""

from __future__ import annotations

from bridge.push.queues import Limits
from bridge.settings.push import PushSettings

__all__ = ["limits_of"]


def limits_of(push: PushSettings) -> Limits:
    """Return the limits of a partition's core, in its units."""
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
