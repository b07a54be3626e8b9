"""What the settings of push bound a partition by. Pure."""

from __future__ import annotations

from bridge.push.queues import Limits
from bridge.settings.push import PushSettings

__all__ = ["limits_of"]


def limits_of(push: PushSettings) -> Limits:
    """Return the limits of a partition's core, in its units."""
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
