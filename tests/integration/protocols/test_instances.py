"""The instances topic on a real Pulsar: who runs is seen, who was killed is gone, and it neither vanishes nor grows."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from bridge.contract import INSTANCES_TOPIC, partition_name
from bridge.inspect.instances import look_at_instances
from bridge.intake.provisioning import provision
from bridge.protocols.board import Advertiser, read_board, tidy
from bridge.protocols.records import InstanceRecord
from bridge.pulsar.admin import PulsarAdmin
from bridge.pulsar.client import PulsarClient
from bridge.pulsar.provisioning_plan import INSTANCES_RETENTION
from bridge.settings import Settings
from bridge.settings.http import HttpSettings
from bridge.settings.ingest import IngestSettings
from bridge.settings.pulsar import PulsarSettings
from bridge.settings.rules import TopicRule
from pulsebridge.local.stack import LocalStack
from pulsebridge.output.status import instances_json
from tests.support.ingest import device, ingest_process, running_ingest, stored
from tests.support.stack import mqtt_settings
from tests.support.waiting import patient, poll_for

pytestmark = pytest.mark.stack


def settings_of(stack: LocalStack, namespaces: PulsarSettings, *protocols: str) -> Settings:
    mqtt = mqtt_settings(stack)
    rule = TopicRule(name="fleet", filter=f"{mqtt.client_id}/+device", topic="fleet", device="{device}")
    return Settings(
        messaging_protocols=protocols,
        mqtt=mqtt,
        pulsar=namespaces,
        http=HttpSettings(port=0),
        ingest=IngestSettings(routes=(rule,), status_interval="2s"),
    )


def status(settings: Settings, folder: Path) -> tuple[int, dict[str, Any]]:
    """Return exit code and answer of ``pulsebridge status --json`` where no local servers are supervised."""
    config = folder / "status.yaml"
    body = {"pulsar": settings.pulsar.model_dump(mode="json", exclude_defaults=True)}
    config.write_text(yaml.safe_dump(body), encoding="utf-8")
    command = [sys.executable, "-c", "from pulsebridge.cli.app import main; main()", "status", "--json"]
    done = subprocess.run(
        [*command, "-c", str(config), "--data-dir", str(folder / "none")],
        capture_output=True, text=True, timeout=patient(120), check=False,
    )  # fmt: skip
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def test_status_lists_protocols_listeners_and_owners_and_a_clean_stop_removes_them(
    stack: LocalStack, namespaces: PulsarSettings, tmp_path: Path
) -> None:
    settings = settings_of(stack, namespaces, "mqtt", "http")
    assert look_at_instances(settings).records == []
    with running_ingest(settings) as service, device(settings.mqtt, "dev") as dev:
        dev.publish(f"{settings.mqtt.client_id}/w-1", b"x")
        assert dev.flush()
        topic = namespaces.readings_topic("fleet")

        def found_record() -> dict[str, Any] | None:
            (one,) = instances_json(look_at_instances(settings))["instances"] or [None]
            return one if one and one["topics"] == [topic] and one["state"] == "running" else None

        poll_for(found_record, 30, "the record with its topic")
        code, body = status(settings, tmp_path)
        assert (code, body["up"], body["instances_problem"]) == (0, False, "")
        (one,) = body["instances"]
        assert (one["instance"], one["pid"], one["state"]) == (service.record().instance, os.getpid(), "running")
        mqtt, http = one["protocols"]["mqtt"], one["protocols"]["http"]
        assert json.loads(mqtt["data"])["mqtt"]["client_id"] == settings.mqtt.client_id
        assert (mqtt["listeners"], mqtt["ready"]) == ([], {"mqtt": True})
        bound = service.running.listeners["http"][0]
        assert (http["listeners"], http["ready"]) == ([f"{bound.host}:{bound.port}"], {"http": True})
        owners = one["owners"][topic]
        assert set(owners) == {partition_name(topic, n) for n in range(namespaces.partitions)}
        assert all(owner.startswith("pulsar") for owner in owners.values())
    code, body = status(settings, tmp_path)
    assert (code, body["instances"]) == (1, [])


def test_a_killed_instance_is_shown_as_gone_and_another_reads_what_it_advertised(
    stack: LocalStack, namespaces: PulsarSettings, tmp_path: Path
) -> None:
    settings = settings_of(stack, namespaces, "mqtt")
    with ingest_process(settings, tmp_path) as process:
        poll_for(lambda: [s for _, s in look_at_instances(settings).records] == ["running"], 30, "the record")
        with running_ingest(settings_of(stack, namespaces, "mqtt")) as other:
            (data,) = other.advertised("mqtt").values()
            assert json.loads(data)["mqtt"]["client_id"] == settings.mqtt.client_id
            assert other.advertised("http") == {}
        process.kill()
        process.wait()
        poll_for(lambda: [s for _, s in look_at_instances(settings).records] == ["gone"], 30, "it to be gone")
        assert status(settings, tmp_path)[0] == 1
    with PulsarClient(namespaces) as client:
        (record,) = read_board(client)
    poll_for(lambda: record.gone(time.time_ns() // 1_000_000), 30, "its lease to end, for readers elsewhere")


def test_h24_the_instances_topic_neither_vanishes_nor_grows(namespaces: PulsarSettings) -> None:
    """A thousand heartbeats are compacted to the last of each instance; the retention subscription follows."""
    with PulsarAdmin(namespaces, timeout_s=30) as admin, PulsarClient(namespaces) as client:
        provision(admin)
        partition = partition_name(namespaces.system_topic(INSTANCES_TOPIC), 0)
        assert INSTANCES_RETENTION in admin.internal_stats(partition)["cursors"]
        producer = client.producer(partition, max_pending=5000)
        for number in range(1000):
            made = record(f"i{number % 3}", number)
            producer.send_async(made.encode(), lambda *_: None, partition_key=made.instance)
        producer.flush()
        producer.send(b"", partition_key="i0")
        producer.close()
        before = hold_of(admin, partition)

        def compacted() -> bool:
            tidy(admin)
            return hold_of(admin, partition) > before

        poll_for(compacted, 90, "compaction, and the retention subscription after it", every=0.5)
        assert [(r.instance, r.pid) for r in read_board(client)] == [("i1", 998), ("i2", 999)]
        # The first compaction may have begun between them: the retention subscription passes all of them with the next.
        poll_for(
            lambda: (tidy(admin), int(admin.stats(partition)["backlogSize"]) < 100_000)[1],
            90,
            "a small backlog",
            every=0.5,
        )


def hold_of(admin: PulsarAdmin, partition: str) -> tuple[int, int]:
    place = admin.internal_stats(partition)["cursors"][INSTANCES_RETENTION]["markDeletePosition"]
    return tuple(map(int, place.split(":")))  # type: ignore[return-value]


def record(instance: str, number: int) -> InstanceRecord:
    now = time.time_ns() // 1_000_000
    return InstanceRecord(instance, "h", number + 1, "running", now, now, 60.0, {}, [], 0)


def test_a_record_of_an_instance_that_went_without_a_word_long_ago_is_removed(
    namespaces: PulsarSettings,
) -> None:
    with PulsarAdmin(namespaces, timeout_s=30) as admin, PulsarClient(namespaces) as client:
        provision(admin)
        partition = partition_name(namespaces.system_topic(INSTANCES_TOPIC), 0)
        producer = client.producer(partition)
        old = InstanceRecord("old", "h", 1, "running", 1, 1, 60.0, {}, [], 0)
        producer.send(old.encode(), partition_key="old")
        producer.close()
        assert [r.instance for r in read_board(client)] == ["old"]
        advertiser = Advertiser(client, lambda: record("new", 1), 0.2, tidying=admin)
        advertiser.start()
        poll_for(lambda: [r.instance for r in read_board(client)] == ["new"], 30, "the old one to be removed")
        advertiser.stop()
        assert read_board(client) == []


def test_a_record_that_is_on_its_way_at_the_stop_is_removed_as_well(namespaces: PulsarSettings) -> None:
    with PulsarAdmin(namespaces, timeout_s=30) as admin, PulsarClient(namespaces) as client:
        provision(admin)
        for turn in range(5):
            made: queue.SimpleQueue[int] = queue.SimpleQueue()

            def again(turn: int = turn, made: queue.SimpleQueue[int] = made) -> InstanceRecord:
                made.put(turn)
                return record(f"i{turn}", turn)

            advertiser = Advertiser(client, again, 60.0, tidying=admin)
            advertiser.start()
            poll_for(lambda: read_board(client), 30, "the first record")
            while not made.empty():
                made.get()
            advertiser.renew()
            made.get(timeout=patient(30))  # and now it is sent
            advertiser.stop()
            assert read_board(client) == []


def test_messages_flow_where_the_instances_topic_cannot_be_written(
    stack: LocalStack, namespaces: PulsarSettings
) -> None:
    settings = settings_of(stack, namespaces, "mqtt")
    with PulsarAdmin(namespaces, timeout_s=30) as admin:
        provision(admin)
        path = f"/persistent/{namespaces.tenant}/{namespaces.system_namespace}/{INSTANCES_TOPIC}"
        admin.request("POST", f"{path}/terminate/partitions")
    with running_ingest(settings) as service, device(settings.mqtt, "dev") as dev:
        for number in range(20):
            dev.publish(f"{settings.mqtt.client_id}/w-1", b"%d" % number)
        assert dev.flush()
        poll_for(lambda: len(stored(namespaces, "fleet")) == 20, 30, "the messages")
        assert not service.ended.is_set()
