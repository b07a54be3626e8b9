"""Ingest and push through Pulsar's proxy, which dies, whose brokers die, or which refuses the brokers' ports (H55)."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from bridge.pulsar.admin import PulsarAdmin
from bridge.settings.pulsar import PulsarSettings
from pulsebridge.local.cluster import LocalCluster
from pulsebridge.local.stack import LocalStack
from tests.chaos.evidence import Kill
from tests.chaos.push_world import push_world
from tests.chaos.world import TOPIC, world
from tests.support.cluster import killed, owner_of, partitions_of
from tests.support.push import PushProcess, provision, push_settings
from tests.support.stack import mqtt_settings, provisioned
from tests.support.waiting import poll_for

pytestmark = [pytest.mark.stack, pytest.mark.thorough, pytest.mark.timeout(900)]


@pytest.fixture
def proxied(cluster_stack: LocalStack, cluster: LocalCluster) -> PulsarSettings:
    """Namespaces that are reached through the proxy alone."""
    return provisioned(cluster_stack, service_url=cluster.proxy_url, admin_url=cluster.proxy_admin_url)


def test_h55_through_a_proxy_that_is_killed_three_times_and_a_broker_behind_it_nothing_is_lost(
    cluster_stack: LocalStack, cluster: LocalCluster, proxied: PulsarSettings, tmp_path: Path
) -> None:
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
        (first, *_) = partitions_of(proxied.readings_topic(TOPIC), 1)
        poll_for(lambda: fleet.total > 200, 60, "a flow")
        with PulsarAdmin(proxied) as admin:
            owner = owner_of(cluster, admin, first)
        for victim in ("proxy", "proxy", "proxy", owner):
            at = time.time()
            with killed(cluster, victim), PulsarAdmin(proxied) as admin:
                if victim != "proxy":
                    poll_for(lambda: owner_of(cluster, admin, first) != owner, 60, "another owner", every=0.5)
            least = fleet.total + 200
            poll_for(lambda: fleet.total > least, 60, f"a flow after {victim} was killed")  # noqa: B023
            for times in (one.times, commands.times):
                times.append(Kill(victim, at, time.time()))
        found = one.account(fleet)
        print(found.text())
        assert found.missing == found.disordered == found.unexplained == []
        verdict = commands.account(devices, say=print)
        print(verdict.text())
        assert not verdict.broken
    assert one.log.read_text().count("connected to the MQTT broker") == 1


def test_h55_owners_that_cannot_be_reached_are_reported_and_push_begins_once_they_can(
    cluster_stack: LocalStack,
    cluster: LocalCluster,
    proxied: PulsarSettings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Lookups through the proxy work; it does not allow the brokers' ports."""
    settings = push_settings(proxied, mqtt_settings(cluster_stack))
    assert provision(settings) == 1
    config, allowed = cluster._config, "brokerProxyAllowedTargetPorts="
    with monkeypatch.context() as patch:
        patch.setattr(cluster, "_config", lambda *of: config(*of).replace(f"{allowed}*", f"{allowed}6650,6651"))
        cluster.restart("proxy")
    with PushProcess(settings, tmp_path, more=("--set", "pulsar.operation_timeout=5s")) as push:
        poll_for(lambda: "push cannot reach the owner of partition 0 in Pulsar" in push.log, 60, "a line of push")
        proxy = cluster.proxy_url.removeprefix("pulsar://")
        assert f"Pulsar at {proxy} for 127.0.0.1:" in push.log, "it names the proxy and the broker"
        cluster.restart("proxy")
        push.owns()
