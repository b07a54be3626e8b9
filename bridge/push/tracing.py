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
from collections import OrderedDict, defaultdict
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Final

import structlog

from bridge.contract import C_DEVICE, C_ID
from bridge.contract.commands import CommandPosition
from bridge.mqtt.types import Confirmation
from bridge.push.actions import Ack, Action, DeadLetter, Pull, Push, StoreCursor, StoreReceipt, StoreSegment
from bridge.push.delivery import NO_SUBSCRIBERS
from bridge.push.device_protocol import DeviceAnswer
from bridge.push.partition import Partition
from bridge.push.position_reader import StoredMessage
from bridge.push.puller import Pulled
from bridge.push.states import Mode

__all__ = ["EVERYTHING", "Observer", "Tracer", "Traces"]

log = structlog.get_logger("push.trace")

EVERYTHING: Final = "all"
_MOST: Final = 10_000


@dataclass(slots=True)
class _Traced:
    command_id: str
    device: str
    last_us: int
    """Time of the step before, 0 where none was seen."""


class Traces:
    """Which commands are traced, and when each made its last step. Times are µs since the epoch."""

    def __init__(self, wanted: str, most: int = _MOST) -> None:
        """``wanted`` is a command's id, a device, or ``all``; the oldest of more than ``most`` are forgotten."""
        self._wanted = wanted
        self._most = most
        self._known: OrderedDict[CommandPosition, _Traced] = OrderedDict()
        self._pushes: OrderedDict[int, CommandPosition] = OrderedDict()
        self._confirmed: dict[str, list[CommandPosition]] = defaultdict(list)  # no cursor was written since
        self._covered: dict[str, list[CommandPosition]] = {}  # by the cursor that is being written

    def begin(self, position: CommandPosition, command_id: str, device: str, since_us: int = 0) -> None:
        """A message is here; from now on it is traced, if it is one of those that are wanted."""
        if self._wanted not in (EVERYTHING, command_id, device):
            return
        known = self._known.pop(position, None)
        self._known[position] = known or _Traced(command_id, device, since_us)
        if len(self._known) > self._most:
            self._known.popitem(last=False)

    def step(self, position: CommandPosition, now_us: int) -> dict[str, Any] | None:
        """Return the fields of each line of a command, and note the step; None for one that is not traced.

        ``ms`` is the time since the step before, None where none was seen.
        """
        one = self._known.get(position)
        if one is None:
            return None
        ms = round((now_us - one.last_us) / 1000, 3) if one.last_us else None
        one.last_us = now_us
        at = datetime.fromtimestamp(now_us / 1e6, timezone.utc).isoformat(timespec="milliseconds")
        return {"command_id": one.command_id, "device": one.device, "at": at, "ms": ms}

    def pushed(self, number: int, position: CommandPosition) -> None:
        """Push ``number`` is the command at ``position``."""
        if position in self._known:
            self._pushes[number] = position
            if len(self._pushes) > self._most:
                self._pushes.popitem(last=False)

    def position_of(self, number: int) -> CommandPosition | None:
        """Return which command a push was; it is asked once."""
        return self._pushes.pop(number, None)

    def settled(self, position: CommandPosition) -> None:
        """The command counts as delivered: the next cursor of its device covers it."""
        one = self._known.get(position)
        if one is not None:
            self._confirmed[one.device].append(position)

    def cursor_written(self, device: str) -> None:
        """A cursor of the device is on its way."""
        found = self._confirmed.pop(device, None)
        if found:
            self._covered[device] = found

    def cursor_stored(self, device: str) -> list[CommandPosition]:
        """The device's cursor is stored. Returns what it covers for the first time."""
        return self._covered.pop(device, [])

    def end(self, position: CommandPosition) -> None:
        """Nothing follows of it."""
        self._known.pop(position, None)


class Observer:
    """Sees the steps of commands; each method is called by ``Effects``, on the partition's thread. This one ignores them."""

    def received(self, message: StoredMessage) -> None:
        """A message of the commands partition came."""

    def routed(self, message: StoredMessage) -> None:
        """The core has it."""

    def pulled(self, event: Pulled) -> None:
        """A parked command was read."""

    def begun(self, action: Action) -> None:
        """An action was begun."""

    def confirmed(self, number: int, confirmation: Confirmation) -> None:
        """The broker answered push ``number``."""

    def answered(self, answer: DeviceAnswer, waited: bool) -> None:
        """A device answered; ``waited``: its command waited for that."""

    def stored(self, token: object) -> None:
        """Pulsar has stored what was written for ``token``."""


