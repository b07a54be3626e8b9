"""A push process: provisions, then shares the partitions with the other push processes, until it is stopped."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Final

import structlog

from bridge.contract import COMMANDS_TOPIC, CURSORS_TOPIC, GROUP_ROSTER_TOPIC, PUSH_SUBSCRIPTION, partition_name
from bridge.errors import ConfigError, DeniedError, PulsebridgeError, TransientError
from bridge.health import Health
from bridge.protocols.board import tidy
from bridge.protocols.sharing import GROUPS, PUSH_PROTOCOL
from bridge.protocols.sharing_instance import Share, SharingInstance
from bridge.pulsar.admin import PulsarAdmin, rest_path
from bridge.pulsar.compaction import watching_compaction
from bridge.pulsar.provisioning import create_topic, existing_commands, provision_commands
from bridge.pulsar.provisioning_plan import TopicNeed, push_needs, topic_steps
from bridge.pulsar.watch import watching, watching_pulsar
from bridge.push.groups.owner import GroupOwner
from bridge.push.groups.payloads import Payloads
from bridge.push.metrics import PartitionMetrics, PushMetrics
from bridge.push.supervisor import PartitionSupervisor
from bridge.settings import Settings

__all__ = ["PushWorker", "TopicWatch", "backlogs"]

_EVERY_S: Final = 5.0
_LAG_EVERY_S: Final = 15.0
_TIDY_S: Final = 3600.0
_TIMEOUT_S: Final = 5.0


class TopicWatch:
    """Push's topics as they were last seen. ``forgotten`` is called when the cursors topic is not the one it was.

    Pulsar creates no topic in our namespaces by itself, so producers and consumers of a deleted topic wait, and
    continue when it exists again. Only the owners know what a deleted cursors topic contained: they are notified, and
    write it again. Another program may re-create it between two looks; that shows in its ledgers, none of which it had
    before.
    """

    def __init__(self, admin: PulsarAdmin, partition: int, forgotten: Callable[[], None]) -> None:
        self._admin = admin
        self._needs = push_needs(admin.settings).topics
        self._commands = admin.settings.system_topic(COMMANDS_TOPIC)
        self._cursors = partition_name(admin.settings.system_topic(CURSORS_TOPIC), partition)
        self._forgotten = forgotten
        self._had: dict[str, int] = {}  # topic to the number of its partitions
        self._ledgers: set[int] = set()

    def look(self) -> None:
        """Look once, and re-create deleted topics. Raises what the admin's requests raise."""
        for need in self._needs:
            count = self._admin.partition_count(need.topic)
            if not count and need.topic in self._had:
                count = self._make_again(replace(need, partitions=self._had[need.topic]))
            if need.topic == self._commands and 0 < self._had.get(need.topic, 0) < count:
                log.error(
                    "topic has more partitions than before: push reads none of the new ones. Action: use "
                    "`pulsebridge commands move` to change their number; write what came into the new ones again",
                    topic=need.topic,
                    partitions=count,
                    before=self._had[need.topic],
                )
            if count:
                self._had[need.topic] = count
        ledgers = {int(ledger["ledgerId"]) for ledger in self._admin.internal_stats(self._cursors)["ledgers"]}
        if self._ledgers and ledgers and not ledgers & self._ledgers:
            self._forgotten()
        self._ledgers = ledgers or self._ledgers

    def _make_again(self, need: TopicNeed) -> int:
        """Return the number of partitions that the topic has now, 0 when it could not be made."""
        why = "pulsar.provision is not create"
        if self._admin.settings.provision == "create":
            why = "partitions that belong to no topic are in the way: delete them"
            try:
                create_topic(self._admin, need)
            except DeniedError as e:
                why = str(e)
        count = self._admin.partition_count(need.topic)
        if count:
            log.warning(
                "topic was deleted with its messages, and push re-created it. Action: see which program deletes it",
                topic=need.topic,
            )
        else:
            log.warning(
                "topic was deleted, commands wait until it is there again; run these commands",
                topic=need.topic,
                run=[step.shell for step in topic_steps(need)],
                why=why,
                shown=1,
            )
        return count


def backlogs(stats: Mapping[str, Any], topic: str, partitions: int) -> dict[int, int]:
    """Return the commands that are not acknowledged, by partition, from the topic's partitioned statistics."""
    found = {}
    for number in range(partitions):
        one = (stats.get("partitions") or {}).get(partition_name(topic, number), {})
        subscription = (one.get("subscriptions") or {}).get(PUSH_SUBSCRIPTION)
        if subscription is not None:
            found[number] = int(subscription["msgBacklog"])
    return found


