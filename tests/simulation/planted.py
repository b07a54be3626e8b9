"""Planted bugs: each replaces one function of the product by a wrong one. The simulation must find them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final
from unittest.mock import patch

from bridge.contract.commands import Command
from bridge.ingest.session_filters import SessionFilters
from bridge.pulsar.acks import AckQueue, ProducerQueue, Verdict
from bridge.push.command import LateAnswers, TrackedCommand
from bridge.push.cursor import Cursor
from bridge.push.cursor_log import CursorRecords
from bridge.push.device import Device
from bridge.push.flights import Flights
from bridge.push.partition import Partition
from bridge.push.segments import Parked
from bridge.push.settlement import Settlement

__all__ = ["PLANTED", "Planted"]

Wrong = Callable[[Any], Any]
"""Makes the wrong function of the right one."""


@dataclass(frozen=True)
class Planted:
    """A bug in ``owner.name``, which worlds of the scenario ``scenario`` find."""

    what: str
    scenario: str
    owner: type
    name: str
    wrong: Wrong

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Replace the function."""
        with patch.object(self.owner, self.name, self.wrong(self.owner.__dict__[self.name])):
            yield


def _all_mids(_right: Any) -> Any:
    def take(self: Any) -> list[int]:
        mids = [one.mid for one in self._queue]
        self._queue.clear()
        return mids

    return take


def _stored_mids(_right: Any) -> Any:
    def take(self: Any) -> list[int]:
        mids = [one.mid for one in self._queue if one.stored]
        for one in [one for one in self._queue if one.stored]:
            self._queue.remove(one)
        return mids

    return take


def _any_generation(right: Any) -> Any:
    return lambda self, _generation, marked: right(self, self.generation, marked)


def _keeps_acks(_right: Any) -> Any:
    return lambda self, epoch: setattr(self, "_epoch", epoch)


def _changes_waiting(change: Callable[[list[Any], int], list[Any]]) -> Wrong:
    def wrong(right: Any) -> Any:
        def failed(self: Any, generation: int, **more: Any) -> Verdict:
            before = len(self.waiting)
            verdict: Verdict = right(self, generation, **more)
            if verdict is not Verdict.LATE:
                self.waiting = change(self.waiting, len(self.waiting) - before)
            return verdict

        return failed

    return wrong


def _acknowledges_at_once(right: Any) -> Any:
    def cursor_stored(self: Any, device: Device) -> Any:
        stored = right(self, device)
        for tracked in stored:
            if tracked.position in self._commands:
                self._commands.acknowledge(tracked.position)
        return stored

    return cursor_stored


def _without_horizon(right: Any) -> Any:
    return lambda self, partition, limits, cursors, _horizon, *more, **named: right(
        self, partition, limits, cursors, None, *more, **named
    )


def _drops_some(right: Any) -> Any:
    return lambda self, one, key, now_us: key if one.position.entry == 3 else right(self, one, key, now_us)


def _always_dated(right: Any) -> Any:
    return lambda self, name, at_us, link="", **_dated: right(self, name, at_us, link)


def _answers_any(_right: Any) -> Any:
    return lambda self, command: next(iter(self._broadcasts.get(command.device, {}).values()), None)


def _lower_position(right: Any) -> Any:
    def merge(self: Any, other: Any) -> None:
        lower = min(self.position, other.position)
        right(self, other)
        self.position = lower

    return merge


def _of_no_term(right: Any) -> Any:
    return lambda self, device, _term="", **more: right(self, device, "", **more)


def _counts_as_clean(right: Any) -> Any:
    def whole(self: Any) -> Any:
        cursors = right(self)
        self.clean = True
        return cursors

    return whole


PLANTED: Final = (
    Planted("acknowledges before the receipt", "ingest", AckQueue, "take", _all_mids),
    Planted("acknowledges out of order", "ingest", AckQueue, "take", _stored_mids),
    Planted("acknowledges on a later connection", "ingest", AckQueue, "connected", _keeps_acks),
    Planted("a receipt of a retired producer counts", "ingest", ProducerQueue, "receipt", _any_generation),
    Planted("a failed producer's messages are forgotten", "ingest", ProducerQueue, "failed",
            _changes_waiting(lambda waiting, given: waiting[given:])),
    Planted("a failed producer's messages are sent last", "ingest", ProducerQueue, "failed",
            _changes_waiting(lambda waiting, given: waiting[given:] + waiting[:given])),
    Planted("a session without SUBACK is believed", "ingest", SessionFilters, "doubt", lambda _right: lambda _self: None),
    Planted("session present is not looked at", "ingest", SessionFilters, "connected",
            lambda right: lambda self, **_present: right(self, session_present=True)),
    Planted("acknowledges before the receipt", "push", Settlement, "cursor_stored", _acknowledges_at_once),
    Planted("what a former owner may have sent is not marked", "push", Partition, "__init__", _without_horizon),
    Planted("what was sent before is not marked", "push", TrackedCommand, "maybe_had",
            lambda _right: property(lambda _self: False)),
    Planted("a takeover forgets what is parked", "push", Parked, "loaded",
            lambda _right: classmethod(lambda cls, *_stored: cls())),
    Planted("a parked id is dropped", "push", Parked, "append", _drops_some),
    Planted("an undated birth message is a sign of life", "push", Partition, "alive", _always_dated),
    Planted("settled ids are forgotten", "push", Cursor, "knows", lambda _right: lambda _self, _id: False),
    Planted("any sign of life proves everything", "push", Cursor, "device_seen",
            lambda _right: lambda self, _at: self.unproven.clear()),
    Planted("a cursor passes a command that is being given up", "push", Device, "gives_up_before",
            lambda _right: lambda _self, _position: False),
    Planted("the entry of a broadcast is not marked", "broadcast", Command, "was_broadcast",
            lambda _right: property(lambda _self: False)),
    Planted("an answer to one broadcast settles the next", "broadcast", LateAnswers, "_take_broadcast", _answers_any),
    Planted("cursors are merged at the lower position", "contested", Cursor, "merge", _lower_position),
    Planted("cursors of all owners have the same key", "contested", Cursor, "records", _of_no_term),
    Planted("a dead owner counts as one that left in order", "contested", CursorRecords, "whole", _counts_as_clean),
    Planted("the window is not kept", "push", Flights, "has_room", lambda _right: property(lambda _self: True)),
)  # fmt: skip