class Tracer(Observer):
    """Logs the steps of the commands that are traced."""

    def __init__(self, wanted: str, core: Partition, partition: int, confirm: str) -> None:
        """``wanted`` as for ``Traces``; ``confirm`` is ``push.confirm``."""
        self._traces = Traces(wanted)
        self._core = core
        self._partition = partition
        self._confirm = confirm
        self._parked: set[CommandPosition] = set()  # stored as parked: their acknowledgement does not end them

    def _log(self, step: str, position: CommandPosition, **more: object) -> None:
        fields = self._traces.step(position, time.time_ns() // 1000)
        if fields is not None:
            given = {key: value for key, value in more.items() if value is not None}
            log.info(step, **fields, position=position.encode(self._partition), **given)

    def _mode(self, device: str) -> Mode:
        return self._core.devices.mode_of(device)

    def received(self, message: StoredMessage) -> None:
        """Log an arrival."""
        properties, position = message.properties, message.position
        device = properties.get(C_DEVICE, message.key)
        self._traces.begin(position, properties.get(C_ID, ""), device, message.published_ms * 1000)
        self._log("notified", position)

    def routed(self, message: StoredMessage) -> None:
        """Log the device's mode, and that the message is here for a live one."""
        mode = self._mode(message.properties.get(C_DEVICE, message.key))
        self._log("matched", message.position, queue=mode.name.lower())
        if mode is Mode.LIVE:
            self._log("pulled", message.position, by="subscription", bytes=len(message.payload))

    def pulled(self, event: Pulled) -> None:
        """Log a read by position."""
        if event.message is not None:
            properties = event.message.properties
            self._traces.begin(event.position, properties.get(C_ID, ""), event.pull.device)
            self._log("pulled", event.position, by="position", bytes=len(event.message.payload))

    def answered(self, answer: DeviceAnswer, waited: bool) -> None:
        """Log the answer of a device."""
        self._log("answered", answer.position, failed=answer.failed, waited_for=waited)
        if waited and not answer.failed:
            self._traces.settled(answer.position)

    def confirmed(self, number: int, confirmation: Confirmation) -> None:
        """Log a PUBACK."""
        position = self._traces.position_of(number)
        if position is None:
            return
        self._log("puback", position, reason=f"0x{confirmation.reason:02X}")
        accepted = confirmation.reason < 0x80 and confirmation.reason != NO_SUBSCRIBERS
        if accepted and self._confirm == "broker":
            self._traces.settled(position)

    def begun(self, action: Action) -> None:
        """Log a push, a pull, a dead letter or an acknowledgement."""
        if isinstance(action, Push):
            self._traces.pushed(action.number, action.position)
            self._log("pushed", action.position, mqtt_topic=action.command.mqtt_topic, repeat=action.repeat or None)
        elif isinstance(action, StoreCursor):
            self._traces.cursor_written(action.device)
        elif isinstance(action, Pull):
            for position in action.positions:
                self._traces.begin(position, "", action.device)
                self._log("waking", position, queue=self._mode(action.device).name.lower())
        elif isinstance(action, DeadLetter):
            self._log("given up", action.position, why=action.reason)
        elif isinstance(action, Ack):
            self._log("acked", action.position)
            if action.position not in self._parked:
                self._traces.end(action.position)
            self._parked.discard(action.position)

    def stored(self, token: object) -> None:
        """Log what Pulsar has stored."""
        if isinstance(token, StoreCursor):
            for position in self._traces.cursor_stored(token.device):
                self._log("cursor", position)
        elif isinstance(token, StoreSegment):
            for position in token.parked:
                self._log("parked", position)
            self._parked.update(token.parked)
        elif isinstance(token, StoreReceipt):
            self._log("receipt", token.position, state=token.receipt.state)
        elif isinstance(token, DeadLetter):
            self._log("dead letter", token.position)
