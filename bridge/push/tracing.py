"""Shows the way of commands through push, a line for each step: ``pulsebridge push --trace ID|DEVICE|all``.

notified
    An arrival: Pulsar tells of a message at a position; ms since it was published.
matched
    Which device it is for, and how that device's queue stands: live, parked or replaying.
pulled
    Its message is here, by ``subscription`` for a live device, by ``position`` for one that is back.
pushed
    Handed to the MQTT link.

Then puback and answered, cursor (stored), receipt (stored), acked; parked (its id is stored) where the device is away;
dead letter where it is given up. ``TracedDoing`` takes the place of ``Doing``, so that nothing is asked where nothing is
traced.
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
from bridge.push.answers import Answer
from bridge.push.delivery import NO_SUBSCRIBERS
from bridge.push.doing import Doing
from bridge.push.pulling import Pulled
from bridge.push.states import Mode
from bridge.push.taken import Taken

__all__ = ["EVERYTHING", "TracedDoing", "Traces"]

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
    """Which commands are traced, and when each made its last step. Pure; times are µs since the epoch."""

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
        """Return what each line of a command tells, and note the step; None for one that is not traced.

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


class TracedDoing(Doing):
    """The hands of one core, telling what they do. All of it runs on the session's thread."""

    def __init__(self, *made: Any, wanted: str) -> None:
        """``made`` is what ``Doing`` takes; ``wanted`` as ``Traces`` takes it."""
        super().__init__(*made)
        self._traces = Traces(wanted)
        self._parked: set[CommandPosition] = set()  # stored as parked: their ack does not end them

    def _say(self, step: str, position: CommandPosition, **more: object) -> None:
        told = self._traces.step(position, time.time_ns() // 1000)
        if told is not None:
            where = position.encode(self._log.partition)
            log.info(step, **told, position=where, **{k: v for k, v in more.items() if v is not None})

    def arrived(self, message: Taken) -> None:
        """Trace an arrival: notified, matched, and pulled where the device is live."""
        properties, position = message.properties, message.position
        device = properties.get(C_DEVICE, message.key)
        self._traces.begin(position, properties.get(C_ID, ""), device, message.published_ms * 1000)
        self._say("notified", position)
        super().arrived(message)
        mode = self._core.devices.mode_of(device)
        self._say("matched", position, queue=mode.name.lower())
        if mode is Mode.LIVE:
            self._say("pulled", position, by="subscription", bytes=len(message.payload))

    def pulled(self, event: Pulled) -> None:
        """Trace a pull by position."""
        if event.message is not None:
            properties = event.message.properties
            self._traces.begin(event.position, properties.get(C_ID, ""), event.pull.device)
            self._say("pulled", event.position, by="position", bytes=len(event.message.payload))
        super().pulled(event)

    def answered(self, answer: Answer) -> bool:
        """Trace the answer of a device."""
        known = super().answered(answer)
        self._say("answered", answer.position, failed=answer.failed, waited_for=known)
        if known and not answer.failed:
            self._traces.settled(answer.position)
        return known

    def _confirmed(self, number: int, topic: str, confirmation: Confirmation) -> None:
        position = self._traces.position_of(number)
        if position is not None:
            self._say("puback", position, reason=f"0x{confirmation.reason:02X}")
            taken = confirmation.reason < 0x80 and confirmation.reason != NO_SUBSCRIBERS
            if taken and self._settings.push.confirm == "broker":
                self._traces.settled(position)
        super()._confirmed(number, topic, confirmation)

    def do(self, action: Action) -> None:
        """Trace what is begun."""
        super().do(action)
        if isinstance(action, Push):
            self._traces.pushed(action.number, action.position)
            self._say("pushed", action.position, mqtt_topic=action.command.mqtt_topic, repeat=action.repeat or None)
        elif isinstance(action, StoreCursor):
            self._traces.cursor_written(action.device)
        elif isinstance(action, Pull):
            for position in action.positions:
                self._traces.begin(position, "", action.device)
                self._say("waking", position, queue=self._core.devices.mode_of(action.device).name.lower())
        elif isinstance(action, DeadLetter):
            self._say("given up", action.position, why=action.reason)
        elif isinstance(action, Ack):
            self._say("acked", action.position)
            if action.position not in self._parked:
                self._traces.end(action.position)
            self._parked.discard(action.position)

    def stored(self, token: object) -> None:
        """Trace what Pulsar has stored."""
        if isinstance(token, StoreCursor):
            for position in self._traces.cursor_stored(token.device):
                self._say("cursor", position)
        elif isinstance(token, StoreSegment):
            for position in token.parked:
                self._say("parked", position)
            self._parked.update(token.parked)
        elif isinstance(token, StoreReceipt):
            self._say("receipt", token.position, state=token.receipt.state)
        elif isinstance(token, DeadLetter):
            self._say("dead letter", token.position)
        super().stored(token)