def _show_lag(admin: PulsarAdmin, partitions: Mapping[int, PartitionMetrics]) -> None:
    """Show the backlog of the partitions that are owned here; without the right to read statistics it is missing."""
    topic = admin.settings.system_topic(COMMANDS_TOPIC)
    stats = admin.request("GET", f"/{rest_path(topic)}/partitioned-stats?perPartition=true") or {}
    for number, lag in backlogs(stats, topic, max(partitions, default=-1) + 1).items():
        if number in partitions:
            partitions[number].lag(lag)


def _note_brokers(admin: PulsarAdmin, partitions: Mapping[int, PartitionMetrics]) -> None:
    """Note which Pulsar broker owns the commands of each partition that is owned here."""
    for number, one in partitions.items():
        if one.owns:
            url = admin.owner(partition_name(admin.settings.system_topic(COMMANDS_TOPIC), number))
            one.all.brokers[number] = url.rpartition("/")[2]


@contextmanager
def _watching(
    settings: Settings, health: Health, name: str, every_s: float, look: Callable[[PulsarAdmin], Callable[[], None]]
) -> Iterator[None]:
    """Call what ``look`` returns for an admin every ``every_s`` seconds, on a thread of its own, while the block runs."""

    def failed(error: PulsebridgeError) -> None:
        log.debug("Pulsar's admin could not be asked", watch=name, why=error.what)

    with (
        PulsarAdmin(settings.pulsar, timeout_s=_TIMEOUT_S) as admin,
        watching(name, every_s, look(admin), over=lambda: health.ending, failed=failed),
    ):
        yield


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
        payloads = Payloads(self._settings, self._metrics, self._failed)
        owners = {number: self._supervisor(number, one, payloads) for number, one in metrics.items()}
        groups = GroupOwner(self._settings, self._metrics, self._health.part("groups"), self._failed)

        threads: list[PartitionSupervisor | GroupOwner] = [*owners.values(), groups]
        shares: dict[int, Share] = {**owners, GROUPS: groups}
        counted = self._metrics.gauges["processes"].set
        instance = SharingInstance(self._settings.pulsar, shares, PUSH_PROTOCOL, counted=counted)
        settings, health = self._settings, self._health
        log.info("push starts", partitions=len(owners), pulsar=settings.pulsar.service_url)
        with ExitStack() as stack:

            def watch(name: str, every_s: float, look: Callable[[PulsarAdmin], Callable[[], None]]) -> None:
                stack.enter_context(_watching(settings, health, name, every_s, look))

            def forgotten() -> None:
                for owner in owners.values():
                    owner.cursors_forgotten()

            stack.enter_context(watching_pulsar(settings, health, settings.pulsar.system_topic(COMMANDS_TOPIC)))
            if settings.metrics.port:
                watch("push-lag", _LAG_EVERY_S, lambda admin: partial(_show_lag, admin, metrics))
            if settings.metrics.mop_names:
                watch("push-brokers", _LAG_EVERY_S, lambda admin: partial(_note_brokers, admin, metrics))
            if settings.pulsar.provision != "off":
                watch("push-instances", _TIDY_S, lambda admin: partial(tidy, admin))
                watch("push-topics", _EVERY_S, lambda admin: TopicWatch(admin, min(metrics), forgotten).look)
            rewriters = {
                CURSORS_TOPIC: lambda number: owners[number].cursors_aged(),
                GROUP_ROSTER_TOPIC: lambda _number: groups.roster_aged(),
            }
            stack.enter_context(watching_compaction(settings, health, list(metrics), rewriters))
            for thread in threads:
                thread.start()
            instance.start()
            self._stopping.wait()
            self._health.stopping()
            instance.leave()
            for thread in threads:
                thread.stop()
            for thread in threads:
                thread.join()
            instance.stop()
            payloads.close()
        if self._failure is not None:
            raise self._failure
        log.info("push ended")

    def _supervisor(self, number: int, metrics: PartitionMetrics, payloads: Payloads) -> PartitionSupervisor:
        part = self._health.part(f"partition {number}", loop=True)
        return PartitionSupervisor(self._settings, number, metrics, part, self._failed, payloads, self._trace)

    def _failed(self, error: BaseException) -> None:
        self._failure = error
        self._stopping.set()

    def _provision(self) -> int:
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
                    log.warning("Pulsar is away. Action: see that it is up", why=str(e), shown=1)
                    self._stopping.wait(_WAIT_S)
        return 0
