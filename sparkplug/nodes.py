"""The sessions of an edge node, as its messages in the order of the log show them. Events in, verdicts out.

A session begins with an NBIRTH and ends with the NDEATH of the same bdSeq, or with the next NBIRTH. Its messages count
from 0 to 255 in ``seq`` (specification, chapters 5.1 and 6.4). The same messages in the same order give
the same verdicts, however they are divided: the state is all that a later message depends on.
"""

from __future__ import annotations

import base64
import json
from array import array
from collections.abc import Iterable, MutableMapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

__all__ = ["ALIAS", "GAP", "REPEAT", "STALE", "UNBORN", "Arrival", "Births", "Event", "NodeState", "Verdict", "step"]

GAP: Final = "gap"
"""Messages of the session are missing before this one."""
UNBORN: Final = "unborn"
"""No birth of the node, or of the device, precedes this message in its session."""
REPEAT: Final = "repeat"
"""A second copy of a message: at least once is what MQTT and the log promise."""
STALE: Final = "stale"
"""The late death of an earlier session."""
ALIAS: Final = "alias"
"""The last birth does not define the metric's alias."""
_NUMBERS: Final = 256
_MAX_DEVICES: Final = 1024 * 1024
"""Bytes of the device ids that the state of a node may have. Devices choose them."""


class Arrival(NamedTuple):
    """What a node's session depends on in one message."""

    kind: str
    device: str | None
    seq: int | None
    bd_seq: int | None
    digest: int
    """A checksum of the payload, of 32 bits, not 0."""
    arrival_us: int


class Event(NamedTuple):
    """A change of a session. ``device`` is None for the node itself."""

    event: str
    """online, offline, stale, gap or rebirth (a request for births is due)."""
    device: str | None = None
    detail: str | None = None


class Verdict(NamedTuple):
    """``mark`` is None for a message in its order; ``events`` are in order."""

    mark: str | None
    events: tuple[Event, ...] = ()
    learns: bool = False
    """Whether the metrics define names and aliases from here on."""
    clears: bool = False
    """Whether the births of all devices end before that."""


@dataclass(slots=True)
class NodeState:
    """All that later messages of a node depend on, without the births' metrics."""

    online: bool | None = None
    """None before the first birth or death."""
    bd_seq: int | None = None
    expected: int | None = None
    """The ``seq`` of the next message; None before the first."""
    gap: bool = False
    """Whether messages are missing since the last NBIRTH."""
    devices: dict[str, bool] = field(default_factory=dict)
    """Whether each device is online."""
    digests: array[int] = field(default_factory=lambda: array("I", bytes(4 * _NUMBERS)))
    """Checksum of the last message of each ``seq``, 0 without one."""
    requested_us: int | None = None
    """Arrival of the message that last made a rebirth request due."""

    def to_json(self) -> str:
        """Return the state as JSON."""
        digests = base64.b64encode(self.digests).decode()
        return json.dumps([self.online, self.bd_seq, self.expected, self.gap, self.devices, digests, self.requested_us])

    @classmethod
    def of_json(cls, text: str) -> NodeState:
        """Read ``to_json``."""
        online, bd_seq, expected, gap, devices, digests, requested_us = json.loads(text)
        known = array("I", base64.b64decode(digests))
        return cls(online, bd_seq, expected, gap, devices, known, requested_us)


def step(state: NodeState, arrival: Arrival, rebirth_us: int) -> Verdict:
    """Apply one message to the state.

    A rebirth request is due at most once in ``rebirth_us`` µs of arrival, for as long as messages are missing or no
    birth precedes them.
    """
    if _repeats(state, arrival):
        return Verdict(REPEAT)
    if arrival.kind == "NDEATH":
        return _node_death(state, arrival)
    if arrival.kind == "NBIRTH":
        return _node_birth(state, arrival)
    events = []
    if state.online and arrival.seq != state.expected:
        state.gap = True
        events.append(Event(GAP, None, f"seq {arrival.seq}, expected {state.expected}"))
    _count(state, arrival)
    born, learns = bool(state.online), False
    if arrival.device is not None:
        was = state.devices.get(arrival.device, False)
        if arrival.kind == "DBIRTH":
            learns = _fits(state, arrival.device)
            if learns:
                state.devices[arrival.device] = born
            if born and not was:
                events.append(Event("online", arrival.device))
        else:
            born = born and was
            if arrival.kind == "DDEATH" and was:
                state.devices[arrival.device] = False
                events.append(Event("offline", arrival.device))
    mark = UNBORN if not born else GAP if state.gap else None
    if mark is not None and (state.requested_us is None or arrival.arrival_us - state.requested_us >= rebirth_us):
        state.requested_us = arrival.arrival_us
        events.append(Event("rebirth", None, mark))
    return Verdict(mark, tuple(events), learns)


