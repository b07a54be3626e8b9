"""Ingest under test: in a thread or as a process, fed by devices, and read back by the bare Pulsar client."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from bridge.contract import DEAD_LETTERS_TOPIC, full_envelope
from bridge.errors import PulsebridgeError
from bridge.ingest.mqtt_handler import MqttHandler
from bridge.ingest.service import IngestService
from bridge.ingest.sessions import stored_sessions
from bridge.ingest.worker import IngestWorker
from bridge.mqtt.device import DeviceClient
from bridge.pulsar.admin import PulsarAdmin, rest_path
from bridge.routing.sharding import Remembered
from bridge.settings import Settings
from bridge.settings.ingest import IngestSettings, TopicRule
from bridge.settings.mqtt import MqttSettings
from bridge.settings.pulsar import PulsarSettings
from tests.support.reading_back import patiently, read_back
from tests.support.waiting import await_end, poll_for

__all__ = [
    "IN_ORDER",
    "Stored",
    "dead_letters",
    "device",
    "ingest_process",
    "ingest_settings",
    "publish_ids",
    "remembered",
    "rule_for",
    "running_ingest",
    "stored",
    "wait_for",
]


IN_ORDER = 1
"""The window of a device: Artemis may route several publishes in flight of one client out of order (ARTEMIS-6191)."""


class Stored(NamedTuple):
    """A message as the bare client reads it, its envelope in full."""

    partition: int
    key: str
    payload: bytes
    properties: dict[str, str]
    event_ms: int = 0


def rule_for(root: str, **changes: object) -> TopicRule:
    """Return a rule for devices below ``root`` that publish on one level, into the topic ``fleet``."""
    fields = {
        "name": "fleet",
        "filter": f"{root}/+device/+metric",
        "topic": "fleet",
        "device": "{device}",
        "command_topic": f"{root}-commands/{{device}}",
    }
    return TopicRule(**(fields | changes))  # type: ignore[arg-type]


def ingest_settings(mqtt: MqttSettings, namespaces: PulsarSettings, **ingest: Any) -> Settings:
    """Return settings of an ingest worker; ``ingest`` are its own fields."""
    return Settings(mqtt=mqtt, pulsar=namespaces, ingest=IngestSettings(**ingest))


@contextmanager
def running_ingest(settings: Settings, *, wait: bool = True) -> Iterator[IngestService]:
    """Run ingest in a thread until the block ends; what ended it is raised at the end.

    Without ``wait`` the block begins at once, for links that will not all be ready.
    """
    service = IngestService(settings)
    failures: list[PulsebridgeError] = []

    def run() -> None:
        try:
            service.run()
        except PulsebridgeError as e:
            failures.append(e)

    thread = threading.Thread(target=run, name="ingest-under-test", daemon=True)
    thread.start()
    try:
        if wait:
            poll_for(lambda: service.ready.is_set() or failures, 60, "ingest's subscriptions")
        yield service
    finally:
        service.stop()
        await_end(thread)
    if failures:
        raise failures[0]


def worker_of(service: IngestService) -> IngestWorker:
    """Return the worker of the first MQTT link."""
    links = next(h.links for h in service.running.handlers if isinstance(h, MqttHandler))
    worker = next(iter(links.values())).worker
    assert worker is not None
    return worker


@contextmanager
def ingest_process(settings: Settings, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run ``pulsebridge ingest`` as a process of its own; it is killed at the end if it still runs."""
    config = folder / "ingest.yaml"
    config.write_text(yaml.safe_dump(settings.model_dump(mode="json", exclude_defaults=True)), encoding="utf-8")
    log = (folder / "ingest.log").open("ab")
    process = subprocess.Popen(
        [sys.executable, "-c", "from pulsebridge.cli.app import main; main()", "ingest", "-c", str(config)],
        stdout=log,
        stderr=subprocess.STDOUT,
        env=os.environ | {"PYTHONFAULTHANDLER": "1"},
    )
    try:
        marker = b"subscribed at the MQTT broker"
        before = (folder / "ingest.log").read_bytes().count(marker)
        text = folder / "ingest.log"
        poll_for(
            lambda: text.read_bytes().count(marker) > before or process.poll() is not None,
            60,
            "ingest to subscribe",
        )
        assert process.poll() is None, text.read_text()
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        log.close()


@contextmanager
def device(mqtt: MqttSettings, name: str, **options: Any) -> Iterator[DeviceClient]:
    """A connected device on the same broker with a client id derived from ingest's."""
    client = DeviceClient(mqtt, f"{mqtt.client_id}-{name}", **options)
    client.connect(30)
    try:
        yield client
    finally:
        client.close()


def publish_ids(
    client: DeviceClient, topics: Sequence[str], count: int, confirmed: list[str], *, size: int = 0
) -> None:
    """Queue ``count`` publishes over the topics; the payload is ``topic#number``, its id once the broker has it."""
    for number in range(count):
        topic = topics[number % len(topics)]
        name = f"{topic}#{number}"
        payload = name.encode().ljust(size, b" ")
        client.publish(topic, payload, confirmed=lambda _c, name=name: confirmed.append(name))  # type: ignore[misc]


def remembered(settings: PulsarSettings) -> dict[str, Remembered]:
    """Return the MQTT sessions that ingest has noted in Pulsar, by name."""
    with PulsarAdmin(settings, timeout_s=30) as admin:
        return stored_sessions(admin)


def _exists(settings: PulsarSettings, topic: str) -> bool:
    with PulsarAdmin(settings, timeout_s=30) as admin:
        return (
            admin.partition_count(topic) > 0
            or admin.request("GET", f"/{rest_path(topic)}/stats", accept=(404,)) is not None
        )


def stored(settings: PulsarSettings, topic: str) -> list[Stored]:
    """Read a topic from its beginning to its present end, partition by partition."""
    full = topic if "://" in topic else settings.readings_topic(topic)
    if not patiently(_exists, settings, full):
        return []  # a reader would make it, without partitions
    return [
        Stored(
            number,
            message.partition_key(),
            message.data(),
            full_envelope(message.properties()),
            message.event_timestamp(),
        )
        for number, message in read_back(settings, full)
    ]


def wait_for(namespaces: PulsarSettings, count: int, topic: str = "fleet") -> list[Stored]:
    """Wait until a topic has ``count`` messages and return all that it has then."""
    return poll_for(
        lambda: found if len(found := stored(namespaces, topic)) >= count else None,
        60,
        f"{count} messages",
        every=0.3,
    )


def dead_letters(settings: PulsarSettings) -> list[Stored]:
    """Read all dead letters."""
    return stored(settings, settings.system_topic(DEAD_LETTERS_TOPIC))


def by_key(messages: Sequence[Stored]) -> dict[str, list[str]]:
    """Return the payloads' ids of each key, in the order of the log."""
    found: dict[str, list[str]] = defaultdict(list)
    for message in messages:
        found[message.key].append(message.payload.decode().strip())
    return found


def first_copies(ids: Sequence[str]) -> list[int]:
    """Return the numbers of ``topic#number`` ids in order, repeats left out."""
    return [int(i.rsplit("#", 1)[1]) for i in dict.fromkeys(ids)]
