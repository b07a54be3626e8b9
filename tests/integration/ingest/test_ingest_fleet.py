"""Several workers as real processes, on each broker: assigned again, supervised, and migrated without a loss (H7)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import psutil
import pytest
import yaml

from bridge.contract import partition_name
from bridge.mqtt.device import DeviceClient
from bridge.pulsar.admin import PulsarAdmin
from bridge.pulsar.provisioning_plan import subscription_step
from bridge.settings import Settings
from bridge.settings.mqtt import MqttSettings
from bridge.settings.pulsar import PulsarSettings
from pulsebridge.local.stack import LocalStack
from tests.support.ingest import device, first_copies, ingest_settings, remembered, rule_for, stored
from tests.support.raw_mqtt import RawMqtt, at_broker
from tests.support.stack import mqtt_settings, provisioned
from tests.support.waiting import patient, poll_for

pytestmark = [pytest.mark.stack, pytest.mark.chaos]

LINES = 4
PACE_S = 0.01
MOST_WAITING = 50
"""Publishes of a device without a confirmation."""
DRAINED_S = 40
"""DESIGN: 25 s; the rest is for a loaded machine."""


def fleet_settings(mqtt: MqttSettings, namespaces: PulsarSettings, **changes: object) -> Settings:
    """Four lines with devices of their own, so that up to four workers can divide them."""
    root = mqtt.client_id
    rule = rule_for(root, filter=f"{root}/+line/+device/+metric", device="{line}/{device}", command_topic=None)
    lines = tuple(f"{root}/line{n}/+/+" for n in range(LINES))
    return ingest_settings(mqtt, namespaces, **({"routes": (rule,), "filters": lines} | changes))


class Fleet:
    """``pulsebridge ingest`` with its log."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self._log = log

    @property
    def log(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")

    @property
    def workers(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children()

    def await_sessions(self, count: int = LINES) -> None:
        poll_for(
            lambda: self.log.count("subscribed at the MQTT broker") >= count or self.process.poll() is not None,
            90,
            f"{count} sessions",
        )
        assert self.process.poll() is None, self.log

    def drain(self) -> None:
        self.process.terminate()
        assert self.process.wait(DRAINED_S) == 0, self.log


@contextmanager
def fleet(settings: Settings, folder: Path, *options: str) -> Iterator[Fleet]:
    config = folder / "fleet.yaml"
    config.write_text(yaml.safe_dump(settings.model_dump(mode="json", exclude_defaults=True)), encoding="utf-8")
    log = folder / f"fleet-{'-'.join(options).replace('/', '.')}.log"
    command = [
        sys.executable,
        "-c",
        "from pulsebridge.cli.app import main; main()",
        "ingest",
        "-c",
        str(config),
        *options,
    ]
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, env=os.environ | {"PYTHONFAULTHANDLER": "1"}
        )
        try:
            yield Fleet(process, log)
        finally:
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(DRAINED_S)
                except subprocess.TimeoutExpired:
                    process.kill()
            process.wait()


class Load:
    """Devices on every line that publish in turn, some hundred a second, each with one publish in flight."""

    def __init__(self, devices: list[DeviceClient], root: str) -> None:
        self.confirmed: list[str] = []
        self._root = root
        self._devices = devices
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        count = 0
        while not self._ended.wait(PACE_S):
            for number, one in enumerate(self._devices):
                if one.link.unconfirmed > MOST_WAITING:  # a busy MQTT broker is not outrun
                    continue
                name = f"{self._root}/line{number}/d{number}/x#{count}"
                one.publish(name.rsplit("#", 1)[0], name.encode(), confirmed=partial(self._confirm, name))
            count += 1

    def _confirm(self, name: str, _confirmation: object) -> None:
        self.confirmed.append(name)

    def end(self) -> None:
        self._ended.set()
        self._thread.join()

    def stop(self) -> None:
        self.end()
        for one in self._devices:
            assert one.flush(patient(60)), f"{one.link.unconfirmed} publishes without a confirmation: {one.failure}"

    def await_more(self, count: int) -> None:
        target = len(self.confirmed) + count
        poll_for(lambda: len(self.confirmed) >= target, 60, f"{count} more publishes")


@contextmanager
def load(mqtt: MqttSettings) -> Iterator[Load]:
    publisher = mqtt.model_copy(update={"protocol": "3.1.1"})
    with ExitStack() as stack:
        names = [f"d{number}" for number in range(LINES)]
        made = Load([stack.enter_context(device(publisher, name, window=1)) for name in names], mqtt.client_id)
        try:
            yield made
        finally:
            made.end()


def ids(namespaces: PulsarSettings) -> list[str]:
    return [m.payload.decode() for m in stored(namespaces, "fleet")]


def assert_all_in_order(namespaces: PulsarSettings, confirmed: list[str]) -> None:
    """Every confirmed id is in Pulsar, and the first copies of each topic are in the order of publishing."""
    poll_for(lambda: set(confirmed) <= set(ids(namespaces)), 90, "every confirmed id in Pulsar", every=0.5)
    by_topic: dict[str, list[str]] = {}
    for one in ids(namespaces):
        by_topic.setdefault(one.rsplit("#", 1)[0], []).append(one)
    for topic, found in by_topic.items():
        numbers = first_copies(found)
        assert numbers == sorted(numbers), topic


@pytest.mark.timeout(300)
def test_h7_four_workers_become_two_under_load(broker: LocalStack, namespaces: PulsarSettings, tmp_path: Path) -> None:
    """The same four sessions, dealt to two workers: each is read by one, none is left over, none moves."""
    mqtt = mqtt_settings(broker, protocol="3.1.1")
    settings = fleet_settings(mqtt, namespaces)
    with fleet(settings, tmp_path, "--workers", "4") as four:
        four.await_sessions()
        with load(mqtt) as devices:
            devices.await_more(300)
            four.drain()
            devices.await_more(200)  # the sessions queue while no worker reads
            with fleet(settings, tmp_path, "--workers", "2") as two:
                two.await_sessions()
                devices.await_more(300)
                devices.stop()
                assert_all_in_order(namespaces, devices.confirmed)
                two.drain()
    known = remembered(namespaces)
    assert sorted(known) == [f"{mqtt.client_id}-{n}" for n in range(4)]
    assert "moving" not in two.log


@pytest.mark.timeout(300)
@pytest.mark.long
def test_h7_one_worker_becomes_two_shards_and_one_again_under_load(
    broker: LocalStack, namespaces: PulsarSettings, tmp_path: Path
) -> None:
    """Filters move from one session to four and back: subscribed first, drained, deleted at the broker."""
    mqtt = mqtt_settings(broker, protocol="5")
    settings = fleet_settings(mqtt, namespaces)
    with fleet(settings, tmp_path) as one, ExitStack() as stack:
        one.await_sessions(1)
        devices = stack.enter_context(load(mqtt))
        devices.await_more(300)
        one.drain()
        devices.await_more(300)
        # Shard 1 first: it waits for shard 0, which moves the filters.
        with fleet(settings, tmp_path, "--shard", "1/2") as second:
            poll_for(lambda: "must be drained first" in second.log, 60, "shard 1 to wait")
            with fleet(settings, tmp_path, "--shard", "0/2") as first:
                first.await_sessions(2)
                second.await_sessions(2)
                devices.await_more(300)
                first.drain()
                second.drain()
        devices.await_more(200)
        with fleet(settings, tmp_path) as again:
            again.await_sessions(1)
            devices.await_more(200)
            devices.stop()
            assert_all_in_order(namespaces, devices.confirmed)
            again.drain()
    assert set(remembered(namespaces)) == {mqtt.client_id}
    assert at_broker(mqtt, mqtt.client_id)
    assert [n for n in range(4) if at_broker(mqtt, f"{mqtt.client_id}-{n}")] == []


def test_a_worker_that_dies_is_started_again_and_an_owner_that_dies_leaves_none(
    stack: LocalStack, namespaces: PulsarSettings, tmp_path: Path
) -> None:
    mqtt = mqtt_settings(stack, protocol="3.1.1")
    settings = fleet_settings(mqtt, namespaces)
    with fleet(settings, tmp_path, "--workers", "2") as two, ExitStack() as ended:
        two.await_sessions()
        devices = ended.enter_context(load(mqtt))
        devices.await_more(200)
        before = two.workers
        before[0].kill()
        two.await_sessions(LINES + 2)  # the dead worker's two again
        assert len({w.pid for w in two.workers} - {w.pid for w in before}) == 1
        devices.await_more(200)
        left = two.workers
        two.process.kill()
        two.process.wait()
        assert psutil.wait_procs(left, DRAINED_S)[1] == []
        devices.stop()
        with fleet(settings, tmp_path, "--workers", "1") as one:
            assert_all_in_order(namespaces, devices.confirmed)
            one.drain()


def test_workers_that_fail_for_good_end_all_with_their_exit_code(
    stack: LocalStack, namespaces: PulsarSettings, tmp_path: Path
) -> None:
    mqtt = mqtt_settings(stack, protocol="5")
    with fleet(fleet_settings(mqtt, namespaces), tmp_path, "--workers", "2") as two:
        two.await_sessions()
        with RawMqtt(mqtt.host, mqtt.port, f"{mqtt.client_id}-3", clean=False):  # takes one session over
            assert two.process.wait(DRAINED_S) == 1
    assert f"another process uses the MQTT client id '{mqtt.client_id}-3'" in two.log
    assert "a worker has failed for good" in two.log
    with fleet(fleet_settings(mqtt, namespaces), tmp_path, "--workers", "5") as five:
        assert five.process.wait(DRAINED_S) == 2
    assert "5 workers cannot divide 4 groups of filters" in five.log


def test_a_second_signal_kills_the_workers(stack: LocalStack, namespaces: PulsarSettings, tmp_path: Path) -> None:
    mqtt = mqtt_settings(stack, protocol="3.1.1")
    with fleet(fleet_settings(mqtt, namespaces), tmp_path, "--workers", "2") as two:
        two.await_sessions()
        for worker in two.workers:
            worker.suspend()  # so that they cannot drain
        left = two.workers
        two.process.send_signal(signal.SIGINT)
        two.process.send_signal(signal.SIGTERM)
        assert two.process.wait(DRAINED_S) == 130
        assert psutil.wait_procs(left, DRAINED_S)[1] == []


def test_a_shared_subscription_deals_to_every_worker_of_the_group(
    broker: LocalStack, namespaces: PulsarSettings, tmp_path: Path
) -> None:
    mqtt = mqtt_settings(broker)
    settings = fleet_settings(mqtt, namespaces, share="ingest")
    with fleet(settings, tmp_path, "--workers", "2") as two, ExitStack() as ended:
        two.await_sessions(2)
        devices = ended.enter_context(load(mqtt))
        assert "order='none: shared subscription'" in two.log
        devices.await_more(300)
        devices.stop()
        poll_for(lambda: set(devices.confirmed) <= set(ids(namespaces)), 60, "all of them", every=0.3)
        links = {m.properties["pb.link"] for m in stored(namespaces, "fleet")}
        two.drain()
    assert links == {f"{mqtt.client_id}-0", f"{mqtt.client_id}-1"}
    assert len(ids(namespaces)) == len(set(ids(namespaces)))


@pytest.mark.parametrize("protocol", ["3.1", "3.1.1"])
def test_h50_two_processes_with_one_client_id_lose_nothing_before_mqtt_5(
    broker: LocalStack, namespaces: PulsarSettings, tmp_path: Path, protocol: str
) -> None:
    """No broker says there why it closes."""
    both_go_on(mqtt_settings(broker, protocol=protocol), namespaces, tmp_path)


@pytest.mark.long
def test_h50_two_processes_with_one_client_id_lose_nothing_on_mosquitto(
    mosquitto: LocalStack, namespaces: PulsarSettings, tmp_path: Path
) -> None:
    """Mosquitto 2.0.11 closes the connection without DISCONNECT with MQTT 5 as well."""
    both_go_on(mqtt_settings(mosquitto, protocol="5"), namespaces, tmp_path)


def both_go_on(mqtt: MqttSettings, namespaces: PulsarSettings, tmp_path: Path) -> None:
    """Without evidence neither process ends: both name the likely cause, and dial with backoff."""
    settings = fleet_settings(mqtt, namespaces)
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        folder.mkdir()
    with fleet(settings, folders[0]) as first, ExitStack() as ended:
        first.await_sessions(1)
        devices = ended.enter_context(load(mqtt))
        with fleet(settings, folders[1]) as second:
            warned = "check that it runs, and that no other process uses this MQTT client id"
            poll_for(lambda: warned in first.log and warned in second.log, 90, "both to name the cause")
            devices.await_more(100)
            devices.stop()
            poll_for(
                lambda: set(devices.confirmed) <= set(ids(namespaces)),
                90,
                "all that was confirmed",
                every=0.3,
            )
            assert (first.process.poll(), second.process.poll()) == (None, None)
            second.drain()
        first.drain()


def test_h10_two_processes_with_one_client_id_do_not_fight_for_ever(
    stack: LocalStack, namespaces: PulsarSettings, tmp_path: Path
) -> None:
    """Artemis says why it closes: one of them ends with one clear line and exit code 1; the other loses nothing."""
    mqtt = mqtt_settings(stack, protocol="5")
    settings = fleet_settings(mqtt, namespaces)
    first_folder, second_folder = tmp_path / "first", tmp_path / "second"
    for folder in (first_folder, second_folder):
        folder.mkdir()
    with fleet(settings, first_folder) as first, ExitStack() as ended:
        first.await_sessions(1)
        devices = ended.enter_context(load(mqtt))
        with fleet(settings, second_folder) as second:
            loser, winner = poll_for(
                lambda: next(
                    ((a, b) for a, b in ((first, second), (second, first)) if a.process.poll() is not None),
                    None,
                ),
                90,
                "one of them to give up",
            )
            assert loser.process.wait(DRAINED_S) == 1
            lines = [line for line in loser.log.splitlines() if "another process uses the MQTT client id" in line]
            assert len(lines) == 1, loser.log
            assert "stop the other one" in lines[0]
            devices.await_more(100)
            devices.stop()
            assert_all_in_order(namespaces, devices.confirmed)
            assert winner.process.poll() is None
            winner.drain()


def test_processes_that_start_at_once_make_the_same_subscription(stack: LocalStack) -> None:
    """Pulsar refuses all but one of them with 412 while the subscription is being made."""
    settings = provisioned(stack)
    with PulsarAdmin(settings, timeout_s=30) as admin, ThreadPoolExecutor(8) as pool:
        for number in range(10):
            topic = settings.system_topic(f"fresh-{number}")
            admin.create_partitioned(topic, 1)
            partition = partition_name(topic, 0)
            made = list(pool.map(lambda _, p=partition: admin.do(subscription_step(p, "hold")), range(8)))
            assert len(made) == 8
            assert list(admin.stats(partition)["subscriptions"]) == ["hold"]