def _repeats(state: NodeState, arrival: Arrival) -> bool:
    return (
        arrival.kind != "NDEATH"
        and arrival.seq is not None
        and arrival.seq != state.expected
        and 0 <= arrival.seq < _NUMBERS
        and state.digests[arrival.seq] == arrival.digest
    )


def _count(state: NodeState, arrival: Arrival) -> None:
    if arrival.seq is None or not 0 <= arrival.seq < _NUMBERS:
        state.gap = True  # nothing shows its order
        return
    state.expected = (arrival.seq + 1) % _NUMBERS
    state.digests[arrival.seq] = arrival.digest


def _node_birth(state: NodeState, arrival: Arrival) -> Verdict:
    rebirth = bool(state.online) and state.bd_seq == arrival.bd_seq
    gone = [] if rebirth else _gone(state)
    state.online, state.bd_seq, state.gap = True, arrival.bd_seq, False
    _count(state, arrival)
    events = (*gone, Event("online", None, "rebirth" if rebirth else None))
    return Verdict(GAP if state.gap else None, events, learns=True, clears=not rebirth)


def _node_death(state: NodeState, arrival: Arrival) -> Verdict:
    if None not in (state.bd_seq, arrival.bd_seq) and state.bd_seq != arrival.bd_seq:
        return Verdict(STALE, (Event(STALE, None, f"bdSeq {arrival.bd_seq}, current {state.bd_seq}"),))
    if state.online is False:
        return Verdict(REPEAT)
    state.online = False
    return Verdict(None, (Event("offline"), *_gone(state)))


def _gone(state: NodeState) -> list[Event]:
    """Return the end of all online devices, and forget the devices."""
    found = [Event("offline", name) for name, online in state.devices.items() if online]
    state.devices.clear()
    return found


def _fits(state: NodeState, device: str) -> bool:
    return device in state.devices or sum(map(len, state.devices)) + len(device) <= _MAX_DEVICES // 4


# --- births' metrics ---

Definition = tuple[str, int]
"""Name and data type of a metric."""


class Births:
    """Names and types of metrics by the last birth of the node and of each device.

    ``stored`` keeps them between batches: by device id, ``""`` for the node, as JSON. Aliases are looked up in the
    births of their own device first, because not every peer makes them unique in the node
    (tck-id-payloads-alias-uniqueness).
    """

    def __init__(self, stored: MutableMapping[str, str]) -> None:
        self._stored = stored
        self._read: dict[str, tuple[dict[int, Definition], dict[str, int]]] = {}

    def learn(self, device: str | None, metrics: Iterable[tuple[str, int | None, int]]) -> None:
        """Replace the definitions of a node or device by those of a birth: name, alias and data type of each."""
        metrics = list(metrics)
        self._read[device or ""] = _tables(metrics)
        self._stored[device or ""] = json.dumps(metrics, ensure_ascii=False, separators=(",", ":"))

    def clear(self) -> None:
        """Forget all births."""
        self._read.clear()
        self._stored.clear()

    def find(self, device: str | None, name: str | None, alias: int | None) -> tuple[str | None, int]:
        """Return name and data type of a metric. The name is None for an unknown alias, the type 0 if unknown."""
        aliases, names = self._of(device or "")
        if name is not None:
            return name, names.get(name, 0)
        if alias is None:
            return None, 0
        found = aliases.get(alias)
        if found is None and device is not None:
            found = self._of("")[0].get(alias)
        return found or (None, 0)

    def _of(self, device: str) -> tuple[dict[int, Definition], dict[str, int]]:
        if device not in self._read:
            self._read[device] = _tables(json.loads(self._stored.get(device) or "[]"))
        return self._read[device]


def _tables(metrics: Iterable[tuple[str, int | None, int]]) -> tuple[dict[int, Definition], dict[str, int]]:
    aliases: dict[int, Definition] = {}
    names: dict[str, int] = {}
    for name, alias, kind in metrics:
        names[name] = kind
        if alias is not None:
            aliases[alias] = name, kind
    return aliases, names
