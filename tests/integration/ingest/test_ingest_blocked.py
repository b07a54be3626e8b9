"""Topics that take nothing, on a real Pulsar: over quota, terminated, deleted. What waits, what flows, what comes back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bridge import contract
from bridge.dead_letters.records import Selection
from bridge.dead_letters.replay import Replayer, Report
from bridge.mqtt.device import DeviceClient
from bridge.pulsar.admin import PulsarAdmin, rest_path
from bridge.pulsar.client import PulsarClient
from bridge.pulsar.provisioning_plan import subscription_step
from bridge.settings import Settings
from bridge.settings.pulsar import PulsarSettings
from bridge.settings.rules import TopicRule
from pulsebridge.local.stack import LocalStack
from tests.support.ingest import Stored, dead_letters, device, ingest_process, ingest_settings, stored
from tests.support.stack import mqtt_settings, provisioned
from tests.support.waiting import poll_for

pytestmark = pytest.mark.stack

PATIENT_S = 8
"""After which a topic counts as blocked: longer than a busy Pulsar takes for a topic that is not."""


@pytest.fixture
def one_partition(stack: LocalStack) -> PulsarSettings:
    return provisioned(stack, partitions=1, command_partitions=1)


class Scene:
    """An ingest worker's settings with two topics, ``held`` and ``free``, and a device that publishes to both."""

    def __init__(self, stack: LocalStack, pulsar: PulsarSettings, folder: Path, **ingest: Any) -> None:
        self.mqtt = mqtt_settings(stack, protocol="3.1.1")
        root = self.mqtt.client_id
        rules = tuple(
            TopicRule(name=name, filter=f"{root}/{name}/+device", topic=name, device="{device}")
            for name in ("held", "free")
        )
        self.settings: Settings = ingest_settings(self.mqtt, pulsar, routes=rules, stall_warning="1s", **ingest)
        self.pulsar = pulsar
        self.folder = folder
        self.held = pulsar.readings_topic("held")

    def log(self) -> str:
        return (self.folder / "ingest.log").read_text()

    def publish(self, dev: DeviceClient, name: str, numbers: range) -> None:
        for number in numbers:
            dev.publish(f"{self.mqtt.client_id}/{name}/d{number % 2}", b"%d" % number)
        assert dev.flush(60)

    def await_in(self, name: str, count: int) -> list[Stored]:
        return poll_for(
            lambda: found if len(found := stored(self.pulsar, name)) >= count else None,
            60,
            f"{count} messages in {name}",
            every=0.3,
        )

    def await_dead(self, count: int) -> list[Stored]:
        return poll_for(
            lambda: found if len(found := letters(self.pulsar)) >= count else None,
            90,
            f"{count} dead letters",
            every=0.3,
        )


def letters(settings: PulsarSettings) -> list[Stored]:
    return [m for m in dead_letters(settings) if contract.P_DEAD_NOTE not in m.properties]


def of(found: list[Stored], name: str) -> list[int]:
    """Numbers of one device in the order of the log, repeats left out."""
    return [int(p) for p in dict.fromkeys(m.payload for m in found if m.key == name)]


def assert_in_order(found: list[Stored], numbers: range) -> None:
    for rest in (0, 1):
        assert of(found, f"d{rest}") == [n for n in numbers if n % 2 == rest]


@contextmanager
def quota_of_one_kilobyte(settings: PulsarSettings, topic: str) -> Iterator[Callable[[], None]]:
    """Hold the producers of a topic that has a backlog; the callable ends it, and so does the end of the block."""
    path = f"/namespaces/{settings.tenant}/{settings.namespace}/backlogQuota?backlogQuotaType=destination_storage"

    def limit(size: int) -> None:
        body = {"limitSize": size, "limitTime": -1, "policy": "producer_request_hold"}
        admin.request("POST", path, body=body)
        admin.request("PUT", f"/{rest_path(contract.partition_name(topic, 0))}/unload")

    with PulsarAdmin(settings, timeout_s=30) as admin:
        admin.create_partitioned(topic, 1)
        admin.do(subscription_step(contract.partition_name(topic, 0), "reads-nothing"))
        with PulsarClient(settings) as client:
            producer = client.producer(contract.partition_name(topic, 0), batching=False)
            producer.send(b"0" * 2000, partition_key="backlog")
        limit(1000)
        try:
            yield lambda: limit(-1)
        finally:
            limit(-1)


def replay(settings: PulsarSettings, **selection: Any) -> Report:
    with PulsarClient(settings) as client, PulsarAdmin(settings, timeout_s=30) as admin:
        return Replayer(client, admin, Selection(**selection)).run()


