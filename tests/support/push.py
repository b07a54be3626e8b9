"""The push tier under test: processes of it, commands written by the bare client, what devices and topics got."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
import pulsar
from prometheus_client import CollectorRegistry

from bridge.contract import (
    COMMANDS_TOPIC,
    PUSH_SUBSCRIPTION,
    RECEIPTS_TOPIC,
    Receipt,
    partition_name,
)
from bridge.contract.commands import Command, encode_command
from bridge.contract.partitioning import partition_of
from bridge.mqtt.device import DeviceClient
from bridge.mqtt.types import Message, PublishProperties
from bridge.pulsar.admin import PulsarAdmin
from bridge.pulsar.provisioning import provision_commands
from bridge.push.metrics import PushMetrics
from bridge.push.worker import PushWorker
from bridge.settings import MqttSettings, PulsarSettings, PushSettings, Settings
from bridge.settings.push import PresenceRule
from pulsebridge.local.stack import LocalStack
from tests.support.merging import merged
from tests.support.reading_back import patiently, quiet, read_back
from tests.support.stack import mqtt_settings
from tests.support.waiting import await_end, patient, poll_for


def push_settings(pulsar_settings: PulsarSettings, mqtt: MqttSettings, **changes: object) -> Settings:
    """Return settings with one commands partition by default, and client ids of their own."""
    count = changes.pop("command_partitions", 1)
    return Settings(
        mqtt=mqtt,
        pulsar=pulsar_settings.model_copy(update={"command_partitions": count}),
        push=PushSettings(
            **merged(
                {"client_id": f"{mqtt.client_id}-push", "answers": {"topic": f"{mqtt.client_id}/answers"}}, changes
            )
        ),
    )


def parking_settings(stack: LocalStack, namespaces: PulsarSettings, **changes: object) -> Settings:
    """Return settings by which devices answer and tell whether they are there."""
    mqtt = mqtt_settings(stack)
    rule = PresenceRule(filter=f"{mqtt.client_id}-push/+device/status")
    usual = {"confirm": "device", "answers": {"timeout": "2s"}, "presence": {"rules": (rule,)}}
    return push_settings(namespaces, mqtt, **merged(usual, changes))


def says(settings: Settings, device: str, status: bytes, *, retain: bool = False) -> None:
    """Publish a birth or will message of a device, as ``parking_settings`` has push read them.

    By a client of its own: with the device's client id it would end the device's session, and a broker accepts and
    drops what comes until the device has subscribed again.
    """
    with DeviceClient(settings.mqtt, f"{settings.mqtt.client_id}-{device}-status") as client:
        client.publish(f"{settings.push.client_id}/{device}/status", status, retain=retain)
        assert client.flush()


def provision(settings: Settings) -> int:
    with PulsarAdmin(settings.pulsar, timeout_s=30) as admin:
        return provision_commands(admin)


def command(settings: Settings, device: str, number: int, **more: object) -> Command:
    topic = f"{settings.push.client_id}/{device}/commands"
    return Command(f"{device}-{number}", device, topic, f"{number}".encode(), **more)  # type: ignore[arg-type]


def write_commands(settings: Settings, commands: Iterable[Command]) -> None:
    """Write commands with the bare client; returns when Pulsar has all of them."""
    topic = settings.pulsar.system_topic(COMMANDS_TOPIC)
    client = pulsar.Client(settings.pulsar.service_url, logger=quiet())
    results: list[object] = []
    producers: dict[int, pulsar.Producer] = {}
    for one in commands:
        partition = partition_of(one.device, settings.pulsar.command_partitions)
        if partition not in producers:
            producers[partition] = client.create_producer(
                partition_name(topic, partition), batching_enabled=True, block_if_queue_full=True
            )
        producers[partition].send_async(
            one.payload,
            lambda result, _id: results.append(result),
            partition_key=one.device,
            properties=encode_command(one),
        )
    for producer in producers.values():
        producer.flush()
    client.close()
    assert all(result == pulsar.Result.Ok for result in results)


def read_topic(settings: Settings, local: str) -> list[pulsar.Message]:
    """Read all messages of a system topic, partition by partition, with the bare client."""
    return [message for _, message in read_back(settings.pulsar, settings.pulsar.system_topic(local))]


def receipts(settings: Settings) -> dict[str, list[Receipt]]:
    """Return all receipts by command id, each in the order of the topic."""
    found: dict[str, list[Receipt]] = defaultdict(list)
    for message in read_topic(settings, RECEIPTS_TOPIC):
        receipt = Receipt.decode(message.data())
        found[receipt.command_id].append(receipt)
    return found


def backlog(settings: Settings) -> int:
    """Return how many commands are not acknowledged."""
    total = 0
    with PulsarAdmin(settings.pulsar, timeout_s=30) as admin:
        for partition in range(settings.pulsar.command_partitions):
            name = partition_name(settings.pulsar.system_topic(COMMANDS_TOPIC), partition)
            total += int(admin.stats(name)["subscriptions"][PUSH_SUBSCRIPTION]["msgBacklog"])
    return total


def all_acknowledged(settings: Settings) -> None:
    poll_for(lambda: patiently(backlog, settings) == 0, 60, "every command acknowledged", every=0.2)


class Devices:
    """All devices of a test behind one MQTT connection; keeps what arrived, per device, in order."""

    def __init__(
        self,
        settings: Settings,
        answering: Callable[[str, int], bool] | None = None,
        *,
        failing: bool = False,
        received: Callable[[str, Message], None] | None = None,
    ) -> None:
        """``answering`` decides whether a device answers when it has got so many messages; if not, it sends no
        answer, or with ``failing`` a failure. ``received`` gets each message, which then is not kept.
        """
        self._received = received
        self.got: dict[str, list[Message]] = defaultdict(list)
        self._prefix = settings.push.client_id
        self._answering = answering
        self._failing = failing
        self._client = DeviceClient(
            settings.mqtt, f"{self._prefix}-devices", on_message=self._on_message, persistent=True
        )

    def __enter__(self) -> Devices:
        self._client.connect(30)
        self._client.subscribe(f"{self._prefix}/+/commands")
        return self

    def __exit__(self, *exc: object) -> None:
        self._client.close()

    def _on_message(self, message: Message) -> None:
        device = message.topic.split("/")[-2]
        if self._received is None:
            self.got[device].append(message)
        else:
            self._received(device, message)
        if self._answering is not None and self._answering(device, len(self.got[device])):
            self.answer(message, b"done " + message.payload)
        elif self._failing:
            self.answer(message, b"no", ("failed", "1"))

    def answer(self, message: Message, payload: bytes, *user: tuple[str, str]) -> None:
        """Answer as MQTT 5 has it: to the response topic, with the correlation data."""
        received = message.properties
        assert received is not None
        assert received.response_topic is not None
        back = PublishProperties(user=user, correlation_data=received.correlation_data)
        self._client.publish(received.response_topic, payload, properties=back)

    def ids(self, device: str) -> list[str]:
        return [user(message)["command-id"] for message in self.got[device]]

    def await_all(self, commands: Iterable[Command], timeout: float = 60) -> None:
        wanted: dict[str, set[str]] = defaultdict(set)
        for one in commands:
            wanted[one.device].add(one.command_id)
        poll_for(
            lambda: all(ids <= set(self.ids(device)) for device, ids in wanted.items()),
            timeout,
            "every command at its device",
        )

    def check(self, commands: Iterable[Command], *, killed_broker: Mapping[str, int] | None = None) -> int:
        """First arrivals are exactly the commands, in order; every repeat is marked. Returns the repeats.

        An MQTT broker that was killed once sends again, as it was, what the device's PUBACK did not reach it for.
        ``killed_broker`` has the times that each command was pushed: one repeat without a mark is the broker's, unless
        the command was pushed more than once and none of its arrivals is marked.
        """
        wanted: dict[str, list[str]] = defaultdict(list)
        for one in commands:
            wanted[one.device].append(one.command_id)
        repeats = 0
        for device, ids in wanted.items():
            got = self.ids(device)
            assert list(dict.fromkeys(got)) == ids
            marks: dict[str, list[bool]] = defaultdict(list)
            for message in self.got[device]:
                marks[user(message)["command-id"]].append(user(message).get("repeat") == "1")
            for command_id, marked in marks.items():
                repeats += len(marked) - 1
                unmarked = marked[1:].count(False)
                if killed_broker is not None and (any(marked) or killed_broker[command_id] == 1):
                    unmarked -= 1
                assert unmarked <= 0, f"{command_id} came again and is not marked: {marked}"
        return repeats


def user(message: Message) -> dict[str, str]:
    assert message.properties is not None
    return dict(message.properties.user)


@contextmanager
def load(settings: Settings, devices: int, written: list[Command], every_s: float = 0.2) -> Iterator[None]:
    """Write a command to each of so many devices again and again, while the block runs, and append it to ``written``."""
    ended = threading.Event()

    def write() -> None:
        while not ended.wait(every_s):
            some = [command(settings, f"d{n}", len(written) + n) for n in range(devices)]
            write_commands(settings, some)
            written.extend(some)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def push_in_thread(settings: Settings) -> Iterator[PushMetrics]:
    """Run a push worker in this process, for as long as the block runs."""
    metrics = PushMetrics(CollectorRegistry())
    worker = PushWorker(settings, metrics=metrics)
    failures: list[BaseException] = []

    def run() -> None:
        try:
            worker.run()
        except BaseException as e:  # noqa: BLE001 - raised in the test's thread
            failures.append(e)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield metrics
    finally:
        worker.stop()
        await_end(thread)
    if failures:
        raise failures[0]


def await_owned(settings: Settings, metrics: PushMetrics) -> None:
    """Wait until a push worker owns every partition: what expires soon is written after that."""
    count = settings.pulsar.command_partitions
    poll_for(lambda: metrics.counters["takeovers"]._value.get() >= count, 60, "every partition to be owned")


def soon_ms() -> int:
    """Return when something expires that comes through first on a busy machine as well, ms since the epoch."""
    return time.time_ns() // 1_000_000 + 8000


def push_arguments(settings: Settings) -> list[str]:
    """Return these settings as arguments of push's commands."""
    sets = {
        "mqtt.host": settings.mqtt.host,
        "mqtt.port": settings.mqtt.port,
        "mqtt.reconnect_max": "500ms",
        "pulsar.service_url": settings.pulsar.service_url,
        "pulsar.admin_url": settings.pulsar.admin_url,
        "pulsar.namespace": settings.pulsar.namespace,
        "pulsar.system_namespace": settings.pulsar.system_namespace,
        "pulsar.command_partitions": settings.pulsar.command_partitions,
        "pulsar.command_generation": settings.pulsar.command_generation,
        "push.client_id": settings.push.client_id,
        "push.answers.topic": settings.push.answers.topic,
        "push.resume.allow_earliest": settings.push.resume.allow_earliest,
        "push.resume.answer_topic": settings.push.resume.answer_topic,
        "push.resume.interval": settings.push.resume.interval,
        "push.confirm": settings.push.confirm,
        "push.limits.window_size": settings.push.limits.window_size,
        "push.answers.timeout": settings.push.answers.timeout,
        "push.presence.rules": json.dumps([rule.model_dump(mode="json") for rule in settings.push.presence.rules]),
        "push.offline.probe_min": settings.push.offline.probe_min,
        "push.offline.replay_rate": settings.push.offline.replay_rate,
        "metrics.port": settings.metrics.port,
        "metrics.probe_interval": settings.metrics.probe_interval,
        "ingest.links": json.dumps([one.model_dump(mode="json", exclude_unset=True) for one in settings.ingest.links]),
    }
    return [part for path, value in sets.items() for part in ("--set", f"{path}={getattr(value, 'text', value)}")]


