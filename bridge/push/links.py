"""Links: the MQTT brokers of a partition, with the flights at each.

A device gets its commands at the broker where it was last seen, else at that which its command names, else at the first. Each
broker has a window and a queue of ready devices of its own, so that devices of one that is slow or dead delay no others. A
partition with one broker calls it "".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count

from bridge.push.flights import Flights
from bridge.push.limits import Limits

__all__ = ["Links"]


class Links:
    """The links of one partition, by name."""

    def __init__(self, names: Sequence[str], limits: Limits) -> None:
        # From the number of a push follows its broker.
        self._flights = {name: Flights(limits, count(1 + at, len(names))) for at, name in enumerate(names)}
        self.names = tuple(self._flights)
        self.pairs = tuple(self._flights.items())
        """Names and flights."""
        self.several = len(self.names) > 1
        self.draining = False
        """Nothing new is sent."""

    def __getitem__(self, name: str) -> Flights:
        return self._flights[name]

    def __contains__(self, name: str) -> bool:
        return name in self._flights

    def __len__(self) -> int:
        return sum(map(len, self._flights.values()))

    def __iter__(self) -> Iterator[Flights]:
        return iter(self._flights.values())

    @property
    def in_flight(self) -> int:
        """Commands that some connection has and its broker has not confirmed."""
        return sum(flights.in_flight for flights in self)

    @property
    def sends(self) -> bool:
        """Whether new commands may be sent to any broker now."""
        return any(flights.sends for flights in self)

    def drain(self) -> None:
        """Send nothing new."""
        self.draining = True
        for flights in self:
            flights.draining = True

    def of(self, number: int) -> str:
        """Return at which broker push ``number`` was made."""
        return self.names[(number - 1) % len(self.names)]

    def at(self, number: int) -> Flights:
        """Return the flights to which push ``number`` belongs."""
        return self.pairs[(number - 1) % len(self.pairs)][1]
