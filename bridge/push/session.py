"""A session: one time of waiting for a partition, and of owning it."""

from __future__ import annotations

import threading

from bridge.health import Part
from bridge.push.connection import Connection
from bridge.push.groups.payloads import Payloads
from bridge.push.metrics import PartitionMetrics
from bridge.push.standby import Standby
from bridge.settings import Settings

__all__ = ["Session"]


class Session:
    """One session of a partition, on the partition's thread but for ``post``, ``wake`` and ``owns``."""

    def __init__(
        self,
        settings: Settings,
        partition: int,
        metrics: PartitionMetrics,
        part: Part,
        stopping: threading.Event,
        payloads: Payloads,
        trace: str = "",
    ) -> None:
        metrics.pending_limit.set(settings.push.pending)
        metrics.pending_limit_bytes.set(settings.push.pending_mb * 1024 * 1024)
        metrics.in_flight_limit.set(settings.push.window)
        self._metrics = metrics
        self._stopping = stopping
        self._connection = Connection(settings, partition, metrics, part, stopping)
        self._standby = Standby(settings, self._connection, metrics, part, stopping, payloads, trace)
        self.owns = False
        """Whether it has become the owner: Pulsar and the MQTT broker both accepted it."""

    def post(self, event: object) -> None:
        """Hand an event to the partition's thread. From any thread."""
        self._connection.post(event)

    def wake(self) -> None:
        """End the present wait. From any thread."""
        self._connection.wake()

    def run(self) -> None:
        """Wait for the ownership, take over, and push until the process stops, or the clock is set back.

        Raises FencedError or TransientError.
        """
        try:
            owner = self._standby.take_over()
            if owner is not None:
                self.owns = True
                owner.run(self._stopping)
        finally:
            self._metrics.owner(False)
            self._connection.close()
