"""The limits of a partition in one flat class, as the tests vary them."""

from __future__ import annotations

from dataclasses import dataclass

from bridge.push import limits
from bridge.push.limits import AnswerLimits, ParkedLimits, PresenceLimits, ResumeLimits, RetryLimits

__all__ = ["Limits"]


@dataclass(frozen=True, slots=True)
class Limits:
    """See ``bridge.push.limits`` for the meaning of each."""

    window: int = 256
    window_bytes: int = 16 * 1024 * 1024
    remembered_ids: int = 256
    pending: int = 4000
    pending_bytes: int = 64 * 1024 * 1024
    device_pending: int = 1000
    retry_min_us: int = 200_000
    retry_max_us: int = 30_000_000
    answers: bool = False
    answer_timeout_us: int = 10_000_000
    answer_bytes: int = 4096
    park_after: int = 3
    silence_us: int = 0
    parked_max: int = 10_000
    coalesce_us: int = 50_000
    replay_rate: int = 500
    move_after_us: int = 0
    replay_window: int = 512
    probe_min_us: int = 20_000_000
    probe_max_us: int = 1_800_000_000
    unsure_us: int = 300_000_000
    resume_max: int = 10_000
    resume_every_us: int = 5_000_000
    puback_timeout_us: int = 60_000_000
    attempts: int = 0
    awake: int = 2000

    def nested(self) -> limits.Limits:
        """Return the limits as a partition takes them."""
        return limits.Limits(
            window=self.window,
            window_bytes=self.window_bytes,
            remembered_ids=self.remembered_ids,
            pending=self.pending,
            pending_bytes=self.pending_bytes,
            device_pending=self.device_pending,
            awake=self.awake,
            puback_timeout_us=self.puback_timeout_us,
            retry=RetryLimits(min_us=self.retry_min_us, max_us=self.retry_max_us, attempts=self.attempts),
            answers=AnswerLimits(confirm=self.answers, timeout_us=self.answer_timeout_us, size=self.answer_bytes),
            presence=PresenceLimits(
                park_after=self.park_after,
                silence_us=self.silence_us,
                probe_min_us=self.probe_min_us,
                probe_max_us=self.probe_max_us,
            ),
            parked=ParkedLimits(
                most=self.parked_max,
                coalesce_us=self.coalesce_us,
                replay_rate=self.replay_rate,
                relocate_after_us=self.move_after_us,
                replay_window=self.replay_window,
                unsure_us=self.unsure_us,
            ),
            resume=ResumeLimits(most=self.resume_max, every_us=self.resume_every_us),
        )
