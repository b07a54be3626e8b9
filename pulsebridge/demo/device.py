"""One device of the fleet: an MQTT session of its own that publishes readings, takes commands, and journals both.

The session is persistent and the command topic is subscribed at QoS 1. Order of the writes: a publish is
journalled before the client has it; a command is journalled before its PUBACK leaves; an acknowledgement is
journalled before it counts.
"""

from __future__ import annotations

import time

from bridge.contract import COMMAND_REPEAT_PROPERTY
from bridge.mqtt.device import DeviceClient
from bridge.mqtt.types import Confirmation, Message
from bridge.settings.mqtt import MqttSettings
from pulsebridge.demo.journal import ACKNOWLEDGED, COMMAND, PUBLISHED, REFUSED, Journal
from pulsebridge.demo.payloads import decode, record_id
from pulsebridge.demo.recordings import VirtualDevice
from pulsebridge.demo.schedule import Send

__all__ = ["Device", "now_us"]


def now_us() -> int:
    """Return the time in µs since the epoch."""
    return time.time_ns() // 1000


class Device:
    """A virtual device on its own connection. ``start`` it, ``send`` to it from any thread, ``stop`` it."""

    def __init__(
        self, device: VirtualDevice, settings: MqttSettings, journal: Journal, client_prefix: str
    ) -> None:
        self.device = device
        self.journal = journal
        self.published = 0
        self.acknowledged = 0
        self.refused = 0
        self.commands = 0
        """Commands that arrived, repeats included."""
        self.command_ids: set[str] = set()
        # One publish in flight: Artemis does not keep the order of several (ARTEMIS-6191), PUBACK by PUBACK it does.
        self._client = DeviceClient(
            settings,
            f"{client_prefix}{device.name}",
            on_message=self._on_message,
            persistent=True,
            window=1,
        )

    # --- from any thread ---

    def start(self, timeout_s: float) -> None:
        """Connect and subscribe. Raises TransientError when the broker does not answer in time, RefusedError when
        it refuses the subscription.
        """
        self._client.connect(timeout_s)
        self._client.subscribe(self.device.command_topic, timeout=timeout_s)

    @property
    def reconnects(self) -> int:
        """How often the connection was made again."""
        return max(0, self._client.connections - 1)

    def send(self, send: Send) -> None:
        """Journal and publish one reading at QoS 1. It is sent again, with the same id, until acknowledged."""
        at = now_us()
        payload = send.payload(self.device, at)
        name = record_id(payload)
        fields = {"fault": send.fault} if send.fault else {}
        value = None if send.fault else send.reading.value
        self.journal.write(
            PUBLISHED, at, id=name, seq=send.seq, ts=send.reading.ts.isoformat(), value=value, **fields
        )
        self.published += 1
        self._client.publish(self.device.topic, payload, confirmed=lambda c: self._confirmed(name, c))

    def stop(self) -> None:
        """Disconnect and close the journal; the session stays at the broker."""
        try:
            self._client.close()
        finally:
            self.journal.close()

    def check(self) -> None:
        """Raise what ended the connection for good, if anything did."""
        if self._client.link.failure is not None:
            raise self._client.link.failure

    # --- on the link's thread ---

    def _confirmed(self, name: str, confirmation: Confirmation) -> None:
        if confirmation.reason >= 0x80:
            self.journal.write(REFUSED, now_us(), id=name, reason=confirmation.reason)
            self.refused += 1
            return
        self.journal.write(ACKNOWLEDGED, now_us(), id=name)
        self.acknowledged += 1

    def _on_message(self, message: Message) -> None:
        # Its PUBACK leaves after this returned.
        self.commands += 1
        body = decode(message.payload) or {}
        repeat = message.properties is not None and (COMMAND_REPEAT_PROPERTY, "1") in message.properties.user
        name = str(body.get("command_id", record_id(message.payload)))
        self.journal.write(
            COMMAND,
            now_us(),
            id=name,
            n=self.commands,
            dup=message.dup,
            repeat=repeat,
            reading_id=body.get("reading_id"),
            rule=body.get("rule"),
            text=body.get("message"),
        )
        self.command_ids.add(name)
