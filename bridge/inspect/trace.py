"""The way of one publish, step by step, for ``pulsebridge status --trace TOPIC``: connect, lookup, owner, transfer."""

from __future__ import annotations

import secrets
import threading
import time
from typing import Final, NamedTuple

from bridge.contract import P_TOPIC, partition_name
from bridge.contract.partitioning import partition_of
from bridge.errors import PulsebridgeError, RefusedError, TransientError
from bridge.mqtt.device import DeviceClient
from bridge.pulsar.client import LATEST, PulsarClient, properties_of, received
from bridge.pulsar.dial import dial
from bridge.pulsar.messages import position_of
from bridge.pulsar.sending import close_quietly
from bridge.pulsar.wire.client import Brokers
from bridge.pulsar.wire.connection import BrokerConnection
from bridge.settings import Settings

__all__ = ["Step", "trace"]

_PATIENCE_S: Final = 10.0


class Step(NamedTuple):
    """One step; ``ms`` since the step before."""

    name: str
    what: str
    ms: float
    ok: bool = True


class _Steps:
    def __init__(self) -> None:
        self.all: list[Step] = []
        self._last = time.monotonic()

    def add(self, name: str, what: str, *, ok: bool = True) -> None:
        now = time.monotonic()
        self.all.append(Step(name, what, round((now - self._last) * 1000, 1), ok))
        self._last = now


def trace(settings: Settings, pulsar_topic: str, key: str, mqtt_topic: str, payload: bytes | None) -> list[Step]:
    """Return the steps from here to the broker that owns the partition of ``key``.

    With a ``payload``, it is published on ``mqtt_topic``, as a device would, and followed into Pulsar. The last step has
    the error, if one occurs.
    """
    steps = _Steps()
    pulsar = settings.pulsar.model_copy(update={"operation_timeout": _PATIENCE_S})
    try:
        dial(pulsar, pulsar.connection_timeout)  # reports at once what Pulsar's client reports after its timeout
        with PulsarClient(pulsar) as client:
            partitions = client.partitioned(pulsar_topic)
            if not partitions:
                raise RefusedError(f"{pulsar_topic} does not exist, or has no partitions: its first message creates it")
            partition = partition_name(pulsar_topic, partition_of(key, len(partitions)))
            steps.add("topic", f"key {key} is in {partition}, of {len(partitions)} partitions")
            _find_owner(settings, partition, steps)
            if payload is not None:
                _transfer(settings, client, partition, mqtt_topic, payload, steps)
    except PulsebridgeError as e:
        steps.add("error", str(e), ok=False)
    return steps.all


def _find_owner(settings: Settings, partition: str, steps: _Steps) -> None:
    brokers = Brokers(settings.pulsar, BrokerConnection, seen=steps.add)
    try:
        owner = brokers.owner(partition, f"looking up {partition}", time.monotonic() + _PATIENCE_S)
        steps.add("owner", owner.accepted.name)
    finally:
        brokers.close()


def _transfer(
    settings: Settings, client: PulsarClient, partition: str, mqtt_topic: str, payload: bytes, steps: _Steps
) -> None:
    reader = client.reader(partition, LATEST)
    try:
        received(reader.read_next, 1, f"reading {partition}")  # from now on
        mqtt = settings.mqtt
        acknowledged = threading.Event()
        with DeviceClient(mqtt, f"pulsebridge-trace-{secrets.token_hex(4)}") as device:
            steps.add("connect", f"MQTT broker {mqtt.host}:{mqtt.port}")
            device.publish(mqtt_topic, payload, confirmed=lambda _code: acknowledged.set())
            if not acknowledged.wait(_PATIENCE_S):
                raise TransientError(f"the MQTT broker did not acknowledge within {_PATIENCE_S:g} s")
            steps.add("acknowledged", "by the MQTT broker")
            until = time.monotonic() + _PATIENCE_S
            while time.monotonic() < until:
                message = received(reader.read_next, 500, f"reading {partition}")
                if message is None or message.data() != payload:
                    continue
                if (properties_of(message) or {}).get(P_TOPIC) == mqtt_topic:
                    steps.add("transfer", f"stored at {position_of(message.message_id())}, read back")
                    return
        raise TransientError(f"it was not in {partition} within {_PATIENCE_S:g} s", remedy="does ingest run?")
    finally:
        close_quietly(reader)
