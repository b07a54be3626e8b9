"""Drives the present core of a partition and the former one with the same events, and compares all that they return."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from types import GeneratorType
from typing import Any, Final

from bridge.contract import Receipt
from bridge.contract.commands import Command, CommandPosition
from bridge.push.partition import Partition
from tests.support.push_oracle.parked import segment_device
from tests.support.push_oracle.records import CursorRecords as FormerRecords
from tests.support.push_oracle.resume import ResumingCore
from tests.support.push_world import PushWorld, cursors_of

COMPONENTS: Final = frozenset(
    [
        "outbox",
        "commands",
        "devices",
        "flights",
        "presence",
        "settlement",
        "delivery",
        "segments",
        "replay",
        "probes",
        "parking",
        "relocation",
        "retention",
        "resume",
    ]
)
FORMER: Final = {
    "commands.awaited": "awaited",
    "commands.oldest_emitted_us": "oldest_emitted_us",
    "commands.pending": "pending",
    "commands.pending_bytes": "pending_bytes",
    "delivery.device_of": "device_of",
    "delivery.lose_payload": "lost",
    "delivery.may_go": "goes",
    "delivery.reject": "unfit",
    "devices.cursor_of": "cursor_of",
    "devices.knows": "knows",
    "devices.mode_of": "mode_of",
    "devices.parked": "parked_devices",
    "devices.retrying": "held_back",
    "devices.stored": "stored_devices",
    "devices.with_cursors": "with_cursors",
    "flights.broker_answered": "broker_answered",
    "flights.broker_unreachable": "broker_away",
    "flights.has_room": "has_room",
    "flights.in_flight": "in_flight",
    "flights.overdue": "overdue",
    "flights.pushes": "pushes",
    "flights.sent": "sent",
    "flights.stall": "stalls",
    "outbox.writes": "_busy",
    "probes.absence_proven": "told_absence",
    "relocation.copied": "copied",
    "relocation.copy_failed": "copy_failed",
    "relocation.stored": "move_stored",
    "replay.wants": "wants",
    "request_answered": "told",
    "resume.asked": "asked",
    "resume.found": "found",
    "resume.pending": "resuming",
    "resume.resends_from": "holds_from_now",
    "retention.begin_scan": "begin_look",
    "retention.keeps_copies_from": "keeps_copies_from",
    "retention.keeps_from": "keeps_from",
    "retention.scan": "look_on",
    "retention.scanning": "looking",
    "retention.trims_to": "hold_from",
    "segments.parked": "parked",
    "settlement.dead_letter_stored": "dead_letter_stored",
    "settlement.receipt_stored": "receipt_stored",
    "segments.pending": "_writes_ids",
    "segments.rewrite": "store_once_more",
    "segments.rewrite_all": "store_again",
    "parking.unread": "unread",
}
"""What each public name of the present core was called in the former one; others kept their name."""
PRESENT_ONLY: Final = frozenset(("devices.dirty", "devices.all_parked", "segments.unwritten"))
REASONS: Final = {
    "recovered: given up before the push worker was replaced; its first receipt has the reason": (
        "recovered: given up before the push worker was replaced; its first receipt tells why"
    ),
}
"""What reasons of receipts were in the former core."""
READ_OUTS: Final = (
    "settled", "clean", "flights.in_flight", "flights.pushes", "flights.has_room", "commands.awaited", "commands.pending",
    "commands.pending_bytes", "commands.oldest_emitted_us", "devices.parked", "devices.retrying", "devices.stored",
    "devices.with_cursors", "segments.parked", "outbox.writes", "resume.pending", "resume.resends_from",
    "retention.scanning", "parking.unread",
)  # fmt: skip
DEVICES: Final = ("d0", "d1", "d2")


class DifferenceError(Exception):
    """Raised when the cores do not decide alike."""


def check(alike: bool, *what: object) -> None:
    if not alike:
        raise DifferenceError("\n".join(map(str, what)))


def same(one: Any, other: Any) -> bool:
    """Whether two results mean the same: their classes may differ, their values may not."""
    if isinstance(one, Receipt) and one.reason in REASONS:
        one = replace(one, reason=REASONS[one.reason])
    if type(one) is type(other) and not isinstance(one, (list, tuple)):
        return bool(one == other)
    if isinstance(one, Enum) and isinstance(other, Enum):
        return one.name == other.name
    if is_dataclass(one) and is_dataclass(other):
        if type(one).__name__ != type(other).__name__:
            return False
        return all(
            same(getattr(one, a.name), getattr(other, b.name)) for a, b in zip(fields(one), fields(other), strict=True)
        )
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


class Pair:
    """An object of the present core and the one of the former core that corresponds to it."""

    def __init__(self, present: Any, former: Any, path: str = "") -> None:
        self._present, self._former, self._path = present, former, path

    def __getattr__(self, name: str) -> Any:
        path = f"{self._path}.{name}" if self._path else name
        value = getattr(self._present, name)
        if path in COMPONENTS:
            return Pair(value, self._former, path)
        if path in PRESENT_ONLY:
            return value
        former = getattr(self._former, FORMER.get(path, name))
        if callable(value):
            return lambda *args, **named: self._call(path, value, former, args, named)
        former = former() if callable(former) else former
        check(same(value, former), path, value, former)
        return value

    def _call(self, path: str, present: Any, former: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        result = present(*args, **named)
        if path == "link_up":
            named = {"tells_absence": named.get("reports_absence", False)}
        before = former(*args, **named)
        if path == "devices.cursor_of" and result is not None:
            return Pair(result, before, "cursor")
        if isinstance(result, GeneratorType):
            result, before = list(result), list(before)
        check(same(result, before), path, args, result, before)
        return result


class PairedPartition(Pair):
    """Both cores of one owner."""

    def arrived_invalid(self, position: CommandPosition, reason: str, command: Command, size: int) -> None:
        self._present.arrived_invalid(position, reason, command, size)
        self._former.arrived_bad(
            position,
            reason,
            command_id=command.command_id,
            device=command.device,
            mqtt_topic=command.mqtt_topic,
            size=size,
        )

    def take(self, now_us: int) -> Any:
        """Compare the actions, and then all that both show of their state."""
        actions = self._call("take", self._present.take, self._former.take, (now_us,), {})
        for path in READ_OUTS:
            component, _, name = path.rpartition(".")
            getattr(getattr(self, component) if component else self, name)
        self._call("next_time_us", self._present.next_time_us, self._former.next_time_us, (), {})
        check(len(self._present.devices.awake) == self._former.devices, "devices")
        for device in DEVICES:
            self.devices.mode_of(device)
            self.devices.knows(device)
        return actions


class PairedWorld(PushWorld):
    """A world whose core is a pair."""

    def make_core(self, horizon: CommandPosition | None) -> Any:
        found = FormerRecords(self.limits.remembered_ids)
        for key, payload in self.cursors.items():
            if segment_device(key) is None:
                found.take(key, payload)
        owner, now_us = str(self.owners), self.now
        present = Partition(
            0,
            self.limits.nested(),
            cursors_of(self.cursors, self.limits.remembered_ids),
            horizon,
            self.stored_segments(),
            owner=owner,
            now_us=now_us,
        )
        segments: dict[str, dict[str, bytes]] = defaultdict(dict, self.stored_segments())
        limits: Any = self.limits
        former = ResumingCore(0, limits, found.whole(), horizon, segments, owner=owner, now_us=now_us)
        return PairedPartition(present, former)
