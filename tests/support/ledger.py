"""What of a fleet's messages is in Pulsar: what is missing, out of order or repeated, and where repeats come from."""

from __future__ import annotations

from bisect import bisect
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from bridge.settings.pulsar import PulsarSettings
from tests.support.reading_back import read_back

__all__ = ["Ledger", "read_ledger"]

_REMEMBERED = 5000  # arrivals kept of each device to tell where a repeat comes from


@dataclass
class Ledger:
    """What was found. ``repeats`` counts by cause; ``unexplained`` names the repeats without one."""

    stored: int = 0
    missing: list[str] = field(default_factory=list)
    disordered: list[str] = field(default_factory=list)
    repeats: Counter[str] = field(default_factory=Counter)
    unexplained: list[str] = field(default_factory=list)

    def text(self) -> str:
        return (
            f"{self.stored} stored, {len(self.missing)} missing, {len(self.disordered)} out of order, "
            f"repeats {dict(self.repeats)}, {len(self.unexplained)} of them unexplained {self.unexplained[:5]}"
        )


class _Seen:
    def __init__(self) -> None:
        self.numbers: set[int] = set()
        self.last = -1
        self.arrivals: OrderedDict[int, set[int]] = OrderedDict()


def read_ledger(
    settings: PulsarSettings,
    topic: str,
    confirmed: list[int],
    *,
    repeated: Iterable[tuple[int, int]] = (),
    connections: Callable[[], Sequence[float]] = tuple,
) -> Ledger:
    """Read the topic and compare it with what the fleet's broker has acknowledged.

    ``repeated`` is what devices published twice, ``connections`` has the sorted times of ingest's connections to the MQTT
    broker, in ms since the epoch: what was not acknowledged before comes again then (Artemis does not set DUP on it). It is
    asked once all is read, for ingest may connect while that lasts, and what it brings then is read too.
    """
    ledger = Ledger()
    seen = [_Seen() for _ in confirmed]
    again = set(repeated)
    stored = [
        (_name(message.data()), message.event_timestamp())
        for _, message in read_back(settings, settings.readings_topic(topic))
    ]
    connected_ms = connections()
    for name, arrived_ms in stored:
        _count(ledger, seen[name[0]], name, arrived_ms, again=again, connected_ms=connected_ms)
    for device, count in enumerate(confirmed):
        ledger.missing += [f"d{device:03d}#{n}" for n in range(count) if n not in seen[device].numbers]
    return ledger


def _name(payload: bytes) -> tuple[int, int]:
    device, _, number = payload.decode().strip().partition("#")
    return int(device[1:]), int(number)


def _count(
    ledger: Ledger,
    seen: _Seen,
    name: tuple[int, int],
    arrived_ms: int,
    *,
    again: set[tuple[int, int]],
    connected_ms: Sequence[float],
) -> None:
    number = name[1]
    ledger.stored += 1
    arrivals = seen.arrivals.setdefault(number, set())
    if number not in seen.numbers:
        seen.numbers.add(number)
        if number < seen.last:
            ledger.disordered.append(f"d{name[0]:03d}#{number} after {seen.last}")
        seen.last = max(seen.last, number)
    elif arrived_ms in arrivals:
        ledger.repeats["written again by ingest, Pulsar had not confirmed"] += 1
    elif bisect(connected_ms, max(arrivals | {arrived_ms}) + 1) > bisect(connected_ms, min(arrivals)):
        ledger.repeats["sent again by the MQTT broker on a new connection"] += 1
    elif name in again:
        ledger.repeats["published again by the device"] += 1
    else:
        ledger.repeats["unexplained"] += 1
        ledger.unexplained.append(f"d{name[0]:03d}#{number}")
    arrivals.add(arrived_ms)
    if len(seen.arrivals) > _REMEMBERED:
        seen.arrivals.popitem(last=False)
