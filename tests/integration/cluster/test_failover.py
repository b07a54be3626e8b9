"""Ingest, push and a sink on a Pulsar cluster under load, while its parts die, hang and move (H52, H53).

Each disturbance comes three times. What is acknowledged is there in order at the end, the connections to the MQTT broker
stay, and the time of standing still is compared with that of Pulsar's own client in the same run.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from bridge.contract import COMMANDS_TOPIC
from bridge.pulsar.admin import PulsarAdmin
from pulsebridge.local.cluster import BROKERS, LocalCluster
from pulsebridge.local.ports import free_ports
from pulsebridge.local.stack import LocalStack
from tests.chaos.evidence import Kill
from tests.chaos.push_world import PushWorld, push_world
from tests.chaos.world import TOPIC, World, world
from tests.support.cluster import (
    Growth,
    OwnClient,
    SinkRows,
    frozen,
    killed,
    longest_gap,
    move,
    owner_of,
    partitions_of,
)
from tests.support.device_processes import DeviceProcesses
from tests.support.endpoint import Endpoint
from tests.support.fleet import Fleet
from tests.support.waiting import poll_for

pytestmark = [pytest.mark.stack, pytest.mark.thorough, pytest.mark.timeout(1500)]

TIMES: Final = 3
BACK_S: Final = 60.0
HANGS_S: Final = 14.0
"""Longer than a broker may be silent."""
LONG_S: Final = 50.0
"""So long that clients give its connections up."""
FIRST: Final = BROKERS[0]
"""The broker that both URLs name first; half of the topics are moved to it before it dies or hangs."""


class Row(NamedTuple):
    """The longest standstill of each in one disturbance, in seconds: of what writes, and from Pulsar to a reader."""

    what: str
    own_producer: float
    ingest: float
    sink: float
    own_consumer: float
    push: float


class Load:
    """All that runs while the cluster is disturbed, and the rows of the table."""

    def __init__(self, stack: LocalStack, cluster: LocalCluster, folder: Path, run: ExitStack) -> None:
        (port,) = free_ports(1)
        self._cluster = cluster
        self.ingest: World = run.enter_context(world(stack, folder, metrics_port=port))
        settings = self.ingest.pulsar
        self.topics: Final = (settings.readings_topic(TOPIC), settings.system_topic(COMMANDS_TOPIC))
        self.partitions: Final = settings.partitions
        self.admin = run.enter_context(PulsarAdmin(settings))
        own_topics = (settings.readings_topic("own-client"), settings.system_topic("own-client"))
        self._own = run.enter_context(OwnClient(settings, own_topics))
        self.sink = run.enter_context(SinkRows(settings, settings.readings_topic("sink")))
        self.ingest.start()
        self._acknowledged = run.enter_context(Growth(Endpoint(port), "pulsebridge_ingest_acked_total"))
        self.fleet: Fleet = run.enter_context(self.ingest.fleet(devices=20, rate=200))
        place = folder / "push"
        place.mkdir()
        self.push: PushWorld
        self.devices: DeviceProcesses
        self.push, self.devices = run.enter_context(
            push_world(stack, place, devices=40, rate=40, seed=1, present_s=3600, away_s=1, pulsar_settings=settings)
        )
        self.devices.order("stay")
        self.rows: list[Row] = []
        poll_for(lambda: self.fleet.total > 1000, 60, "a flow")

    def measure(self, what: str, act: AbstractContextManager[None]) -> None:
        """Disturb, and wait until all flows again."""
        at = time.time()
        with act:
            pass
        ended, least = time.time(), self.fleet.total + 200
        poll_for(lambda: self.fleet.total > least, BACK_S, f"acknowledged readings after: {what}")
        poll_for(lambda: self._own.flows_since(ended), BACK_S, f"a flow of Pulsar's own client after: {what}")
        poll_for(lambda: self.sink.times[-1] > ended, BACK_S, f"a task of the sink after: {what}")
        poll_for(lambda: self._push_s(at, ended) < math.inf, BACK_S, f"commands after: {what}")
        until = time.time()
        for times in (self.ingest.times, self.push.times):
            times.append(Kill(what, at, until))
        self.rows.append(
            Row(
                what,
                self._own.longest_gap(at, until),
                longest_gap(self._acknowledged.times, at, until),
                longest_gap(self.sink.times, at, until),
                self._own.longest_way(at, ended),
                self._push_s(at, ended),
            )
        )
        print(self.rows[-1], flush=True)

    def _push_s(self, since: float, until: float) -> float:
        return self.push.longest_way(self.devices, since, until)

    # --- disturbances ---

    @contextmanager
    def unloaded(self) -> Iterator[None]:
        move(self._cluster, self.admin, FIRST)
        yield

    @contextmanager
    def killed_until_moved(self) -> Iterator[None]:
        partitions = [name for topic in self.topics for name in partitions_of(topic, self.partitions)]
        with killed(self._cluster, FIRST):
            poll_for(
                lambda: all(owner_of(self._cluster, self.admin, one) != FIRST for one in partitions),
                BACK_S,
                "other owners",
                every=0.5,
            )
            yield

    @contextmanager
    def frozen_for(self, seconds: float) -> Iterator[None]:
        until = time.monotonic() + seconds
        with frozen(self._cluster, FIRST):
            poll_for(lambda: time.monotonic() > until, seconds + 10, "the end of the disturbance")
            yield


def test_h52_h53_what_dies_hangs_or_moves_in_a_cluster_loses_and_reorders_nothing(
    cluster_stack: LocalStack, cluster: LocalCluster, tmp_path: Path
) -> None:
    with ExitStack() as run:
        load = Load(cluster_stack, cluster, tmp_path, run)
        for _ in range(TIMES):
            load.measure("all topics unloaded", load.unloaded())
            load.measure("owner killed", load.killed_until_moved())
            load.measure("all topics unloaded", load.unloaded())
            load.measure("owner frozen", load.frozen_for(HANGS_S))
            load.measure("bookie killed", killed(cluster, "bookie-0"))
        load.measure("all topics unloaded", load.unloaded())
        load.measure("owner frozen for long", load.frozen_for(LONG_S))
        _write(load.rows)
        found = load.ingest.account(load.fleet)
        print(found.text())
        assert found.missing == found.disordered == found.unexplained == []
        load.sink.stop()
        assert load.sink.account() == ""
        verdict = load.push.account(load.devices, say=print)
        print(verdict.text())
        assert not verdict.broken
    connections = load.ingest.log.read_text().count("connected to the MQTT broker")
    assert connections == 1, "ingest lost its connection to the MQTT broker"


def _write(rows: Sequence[Row]) -> None:
    """Write ``build/failover.json``: of each disturbance the longest of its times."""
    longest = {
        what: {
            field: round(max(getattr(row, field) for row in rows if row.what == what), 1) for field in Row._fields[1:]
        }
        for what in dict.fromkeys(row.what for row in rows)
    }
    file = Path("build/failover.json")
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(longest, indent=1), encoding="ascii")
