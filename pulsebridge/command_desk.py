"""Commands in notebooks: a push process, devices that connect and disconnect, and receipts."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bridge.contract import (
    COMMAND_ID_PROPERTY,
    COMMAND_POSITION_PROPERTY,
    COMMAND_REPEAT_PROPERTY,
    RECEIPTS_TOPIC,
)
from bridge.errors import TransientError
from bridge.mqtt.device import DeviceClient
from bridge.mqtt.types import Message
from bridge.settings import Settings
from pulsebridge.processes import Child, pulsebridge_command

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["PRESENCE", "CommandDesk", "LabDevice", "command_topic", "status_topic"]

PRESENCE: Final = "devices/+device/status"
"""MQTT filter of the retained status messages of the devices of a lab: online or offline."""
_WAIT_S: Final = 60.0
_SCHEMA: Final = (
    "command_id string, device string, mqtt_topic string, payload binary, emitted_at timestamp, expires_at timestamp"
)
_COLUMNS: Final = (
    "command_id", "device", "state", "reason", "attempts", "emitted_at", "pushed_at", "confirmed_at",
)  # fmt: skip


def command_topic(device: str) -> str:
    """Return the MQTT topic on which a device of a lab receives its commands."""
    return f"devices/{device}/commands"


def status_topic(device: str) -> str:
    """Return the MQTT topic of the status of a device of a lab."""
    return PRESENCE.replace("+device", device)


class LabDevice:
    """A device of a notebook: it connects, disconnects, and keeps its received commands."""

    def __init__(self, settings: Settings, name: str) -> None:
        self.name = name
        self._settings = settings
        self._client: DeviceClient | None = None
        self._got: list[tuple[datetime, str, str, str, bool]] = []
        self._changed = threading.Condition()

    @property
    def connected(self) -> bool:
        """Whether the device is connected."""
        return self._client is not None

    def come(self) -> LabDevice:
        """Connect, subscribe, and publish ``online``. Raises TransientError if the broker does not answer."""
        if self._client is None:
            client = DeviceClient(
                self._settings.mqtt, f"lab-{self.name}-{uuid.uuid4().hex[:6]}", on_message=self._on_message
            )
            client.connect()
            client.subscribe(command_topic(self.name))
            self._client = client
            self._publish_status(client, b"online")
        return self

    def leave(self) -> None:
        """Publish ``offline`` and disconnect."""
        if self._client is not None:
            self._publish_status(self._client, b"offline")
            self._client.close()
            self._client = None

    def commands(self, at_least: int = 0) -> pd.DataFrame:
        """Return the received commands in order; wait up to a minute for ``at_least`` different ones.

        Raises TransientError if they do not arrive.
        """
        import pandas as pd

        with self._changed:
            if not self._changed.wait_for(lambda: self._different() >= at_least, _WAIT_S):
                raise TransientError(f"{self.name} received {self._different()} of {at_least} commands")
            names = ["arrived_at", "command_id", "payload", "position", "repeat"]
            return pd.DataFrame(list(self._got), columns=names)

    def _different(self) -> int:
        return len({command_id for _, command_id, *_ in self._got})

    def _publish_status(self, client: DeviceClient, status: bytes) -> None:
        client.publish(status_topic(self.name), status, retain=True)
        if not client.flush():
            raise TransientError(f"the MQTT broker did not acknowledge that {self.name} is {status.decode()}")

    def _on_message(self, message: Message) -> None:
        properties = dict(message.properties.user) if message.properties is not None else {}
        row = (
            datetime.now(timezone.utc),
            properties.get(COMMAND_ID_PROPERTY, ""),
            message.payload.decode("utf-8", "replace"),
            properties.get(COMMAND_POSITION_PROPERTY, ""),
            properties.get(COMMAND_REPEAT_PROPERTY) == "1",
        )
        with self._changed:
            self._got.append(row)
            self._changed.notify_all()


class CommandDesk:
    """Command path of one lab: its push process, its devices, its commands and their receipts."""

    def __init__(
        self,
        settings: Settings,
        config: Path,
        environment: Mapping[str, str],
        spark: Callable[[], SparkSession],
        options: Callable[[str], dict[str, str]],
    ) -> None:
        self._settings = settings
        self._spark = spark
        self._options = options
        self._devices: dict[str, LabDevice] = {}
        self._log = config.parent / "push.log"
        self._push = Child("push", pulsebridge_command("push", "--config", str(config)), self._log, environment)

    def start(self) -> None:
        """Start push and wait until it serves all partitions. Raises TransientError if it does not."""
        self._push.start()
        self._push.await_log("partition is ours", _WAIT_S, times=self._settings.pulsar.command_partitions)

    def close(self) -> None:
        """Disconnect the devices, and stop push."""
        for device in self._devices.values():
            device.leave()
        self._push.ask()
        self._push.wait()

    def device(self, name: str) -> LabDevice:
        """Return a device by its name, the same object each time; ``come`` connects it."""
        return self._devices.setdefault(name, LabDevice(self._settings, name))

    def commands(self, device: str, texts: Sequence[str], expires_s: float = 3600.0) -> DataFrame:
        """Return a row for ``format("pulsebridge_commands")`` for each text, in order."""
        now = datetime.now(timezone.utc)
        run = uuid.uuid4().hex[:4]
        rows = [
            (
                f"{device}-{run}-{n:03}",
                device,
                command_topic(device),
                bytearray(text.encode()),
                now,
                now + timedelta(seconds=expires_s),
            )
            for n, text in enumerate(texts, 1)
        ]
        return self._spark().createDataFrame(rows, _SCHEMA).coalesce(1)

    def receipts(self, commands: DataFrame, settled: int = 0) -> pd.DataFrame:
        """Return a row with the receipt of each command, in order; wait up to a minute until ``settled`` have a state.

        Raises TransientError if they do not get one.
        """
        from sinks.receipts import with_receipts

        topic = self._settings.pulsar.system_topic(RECEIPTS_TOPIC)
        deadline = time.monotonic() + _WAIT_S
        while True:
            read = self._spark().read.format("pulsebridge").options(**self._options(topic)).load()
            rows: pd.DataFrame = with_receipts(commands, read).select(*_COLUMNS).orderBy("command_id").toPandas()
            have = int(rows["state"].notna().sum())
            if have >= settled:
                return rows
            if time.monotonic() > deadline:
                raise TransientError(f"{have} of {settled} commands have a receipt", remedy=f"see {self._log}")