def test_h4_a_topic_over_its_quota_pauses_its_link_and_is_reported_with_the_action(
    stack: LocalStack, one_partition: PulsarSettings, tmp_path: Path
) -> None:
    """The default: messages of other topics are written, acknowledgements wait in order, all flows after the fix."""
    scene = Scene(stack, one_partition, tmp_path)
    with (
        device(scene.mqtt, "dev", window=1) as dev,
        ingest_process(scene.settings, tmp_path),
        quota_of_one_kilobyte(one_partition, scene.held) as lift_quota,
    ):
        scene.publish(dev, "held", range(10))
        scene.publish(dev, "free", range(30))
        assert_in_order(scene.await_in("free", 30), range(30))
        poll_for(lambda: "every acknowledgement waits for it" in scene.log(), 30, "the watchdog")
        assert "its backlog quota is used up" in scene.log()
        assert "pulsar-admin namespaces set-backlog-quota" in scene.log()
        assert contract.partition_name(scene.held, 0) in scene.log()
        assert letters(one_partition) == []
        lift_quota()
        assert_in_order(scene.await_in("held", 11), range(10))
        poll_for(lambda: "no longer stalls" in scene.log(), 30, "the end of the stall")


def test_h4_a_blocked_topic_goes_to_the_dead_letters_until_a_replay_over_a_restart(
    stack: LocalStack, one_partition: PulsarSettings, tmp_path: Path
) -> None:
    scene = Scene(stack, one_partition, tmp_path, on_blocked="deadletter", blocked_after=f"{PATIENT_S}s")
    with device(scene.mqtt, "dev", window=1) as dev:
        with (
            ingest_process(scene.settings, tmp_path) as process,
            quota_of_one_kilobyte(one_partition, scene.held),
        ):
            scene.publish(dev, "held", range(20))
            assert_in_order(scene.await_dead(20), range(20))
            scene.publish(dev, "held", range(20, 40))
            scene.publish(dev, "free", range(10))
            assert_in_order(scene.await_in("free", 10), range(10))
            scene.await_dead(40)
            process.kill()
        # Fixed by now, but the topic stays blocked: older messages of its devices are among the dead letters.
        with ingest_process(scene.settings, tmp_path):
            scene.publish(dev, "held", range(40, 60))
            assert_in_order(scene.await_dead(60), range(60))
            assert len(stored(one_partition, "held")) == 1
            report = replay(one_partition, topic="held")
            assert (report.released, report.unanswered) == ([scene.held], [])
            scene.publish(dev, "held", range(60, 80))
            found = scene.await_in("held", 81)
    assert_in_order(found, range(80))
    assert len(found) == 81  # and the one that made the backlog
    live = [int(m.payload) for m in found if contract.P_REPLAYED not in m.properties and m.key != "backlog"]
    assert live == list(range(60, 80))


@pytest.mark.long
def test_h4_what_comes_while_a_block_ends_is_not_overtaken(
    stack: LocalStack, one_partition: PulsarSettings, tmp_path: Path
) -> None:
    """A device publishes all the while: before, during and after the replay, each message once and in order."""
    scene = Scene(stack, one_partition, tmp_path, on_blocked="deadletter", blocked_after=f"{PATIENT_S}s")
    with (
        device(scene.mqtt, "dev", window=1) as dev,
        ingest_process(scene.settings, tmp_path),
        quota_of_one_kilobyte(one_partition, scene.held) as lift_quota,
    ):
        confirmed: list[int] = []
        for number in range(3000):
            dev.publish(
                f"{scene.mqtt.client_id}/held/d{number % 2}",
                b"%d" % number,
                confirmed=lambda _c, number=number: confirmed.append(number),  # type: ignore[misc]
            )
        scene.await_dead(50)
        lift_quota()
        assert replay(one_partition, topic="held").unanswered == []
        assert dev.flush(60)
        found = scene.await_in("held", 3001)
    assert_in_order(found, range(3000))


def test_h4_a_terminated_topic_goes_to_the_dead_letters_and_the_rest_flows(
    stack: LocalStack, one_partition: PulsarSettings, tmp_path: Path
) -> None:
    scene = Scene(stack, one_partition, tmp_path)
    with (
        device(scene.mqtt, "dev", window=1) as dev,
        ingest_process(scene.settings, tmp_path),
        PulsarAdmin(one_partition, timeout_s=30) as admin,
    ):
        scene.publish(dev, "held", range(10))
        scene.await_in("held", 10)
        admin.request("POST", f"/{rest_path(scene.held)}/terminate/partitions")
        scene.publish(dev, "held", range(10, 30))
        scene.publish(dev, "free", range(20))
        assert_in_order(scene.await_dead(20), range(10, 30))
        assert_in_order(scene.await_in("free", 20), range(20))
        assert "was terminated" in letters(one_partition)[0].properties[contract.P_DEAD_REASON]
        poll_for(lambda: "topic was terminated" in scene.log(), 10, "its WARNING")
        assert len(replay(one_partition, topic="held").refused) == 20  # not as long as it is terminated
        admin.request("DELETE", f"/{rest_path(scene.held)}/partitions?force=true")
        assert replay(one_partition, topic="held").replayed == {scene.held: 20}
        scene.publish(dev, "held", range(30, 40))

        def all_there() -> bool:
            return len(stored(one_partition, "held")) + len(letters(one_partition)) >= 50

        poll_for(all_there, 60, "the rest", every=0.3)
        replay(one_partition, topic="held")  # what came before the new topic was seen
        found = scene.await_in("held", 30)
    assert_in_order([m for m in found if int(m.payload) < 30], range(10, 30))
    assert {int(m.payload) for m in found} == set(range(10, 40))
