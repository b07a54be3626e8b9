"""Which commands the MQTT broker does not answer, but with the end of the connection or with silence. Pure.

Such a command would come first on each new connection, and nothing behind it would reach a device any more. So what was
sent shortly before the broker closed the connection is suspect, and suspects go out one at a time, with nothing else
sent shortly before: at the next end it is known which one it was. It waits for longer each time, and the others go.

What is given up for it must not be a good command at a broker that is being restarted or that another took from us. It
takes ``CLOSES`` ends in a row, each within ``SHORT_US`` of sending that one alone; not one attempt to connect that failed
in between, as at a broker that is down; and a PUBACK for another publish since the first of them. Without that PUBACK it
is tried on: a broker that closes at everything is to be mended, and what waits for it is kept.

A PUBACK that never comes on a connection that lives counts in the same way: ``CLOSES`` times, while the broker has
confirmed what was sent later.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from bridge.contract.commands import CommandPosition
from bridge.mqtt.refusals import AT_ONCE_S
from tests.support.push_oracle.queues import Flight, Limits, State

__all__ = ["CLOSES", "SHORT_US", "Suspects", "Verdict"]

CLOSES: Final = 3
SHORT_US: Final = int(AT_ONCE_S * 1_000_000)
_SECOND: Final = 1_000_000
_REMEMBERED: Final = 10_000


@dataclass(slots=True)
class _Fault:
    alone: bool = False
    """Whether it goes out alone."""
    closes: int = 0
    """Ends of the connection in a row at which it was the only one that was sent shortly before."""
    answers: int = 0
    """How many answers of the broker were counted at the first of those."""
    blames: int = 0
    """All such ends, in a row or not."""
    silences: int = 0


class Verdict(NamedTuple):
    """What follows for a command that was in flight: it waits, or, with a reason, it is given up."""

    wait_us: int = 0
    reason: str = ""


class Suspects:
    """Counts against commands, by position."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._faults: OrderedDict[CommandPosition, _Fault] = OrderedDict()
        self._answers = 0
        self._newest = 0  # the last push that was answered: they are numbered in the order of sending

    def alone(self, position: CommandPosition) -> bool:
        """Return whether a command may only be pushed while no other was sent shortly before."""
        fault = self._faults.get(position)
        return fault is not None and fault.alone

    def too_many_silent(self, position: CommandPosition, flights: Mapping[int, Flight]) -> bool:
        """Return whether a command that was not answered before waits for others of its kind: half the window is for
        those that are.
        """
        if not self._silent(position):
            return False
        silent = sum(1 for flight in flights.values() if self._silent(flight.item.position))
        return silent >= max(1, self._limits.window // 2)

    def _silent(self, position: CommandPosition) -> bool:
        fault = self._faults.get(position)
        return fault is not None and fault.silences > 0

    def answered(self, number: int, position: CommandPosition) -> None:
        """The broker answered a push, whatever it said."""
        self.broker_answered()
        self._newest = max(self._newest, number)
        if self._faults:
            self._faults.pop(position, None)

    def broker_answered(self) -> None:
        """The broker answered some publish."""
        self._answers += 1

    def broker_away(self) -> None:
        """An attempt to connect failed: it is the broker that was in trouble, whatever was sent to it."""
        for position, fault in list(self._faults.items()):
            fault.closes = 0
            if not fault.blames and not fault.silences:
                del self._faults[position]

    def ended(self, flights: Mapping[int, Flight], now_us: int, *, closed: bool) -> dict[int, Verdict]:
        """The connection ended with these in flight; ``closed``: the broker ended it, perhaps for what was sent.

        Returns what follows for some of them; the others are pushed again as they were.
        """
        verdicts: dict[int, Verdict] = {}
        young: list[int] = []
        for number, flight in flights.items():
            if not flight.sent or flight.item.state is not State.IN_FLIGHT:
                continue
            position = flight.item.position
            if self.overdue(flight, now_us) and number < self._newest:
                verdicts[number] = self._kept_silent(self._fault(position))
            elif now_us - flight.at_us < SHORT_US:
                young.append(number)
            elif position in self._faults:
                self._faults[position].alone, self._faults[position].closes = False, 0
        if closed and len(young) == 1:
            verdicts[young[0]] = self._closed(self._fault(flights[young[0]].item.position))
        elif closed:
            for number in young:
                self._fault(flights[number].item.position).alone = True
        return verdicts

    def overdue(self, flight: Flight, now_us: int) -> bool:
        """Return whether a push waits for its PUBACK for too long."""
        return flight.sent and now_us - flight.at_us >= self._limits.puback_timeout_us

    def _fault(self, position: CommandPosition) -> _Fault:
        fault = self._faults.setdefault(position, _Fault())
        if len(self._faults) > _REMEMBERED:
            self._faults.popitem(last=False)
        return fault

    def _closed(self, fault: _Fault) -> Verdict:
        fault.alone = True
        if not fault.closes:
            fault.answers = self._answers
        fault.closes += 1
        fault.blames += 1
        if fault.closes >= CLOSES and self._answers > fault.answers:
            return Verdict(
                reason=f"the MQTT broker closed the connection {fault.closes} times when it was sent, and took others"
            )
        return Verdict(min(self._limits.retry_max_us, _SECOND << min(fault.blames - 1, 20)))

    def _kept_silent(self, fault: _Fault) -> Verdict:
        fault.silences += 1
        if fault.silences >= CLOSES:
            seconds = self._limits.puback_timeout_us / 1e6
            return Verdict(
                reason=f"the MQTT broker did not confirm it within {seconds:g} s, {fault.silences} times, and "
                "confirmed what was sent later"
            )
        return Verdict()