class PushProcess:
    """``pulsebridge push`` as a process of its own, which may be killed."""

    def __init__(
        self,
        settings: Settings,
        folder: Path,
        name: str = "push",
        kill_at: str = "",
        more: Sequence[str] = (),
        freeze_at: str = "",
    ) -> None:
        """``more`` are further arguments of the command line. At ``freeze_at`` it stands still, see ``frozen``."""
        self._log = folder / f"{name}.log"
        with self._log.open("wb") as out:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    "from pulsebridge.cli.app import main; main()",
                    "push",
                    *push_arguments(settings),
                    *more,
                ],
                stdout=out,
                stderr=subprocess.STDOUT,
                env=os.environ
                | {"PULSEBRIDGE_KILL_AT": kill_at or freeze_at}
                | ({"PULSEBRIDGE_KILL_SIGNAL": "STOP"} if freeze_at else {}),
            )

    def __enter__(self) -> PushProcess:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        if exc[0] is not None:
            print(self._log.read_text())

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def log(self) -> str:
        return self._log.read_text()

    def owns(self, partitions: int = 1) -> PushProcess:
        poll_for(
            lambda: self.log.count("partition is ours") >= partitions or self._process.poll() is not None,
            60,
            "the push process owns its partitions",
        )
        assert self._process.poll() is None, self.log
        return self

    def died(self) -> None:
        """Wait until it has killed itself at its kill point."""
        poll_for(lambda: self._process.poll() is not None, 60, "the push process died")
        assert self._process.returncode == -signal.SIGKILL, self.log

    def frozen(self) -> None:
        """Wait until it stands still at its point."""
        process = psutil.Process(self.pid)
        poll_for(lambda: process.status() == psutil.STATUS_STOPPED, 60, "the push process stands still")

    def freeze(self) -> None:
        """Let it stand still now."""
        self._process.send_signal(signal.SIGSTOP)
        self.frozen()

    def goes_on(self) -> None:
        """Let it go on after ``frozen``."""
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def terminate(self) -> int:
        """Ask it to end and return its exit code."""
        self._process.terminate()
        return self._process.wait(timeout=patient(30))
