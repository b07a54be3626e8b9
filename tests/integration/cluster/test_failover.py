"""Ingest and push on a Pulsar cluster under load, while its parts die, hang and move (H52, H53, H55).

Each disturbance comes three times. What is acknowledged is there in order at the end, the connections to the MQTT broker
stay, and the time of standing still is compared with that of Pulsar's own client in the same run.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from bridge.contract import COMMANDS_TOPIC, partition_name
from bridge.pulsar.admin import PulsarAdmin
from pulsebridge.local.ports import free_ports
from pulsebridge.local.stack import LocalStack
from tests.chaos.evidence import Kill
from tests.chaos.push_world import push_world
from tests.chaos.world import TOPIC, World, world
from tests.support.cluster import Growth, OwnClient, frozen, killed, longest_gap, owner_of, unload
from tests.support.endpoint import Endpoint
from tests.support.push import PushProcess, provision, push_settings
from tests.support.stack import mqtt_settings, provisioned
from tests.support.waiting import poll_for

pytestmark = [pytest.mark.stack, pytest.mark.thorough, pytest.mark.timeout(1500)]

TIMES = 3
BACK_S = 60.0


class Row(NamedTuple):
    """The longest standstill of each in one disturbance, in seconds: of what writes, and from Pulsar to a reader."""

    what: str
    own_producer: float
    ingest: float
    own_consumer: float
    push: float


def test_h52_h53_what_dies_hangs_or_moves_in_a_cluster_loses_and_reorders_nothing(
    cluster_stack: LocalStack, tmp_path: Path
) -> None:
    cluster = cluster_stack.cluster
    assert cluster is not None
    rows: list[Row] = []
    with ExitStack() as run:
        (port,) = free_ports(1)
        one = run.enter_context(world(cluster_stack, tmp_path, metrics_port=port))
        admin = run.enter_context(PulsarAdmin(one.pulsar))
        own = run.enter_context(OwnClient(one.pulsar, one.pulsar.readings_topic("own-client")))
        one.start()
        acknowledged = run.enter_context(Growth(Endpoint(port), "pulsebridge_ingest_acked_total"))
        fleet = run.enter_context(one.fleet(devices=20, rate=200))
        folder = tmp_path / "push"
        folder.mkdir()
        commands, devices = run.enter_context(
            push_world(
                cluster_stack, folder, devices=40, rate=40, seed=1, present_s=3600, away_s=1, pulsar_settings=one.pulsar
            )
        )
        devices.order("stay")
        poll_for(lambda: fleet.total > 1000, 60, "a flow")

        def measured(what: str, act: Callable[[], AbstractContextManager[None]], lasts_s: float) -> None:
            done, at = fleet.total, time.time()
            with act():
                poll_for(lambda: time.time() > at + lasts_s, lasts_s + 10, "the end of the disturbance")
            poll_for(lambda: fleet.total > done + 500, BACK_S, f"a flow after: {what}")
            until = time.time()
            kill = Kill(what, at, until)
            one.times.append(kill)
            commands.times.append(kill)
            ingest = longest_gap(acknowledged.times, at, until)
            push = commands.longest_way(devices, at, until)
            rows.append(Row(what, own.longest(at, until), ingest, own.longest_way(at, until), push))
            print(rows[-1])

        partition = partition_name(one.pulsar.readings_topic(TOPIC), 0)
        for _ in range(TIMES):
            measured("all topics unloaded", lambda: _unloaded(one, admin), 3)
            owner = owner_of(cluster, admin, partition)
            measured("owner killed", lambda name=owner: killed(cluster, name), 15)  # type: ignore[misc]
            owner = owner_of(cluster, admin, partition)
            measured("owner frozen", lambda name=owner: frozen(cluster, name), 14)  # type: ignore[misc]
            measured("first named broker killed", lambda: killed(cluster, "broker-0"), 15)
            measured("first named broker frozen", lambda: frozen(cluster, "broker-0"), 14)
            measured("bookie killed", lambda: killed(cluster, "bookie-0"), 5)
        owner = owner_of(cluster, admin, partition)
        measured("owner frozen for long", lambda: frozen(cluster, owner), 50)
        found = one.account(fleet)
        print(found.text())
        assert not found.missing
        assert not found.disordered
        assert not found.unexplained
        verdict = commands.account(devices, say=print)
        print(verdict.text())
        assert not verdict.broken
    _write(rows)
    connections = one.log.read_text().count("connected to the MQTT broker")
    assert connections == 1, "ingest lost its connection to the MQTT broker"


def test_h55_through_a_proxy_that_is_killed_three_times_nothing_is_lost(
    cluster_stack: LocalStack, tmp_path: Path
) -> None:
    cluster = cluster_stack.cluster
    assert cluster is not None
    proxied = provisioned(cluster_stack, service_url=cluster.proxy_url, admin_url=cluster.proxy_admin_url)
    with ExitStack() as run:
        one = run.enter_context(world(cluster_stack, tmp_path, pulsar_settings=proxied))
        one.start()
        fleet = run.enter_context(one.fleet(devices=10, rate=100))
        folder = tmp_path / "push"
        folder.mkdir()
        commands, devices = run.enter_context(
            push_world(
                cluster_stack, folder, devices=20, rate=20, seed=2, present_s=3600, away_s=1, pulsar_settings=proxied
            )
        )
        devices.order("stay")
        for _ in range(TIMES):
            done, at = fleet.total, time.time()
            poll_for(lambda least=done + 200: fleet.total > least, 60, "a flow")  # type: ignore[misc]
            with killed(cluster, "proxy"):
                pass
            for times in (one.times, commands.times):
                times.append(Kill("proxy", at, time.time()))
        found = one.account(fleet)
        print(found.text())
        assert found.missing == found.disordered == found.unexplained == []
        verdict = commands.account(devices, say=print)
        print(verdict.text())
        assert not verdict.broken
    assert one.log.read_text().count("connected to the MQTT broker") == 1


def test_h55_owners_that_cannot_be_reached_are_reported_and_push_begins_once_they_can(
    cluster_stack: LocalStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lookups through the proxy work; it does not allow the brokers' ports."""
    cluster = cluster_stack.cluster
    assert cluster is not None
    proxied = provisioned(cluster_stack, service_url=cluster.proxy_url, admin_url=cluster.proxy_admin_url)
    settings = push_settings(proxied, mqtt_settings(cluster_stack))
    assert provision(settings) == 1
    config = cluster._config
    allowed = "brokerProxyAllowedTargetPorts="
    with monkeypatch.context() as patch:
        patch.setattr(cluster, "_config", lambda *of: config(*of).replace(f"{allowed}*", f"{allowed}6650,6651"))
        cluster.restart("proxy")
    more = ("--set", "pulsar.operation_timeout=5s")
    with PushProcess(settings, tmp_path, more=more) as push:
        poll_for(lambda: "push cannot reach the owner of partition 0 in Pulsar" in push.log, 60, "a line of push")
        cluster.restart("proxy")
        push.owns()


@contextmanager
def _unloaded(one: World, admin: PulsarAdmin) -> Iterator[None]:
    for topic in (one.pulsar.readings_topic(TOPIC), one.pulsar.system_topic(COMMANDS_TOPIC)):
        unload(admin, topic, one.pulsar.partitions)
    yield


def _write(rows: Sequence[Row]) -> None:
    """Write ``build/failover.json``: of each disturbance the longest of its times."""
    longest = {
        what: {
            field: round(max(getattr(row, field) for row in rows if row.what == what), 1)
            for field in ("own_producer", "ingest", "own_consumer", "push")
        }
        for what in dict.fromkeys(row.what for row in rows)
    }
    file = Path("build/failover.json")
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(longest, indent=1), encoding="ascii")
