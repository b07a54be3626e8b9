"""The owner of a partition dies: ``status`` shows it before and after, errors name it, and a process starts beside it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from bridge.contract import partition_name
from bridge.contract.partitioning import partition_of
from bridge.errors import TransientError
from bridge.pulsar.admin import PulsarAdmin
from bridge.pulsar.client import PulsarClient
from bridge.settings import Settings
from bridge.settings.pulsar import PulsarSettings
from pulsebridge.local.cluster import LocalCluster
from pulsebridge.local.stack import LocalStack
from tests.support.cluster import killed, owner_of
from tests.support.ingest import device, ingest_process, ingest_settings, publish_ids, rule_for, wait_for
from tests.support.push import PushProcess, push_settings
from tests.support.stack import mqtt_settings, provisioned
from tests.support.status import status
from tests.support.waiting import poll_for

pytestmark = [pytest.mark.stack, pytest.mark.thorough, pytest.mark.timeout(600)]


def test_the_owner_of_a_partition_dies(cluster_stack: LocalStack, cluster: LocalCluster, tmp_path: Path) -> None:
    namespaces, mqtt = provisioned(cluster_stack), mqtt_settings(cluster_stack)
    settings = ingest_settings(mqtt, namespaces, routes=(rule_for(mqtt.client_id),))
    fresh = push_settings(provisioned(cluster_stack), mqtt_settings(cluster_stack))
    partition = partition_name(namespaces.readings_topic("fleet"), partition_of("d1", namespaces.partitions))
    topic = f"{mqtt.client_id}/d1/t"
    with ingest_process(settings, tmp_path), device(mqtt, "d") as dev, PulsarAdmin(namespaces) as admin:
        publish_ids(dev, [topic], 1, [])
        wait_for(namespaces, 1)
        before = owner_of(cluster, admin, partition)
        assert _owner_shown(settings, tmp_path, partition) == cluster.url_of(before)
        with killed(cluster, before):
            _errors_name(cluster, before, partition, namespaces)
            with PushProcess(
                fresh, tmp_path
            ) as push:  # it provisions, while some brokers are still named that are dead
                push.owns()
            poll_for(lambda: owner_of(cluster, admin, partition) != before, 60, "another owner", every=0.5)
            after = cluster.url_of(owner_of(cluster, admin, partition))
            assert _owner_shown(settings, tmp_path, partition) == after
            traced = json.loads(status(settings, tmp_path, "--trace", topic, "--json").stdout)
            assert traced[-1]["name"] == "owner"
            assert f"pulsar://{traced[-1]['what']}" == after


def _owner_shown(settings: Settings, folder: Path, partition: str) -> str:
    """Return the owner of a partition in the output of ``status``, once ingest has published its topics."""

    def found() -> str | None:
        shown = json.loads(status(settings, folder, "--json").stdout)
        owners = [owners for one in shown["instances"] for owners in one["owners"].values()]
        return next((one[partition] for one in owners if partition in one), None)

    return poll_for(found, 60, "the owner of the partition in the output of status", every=1.0)


def _errors_name(cluster: LocalCluster, dead: str, partition: str, settings: PulsarSettings) -> None:
    """For some seconds lookups still lead to the broker that is dead."""
    short = settings.model_copy(update={"operation_timeout": 2.0})
    proxy = {"service_url": cluster.proxy_url, "admin_url": cluster.proxy_admin_url}
    place = cluster.url_of(dead).removeprefix("pulsar://")
    with PulsarAdmin(short) as admin, PulsarClient(short) as client:
        assert cluster.admin_url_of(dead) in _problem(lambda: admin.stats(partition))
        assert place in _problem(lambda: client.batch_producer(partition))
        assert place in _problem(lambda: client.producer(partition))
    proxied = short.model_copy(update=proxy)
    with PulsarAdmin(proxied) as admin, PulsarClient(proxied) as client:
        assert cluster.proxy_admin_url in _problem(lambda: admin.stats(partition))
        found = _problem(lambda: client.batch_producer(partition))
        # The proxy connects to the dead broker for us, or asks it itself and passes the refusal on as its answer.
        assert cluster.proxy_url.removeprefix("pulsar://") in found
        assert place in found


def _problem(call: Callable[[], object]) -> str:
    with pytest.raises(TransientError) as raised:
        call()
    print(raised.value)
    return raised.value.what
