"""Tiers on the secured servers: namespaces provisioned for roles, what is stored as the administrator reads it."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from prometheus_client import CollectorRegistry

from bridge.contract import COMMANDS_TOPIC, partition_name
from bridge.contract.commands import Command, encode_command
from bridge.errors import PulsebridgeError
from bridge.pulsar.admin import PulsarAdmin
from bridge.pulsar.client import EARLIEST, PulsarClient
from bridge.push.metrics import PushMetrics
from bridge.push.worker import PushWorker
from bridge.settings import Settings
from bridge.settings.ingest import IngestSettings
from bridge.settings.pulsar import PulsarSettings
from bridge.settings.rules import TopicRule
from pulsebridge.cli.provision import carry_out, whole_plan
from tests.support.secured import SecuredPulsar
from tests.support.waiting import await_end

__all__ = ["PLANT", "granted", "payloads", "provisioned_for", "pushing", "write_command"]

PLANT = TopicRule(
    name="plant",
    filter="plant/+device/+metric",
    topic="plant",
    device="{device}",
    command_topic="commands/{device}",
)


def provisioned_for(pulsar: SecuredPulsar, roles: Mapping[str, str], **changes: Any) -> PulsarSettings:
    """Return the administrator's settings of fresh namespaces with all of the plan done. ``roles``: tier → role."""
    settings = Settings(
        pulsar=pulsar.namespaces("admin", partitions=1, command_partitions=1, **changes),
        ingest=IngestSettings(routes=(PLANT,)),
    )
    with PulsarAdmin(settings.pulsar, timeout_s=30) as admin:
        carry_out(admin, whole_plan(settings, roles=dict(roles)))
    return settings.pulsar


def granted(settings: PulsarSettings, namespace: str, role: str, *actions: str) -> None:
    """Grant a role exactly these actions on one of the two namespaces; none takes all away."""
    path = f"/namespaces/{settings.tenant}/{namespace}/permissions/{role}"
    with PulsarAdmin(settings, timeout_s=30) as admin:
        admin.request("POST" if actions else "DELETE", path, body=list(actions) or None)


def write_reading(settings: PulsarSettings, topic: str) -> None:
    """Write ``a reading`` to the first partition of a topic, as the role of ``settings``."""
    with PulsarClient(settings) as client:
        producer: Any = client.producer(partition_name(topic, 0))
        producer.send(b"a reading")
        producer.close()


def payloads(settings: PulsarSettings, topic: str) -> list[bytes]:
    """Read a topic from its beginning to its present end, as the role of ``settings``."""
    found = []
    with PulsarClient(settings) as client:
        for partition in client.partitions(topic):
            reader: Any = client.reader(partition, EARLIEST)
            while reader.has_message_available():
                found.append(reader.read_next(10_000).data())
            reader.close()
    return found


@contextmanager
def pushing(settings: Settings) -> Iterator[list[PulsebridgeError]]:
    """Run push in a thread; what ended it is in the list."""
    failures: list[PulsebridgeError] = []
    worker = PushWorker(settings, metrics=PushMetrics(CollectorRegistry()))

    def run() -> None:
        try:
            worker.run()
        except PulsebridgeError as e:
            failures.append(e)

    thread = threading.Thread(target=run, name="push-under-test", daemon=True)
    thread.start()
    try:
        yield failures
    finally:
        worker.stop()
        await_end(thread)


def write_command(admin: PulsarSettings, topic: str) -> str:
    """Write one command as the administrator and return its id."""
    command = Command(uuid.uuid4().hex, "d1", topic, b"reset")
    with PulsarClient(admin) as client:
        producer: Any = client.producer(partition_name(admin.system_topic(COMMANDS_TOPIC), 0))
        producer.send(command.payload, properties=encode_command(command), partition_key="d1")
        producer.close()
    return command.command_id
