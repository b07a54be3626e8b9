"""The devices as MQTT clients, each with its own connection and journal.

The sessions are persistent; commands are subscribed at QoS 1. A publish is journalled before the client gets it, a
command before its PUBACK is sent, an acknowledgement before it counts.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path

from bridge.contract import COMMAND_REPEAT_PROPERTY
from bridge.mqtt.device import DeviceClient
from bridge.mqtt.types import Message
from bridge.settings.mqtt import MqttSettings
from pulsebridge.audit.journal import ACKNOWLEDGED, COMMAND, PUBLISHED, REFUSED, Journal
from pulsebridge.audit.records import json_object, record_id
from pulsebridge.demo.plan import Send
from pulsebridge.demo.recordings import VirtualDevice

__all__ = ["Simulator", "now_us"]

_CONNECT_S = 30.0


def now_us() -> int:
    """Return the time in µs since the epoch."""
    return time.time_ns() // 1000


class _Device:
    """One device. Any thread may call ``send``; its other methods run on the thread of its connection."""

    def __init__(self, device: VirtualDevice, settings: MqttSettings, journals: Path, client_prefix: str) -> None:
        self.device = device
        self.journal = Journal(journals, device.name)
        self.published = self.acknowledged = self.refused = self.commands = 0
        self.command_ids: set[str] = set()
        # One publish in flight: Artemis does not keep the order of several (ARTEMIS-6191).
        self.client = DeviceClient(
            settings, f"{client_prefix}{device.name}", on_message=self._on_message, persistent=True, window=1
        )

    def send(self, send: Send) -> None:
        us = now_us()
        payload = send.payload(self.device, us)
        name = record_id(payload)
        fields = {"fault": send.fault, "value": None} if send.fault else {"value": send.reading.value}
        ts, metric = send.reading.ts.isoformat(), self.device.kind.metric
        self.journal.write(PUBLISHED, us, id=name, metric=metric, seq=send.seq, ts=ts, **fields)
        self.published += 1
        self.client.publish(self.device.topic, payload, confirmed=lambda reason: self._confirmed(name, reason))

    def _confirmed(self, name: str, reason: int) -> None:
        if reason >= 0x80:
            self.journal.write(REFUSED, now_us(), id=name, reason=reason)
            self.refused += 1
        else:
            self.journal.write(ACKNOWLEDGED, now_us(), id=name)
            self.acknowledged += 1

    def _on_message(self, message: Message) -> None:
        # The client sends the PUBACK after this method returns.
        self.commands += 1
        body = json_object(message.payload)
        name = str(body.get("command_id", record_id(message.payload)))
        repeat = message.properties is not None and (COMMAND_REPEAT_PROPERTY, "1") in message.properties.user
        fields = {key: body.get(key) for key in ("reading_id", "rule", "message")}
        self.journal.write(COMMAND, now_us(), id=name, n=self.commands, dup=message.dup, repeat=repeat, **fields)
        self.command_ids.add(name)


class Simulator:
    """Devices that replay a timeline. ``close`` it at the end; the sessions stay at the broker."""

    def __init__(
        self,
        devices: Sequence[VirtualDevice],
        settings: MqttSettings,
        journals: Path,
        client_prefix: str = "",
    ) -> None:
        self._devices = [_Device(d, settings, journals, client_prefix) for d in devices]
        self.sent_all = False

    def close(self) -> None:
        """Disconnect all devices and close their journals."""
        for device in self._devices:
            device.client.stop()  # all at once, then wait for each
        for device in self._devices:
            device.client.close()
            device.journal.close()

    def connect(self) -> None:
        """Connect and subscribe every device. Raises TransientError without an answer, DeniedError if denied."""
        for device in self._devices:
            device.client.connect(_CONNECT_S)
            device.client.subscribe(device.device.command_topic, timeout=_CONNECT_S)

    def replay(self, sends: Sequence[Send], stop: threading.Event) -> None:
        """Send each publish when it is due, until ``stop`` is set."""
        began = time.monotonic()
        for send in sends:
            if stop.wait(max(0.0, send.due_s - (time.monotonic() - began))):
                return
            self._devices[send.device].send(send)
        self.sent_all = True

    def drain(self, stop: threading.Event, timeout_s: float = 120.0) -> None:
        """Wait until the broker has answered all publishes, for at most ``timeout_s`` seconds."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and not stop.wait(0.05):
            self.check()
            counts = self.counts()
            if counts["acknowledged"] + counts["refused"] >= counts["published"]:
                return

    def check(self) -> None:
        """Raise the error that ended a device's connection for good, if any."""
        for device in self._devices:
            if device.client.failure is not None:
                raise device.client.failure

    def counts(self) -> dict[str, int]:
        """Return the publishes so far (published, acknowledged, refused) and the distinct commands (received)."""
        names = ("published", "acknowledged", "refused")
        counted = {name: sum(getattr(d, name) for d in self._devices) for name in names}
        return counted | {"received": sum(len(d.command_ids) for d in self._devices)}

    def summary(self) -> str:
        """Return the counts as one line."""
        reconnects = sum(max(0, d.client.connections - 1) for d in self._devices)
        c = self.counts()
        return (
            f"{len(self._devices)} devices: {c['published']:,} published, {c['acknowledged']:,} acknowledged, "
            f"{c['received']:,} commands received, {reconnects} reconnects"
        )
