"""Commands that the MQTT broker answers with the end of the connection or with silence, instead of a PUBACK.

Such a command would come first on each new connection, and no command behind it would reach its device. So a command that
was sent shortly before the broker closed the connection is suspect. Suspects go out one at a time, with nothing else sent
shortly before: the next end then shows which command was the cause. It waits for longer each time, and others go first.

Push must not give up a good command at a broker that restarts, or that another process took over. Giving up takes
``CLOSES`` ends in a row, each within ``SHORT_US`` of sending that command alone; no failed attempt to connect in between,
as at a broker that is down; and a PUBACK for another publish since the first of these ends. Without that PUBACK push
retries the command: a broker that closes at everything is at fault, and the commands wait until it is fixed.

A PUBACK that never comes on a live connection counts in the same way: ``CLOSES`` times, while the broker has confirmed
what was sent later.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from bridge.contract.commands import CommandPosition
from bridge.mqtt.refusals import AT_ONCE_S
from bridge.push.limits import Limits

if TYPE_CHECKING:
    from bridge.push.flights import Flight

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
        """Return whether a command that the broker did not answer before waits for others of this kind: they get half
        the window at most.
        """
        if not self._silent(position):
            return False
        silent = sum(1 for flight in flights.values() if self._silent(flight.tracked.position))
        return silent >= max(1, self._limits.window // 2)

    def _silent(self, position: CommandPosition) -> bool:
        fault = self._faults.get(position)
        return fault is not None and fault.silences > 0

    def answered(self, number: int, position: CommandPosition) -> None:
        """The broker answered a push, with any reason code."""
        self.broker_answered()
        self._newest = max(self._newest, number)
        if self._faults:
            self._faults.pop(position, None)

    def broker_answered(self) -> None:
        """The broker answered some publish."""
        self._answers += 1

    def broker_unreachable(self) -> None:
        """An attempt to connect failed: the broker itself was the cause, not a command."""
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
            if not flight.sent or not flight.wanted:
                continue
            position = flight.tracked.position
            if self.overdue(flight, now_us) and number < self._newest:
                verdicts[number] = self._kept_silent(self._fault(position))
            elif now_us - flight.at_us < SHORT_US:
                young.append(number)
            elif position in self._faults:
                self._faults[position].alone, self._faults[position].closes = False, 0
        if closed and len(young) == 1:
            verdicts[young[0]] = self._closed(self._fault(flights[young[0]].tracked.position))
        elif closed:
            for number in young:
                self._fault(flights[number].tracked.position).alone = True
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
