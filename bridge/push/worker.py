"""A push process: provisions, then tries to own every partition of its choice, until it is stopped."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final

import structlog

from bridge.contract import COMMANDS_TOPIC
from bridge.errors import ConfigError, TransientError
from bridge.health import Health
from bridge.pulsar.admin import PulsarAdmin
from bridge.pulsar.provisioning import existing_commands, provision_commands
from bridge.pulsar.watch import watching_pulsar
from bridge.push.compaction import watching_compaction
from bridge.push.groups.owner import GroupOwner
from bridge.push.groups.payloads import Payloads
from bridge.push.metrics import PushMetrics
from bridge.push.supervisor import PartitionSupervisor
from bridge.push.topics import watching_lag, watching_topics
from bridge.settings import Settings

__all__ = ["PushWorker"]

log = structlog.get_logger("push")

_WAIT_S: Final = 2.0


class PushWorker:
    """Runs the push tier in this process. ``run`` returns after ``stop``; both sides may go away and come back."""

    def __init__(
        self,
        settings: Settings,
        partitions: Sequence[int] = (),
        *,
        metrics: PushMetrics | None = None,
        health: Health | None = None,
        stopping: threading.Event | None = None,
        trace: str = "",
    ) -> None:
        """``partitions`` restricts what it may own; ``stopping`` ends ``run`` as ``stop`` does; ``trace`` is a command's
        id, a device or ``all``, whose way is logged.
        """
        self._settings = settings
        self._wanted = tuple(partitions)
        self._metrics = metrics or PushMetrics()
        self._health = health or Health(settings.metrics.stuck_after)
        self._stopping = stopping or threading.Event()
        self._trace = trace
        self._failure: BaseException | None = None

    def stop(self) -> None:
        """Ask for a clean end. From any thread or a signal handler."""
        self._stopping.set()

    def run(self) -> None:
        """Push until stopped. Raises TerminalError or RefusedError when a person has to change something first."""
        count = self._provision()
        if not count:
            return
        wrong = [p for p in self._wanted if not 0 <= p < count]
        if wrong:
            raise ConfigError(f"partitions {wrong} are not there", remedy=f"the commands topic has 0 to {count - 1}")
        metrics = {number: self._metrics.partition(number) for number in self._wanted or range(count)}
        payloads = Payloads(self._settings, self._metrics.groups, self._failed)
        owners = [
            PartitionSupervisor(
                self._settings,
                partition,
                metrics[partition],
                self._health.part(f"partition {partition}", loop=True),
                self._failed,
                payloads,
                self._trace,
            )
            for partition in metrics
        ]
        groups = GroupOwner(self._settings, self._metrics.groups, self._health.part("groups"), self._failed)

        threads: list[PartitionSupervisor | GroupOwner] = [*owners, groups]

        def forgotten() -> None:
            for owner in owners:
                owner.cursors_forgotten()

        def aged(partition: int) -> bool:
            return any(owner.cursors_aged() for owner in owners if owner.partition == partition)

        log.info("push starts", partitions=len(owners), pulsar=self._settings.pulsar.service_url)
        commands = self._settings.pulsar.system_topic(COMMANDS_TOPIC)
        with (
            watching_pulsar(self._settings, self._health, commands),
            watching_lag(self._settings, self._health, metrics),
            watching_compaction(self._settings, self._health, list(metrics), aged, groups.roster_aged),
            watching_topics(self._settings, self._health, min(metrics), forgotten),
        ):
            for thread in threads:
                thread.start()
            self._stopping.wait()
            self._health.stopping()
            for thread in threads:
                thread.stop()
            for thread in threads:
                thread.join()
            payloads.close()
        if self._failure is not None:
            raise self._failure
        log.info("push ended")

    def _failed(self, error: BaseException) -> None:
        self._failure = error
        self._stopping.set()

    def _provision(self) -> int:
        warned = False
        pulsar = self._settings.pulsar
        part = self._health.part("provisioning")
        off = pulsar.provision == "off"
        if off:
            log.info("pulsar.provision is off; not checked: retention, TTL, quota policy, subscriptions, compaction")
        with PulsarAdmin(pulsar) as admin:
            while not self._stopping.is_set():
                try:
                    count = existing_commands(pulsar) if off else provision_commands(admin)
                    self._health.remove(part)
                    return count
                except TransientError as e:
                    part.waits(str(e))
                    if not warned:
                        log.warning("Pulsar is away. Action: see that it is up", why=str(e))
                        warned = True
                    self._stopping.wait(_WAIT_S)
        return 0
