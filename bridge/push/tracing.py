"""Tracing: the steps of commands through push, a log line for each: ``pulsebridge push --trace ID|DEVICE|all``.

notified
    An arrival: Pulsar delivers a message; ms since it was published.
matched
    Which device it is for, and whether that device's queue is live, parked or replaying.
pulled
    Its message is here, by ``subscription`` for a live device, by ``position`` for one that is replayed.
pushed
    Handed to the MQTT link.

Then puback and answered, cursor (stored), receipt (stored), acked; parked (its id is stored) if the device is parked;
dead letter if push gives it up.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Final, NamedTuple

import structlog

from bridge.contract import C_DEVICE, C_ID
from bridge.contract.commands import CommandPosition
from bridge.pulsar.messages import StoredMessage
from bridge.pulsar.sending import Stored
from bridge.push.actions import Ack, DeadLetter, Pull, Push, StoreCursor, StoreReceipt, StoreSegment
from bridge.push.device_protocol import DeviceAnswer
from bridge.push.partition import Partition
from bridge.push.puller import Pulled
from bridge.push.states import Mode

__all__ = ["Answered", "Confirmed", "Tracer"]

log = structlog.get_logger("push.trace")

_ALL: Final = "all"
_MOST: Final = 10_000


class Confirmed(NamedTuple):
    """The broker answered a push with a PUBACK reason code."""

    position: CommandPosition
    reason: int


class Answered(NamedTuple):
    """A device answered; ``waited``: its command waited for that."""

    answer: DeviceAnswer
    waited: bool


@dataclass(slots=True)
class _Traced:
    command_id: str
    device: str
    last_us: int  # time of the step before, 0 where none was seen
    parked: bool = False  # its id is stored: its acknowledgement does not end it


class Tracer:
    """Logs the steps of the commands that are traced; all on the partition's thread."""

    def __init__(self, wanted: str, core: Partition, partition: int, generation: int, most: int = _MOST) -> None:
        """``wanted`` is a command's id, a device, or ``all``; ``generation`` is that of the commands topic. The oldest of more
        than ``most`` commands are forgotten.
        """
        self._wanted = wanted
        self._core = core
        self._topic = partition, generation
        self._most = most
        self._known: OrderedDict[CommandPosition, _Traced] = OrderedDict()

    def see(self, step: object) -> None:
        """Log a step: an event or action of which ``Effects`` handled or began all; ``Stored`` before the core gets it."""
        match step:
            case StoredMessage() as message:
                device = message.properties.get(C_DEVICE, message.key)
                command_id, since_us = message.properties.get(C_ID, ""), message.published_ms * 1000
                self._begin(message.position, command_id, device, since_us)
                self._log("notified", message.position)
                mode = self._core.devices.mode_of(device)
                self._log("matched", message.position, queue=mode.name.lower())
                if mode is Mode.LIVE:
                    self._log("pulled", message.position, by="subscription", bytes=len(message.payload))
            case Pulled(pull, position, message) if message is not None:
                self._begin(position, message.properties.get(C_ID, ""), pull.device)
                self._log("pulled", position, by="position", bytes=len(message.payload))
            case Pull():
                for position in step.positions:
                    self._begin(position, "", step.device)
                    self._log("waking", position, queue=self._core.devices.mode_of(step.device).name.lower())
            case Push():
                self._log("pushed", step.position, mqtt_topic=step.command.mqtt_topic, repeat=step.repeat or None)
            case Confirmed(position, reason):
                self._log("puback", position, reason=f"0x{reason:02X}")
            case Answered(answer, waited):
                self._log("answered", answer.position, failed=answer.failed, waited_for=waited)
            case DeadLetter():
                self._log("given up", step.position, why=step.reason)
            case Ack(position):
                self._log("acked", position)
                if (one := self._known.get(position)) is not None and not one.parked:
                    del self._known[position]
            case Stored(StoreCursor() as cursor):
                for tracked in self._core.devices.awake[cursor.device].cursor_write.storing:
                    self._log("cursor", tracked.position)
            case Stored(StoreSegment() as segment):
                for position in segment.parked:
                    self._log("parked", position)
                    if position in self._known:
                        self._known[position].parked = True
            case Stored(StoreReceipt() as stored):
                self._log("receipt", stored.position, state=stored.receipt.state)
            case Stored(DeadLetter() as letter):
                self._log("dead letter", letter.position)

    def _begin(self, position: CommandPosition, command_id: str, device: str, since_us: int = 0) -> None:
        """Trace the command from now on, if it is one of those that are wanted."""
        if self._wanted not in (_ALL, command_id, device):
            return
        known = self._known.pop(position, None)
        self._known[position] = known or _Traced(command_id, device, since_us)
        if len(self._known) > self._most:
            self._known.popitem(last=False)

    def _log(self, step: str, position: CommandPosition, **more: object) -> None:
        """Log a step with the time since the one before in ms, None where none was seen."""
        one = self._known.get(position)
        if one is None:
            return
        now_us = time.time_ns() // 1000
        ms = round((now_us - one.last_us) / 1000, 3) if one.last_us else None
        one.last_us = now_us
        log.info(
            step,
            command_id=one.command_id,
            device=one.device,
            at=datetime.fromtimestamp(now_us / 1e6, timezone.utc).isoformat(timespec="milliseconds"),
            ms=ms,
            position=position.encode(*self._topic),
            **{key: value for key, value in more.items() if value is not None},
        )
