"""Retention subscriptions of compacted topics follow the compaction without access to Pulsar's admin."""

from __future__ import annotations

import pytest

from bridge.contract import CURSORS_TOPIC, INSTANCES_TOPIC, PRESENCE_TOPIC, partition_name
from bridge.contract.commands import CommandPosition
from bridge.pulsar.admin import PulsarAdmin, rest_path
from bridge.pulsar.client import PulsarClient
from bridge.pulsar.compaction import follow_compaction
from bridge.pulsar.provisioning_plan import CURSOR_RETENTION, INSTANCES_RETENTION, PRESENCE_RETENTION
from bridge.push.cursor import Cursor
from bridge.settings.pulsar import PulsarSettings
from tests.integration.security.test_least_rights import push_of, pushing
from tests.support.secured import SecuredArtemis, SecuredPulsar
from tests.support.secured_tiers import provisioned_for
from tests.support.waiting import poll_for

pytestmark = pytest.mark.stack


def write_cursors(settings: PulsarSettings, partition: str, count: int) -> None:
    with PulsarClient(settings) as client:
        producer = client.producer(partition, batching=False, max_pending=2 * count)
        for number in range(count):
            payload = Cursor(64, CommandPosition(1, number, 0)).encode()
            producer.send_async(payload, lambda *_: None, partition_key=f"d{number % 7}")
        producer.flush()
        producer.close()


def compacted(admin: PulsarAdmin, partition: str) -> None:
    path = f"/{rest_path(partition)}/compaction"
    poll_for(lambda: admin.request("GET", path)["status"] != "RUNNING", 60, "the compaction before")
    admin.request("PUT", path)
    poll_for(lambda: admin.request("GET", path)["status"] == "SUCCESS", 60, "the compaction")


def position(admin: PulsarAdmin, partition: str, hold: str) -> tuple[int, int]:
    ledger, _, entry = admin.internal_stats(partition)["cursors"][hold]["markDeletePosition"].partition(":")
    return int(ledger), int(entry)


@pytest.mark.long
def test_h24_push_moves_the_retention_subscriptions_with_the_right_to_consume_and_without_the_admin(
    pulsar: SecuredPulsar, artemis: SecuredArtemis
) -> None:
    admin = provisioned_for(pulsar, {"push": "bridge"})
    holds = {
        partition_name(admin.system_topic(CURSORS_TOPIC), 0): CURSOR_RETENTION,
        partition_name(admin.system_topic(INSTANCES_TOPIC), 0): INSTANCES_RETENTION,
        partition_name(admin.system_topic(PRESENCE_TOPIC), 0): PRESENCE_RETENTION,
    }
    lonely = pulsar.as_role(admin, "bridge").model_copy(update={"admin_url": "https://127.0.0.1:1"})
    with PulsarAdmin(admin, timeout_s=30) as rest:
        before = {}
        for partition, hold in holds.items():
            write_cursors(admin, partition, 100)
            with PulsarClient(lonely) as client:
                assert not follow_compaction(client, partition, hold).moved  # nothing of it was compacted
            compacted(rest, partition)
            before[partition] = position(rest, partition, hold)
        with pushing(push_of(lonely, artemis, "off")) as failures:
            for partition, hold in holds.items():
                # A hundred entries, the last seven are what is left of them.
                poll_for(
                    lambda p=partition, h=hold: failures or position(rest, p, h)[1] == before[p][1] + 93,  # type: ignore[misc]
                    60,
                    f"the hold {hold}",
                )
        assert not failures
