"""Whether each command reached its device, in order, with one receipt: by the records of devices, Pulsar and push.

Three records are compared, none of which is push's own memory: the commands that Pulsar acknowledged to their writer,
the logs of the devices, and the receipts. What may be repeated, and by what:

- The bridge repeats what may not have arrived, marked: after a kill, after a device left in mid-command, or when its
  answer did not come in time. Of these only the first two are explained here.
- The broker keeps for a persistent session what was sent while it was away, with its marked repetitions.
- The MQTT broker repeats, unmarked, what a device with a persistent session had not acknowledged when its connection
  ended (MQTT-4.4.0-1; Artemis does not set DUP).
  A command that it had sent to a connection without a reader may come after a marked copy: it returns to its queue
  when the connection is taken over, and meanwhile the new connection gets new commands.
- A receipt is written again after a kill (``bridge.push.states``, commit order), and the copy of a command that Pulsar's
  client wrote twice has the receipt ``duplicate``.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tests.chaos.evidence import Kill
from tests.support.device_fleet import DeviceEvent

__all__ = ["TimedReceipt", "Verdict", "verdict_of"]

_BEFORE_S: Final = 1.0
AFTER_S: Final = 20.0
"""How long after its victim is up again a kill explains: devices and push reconnect, and answers are awaited."""
_KEPT_S: Final = 5.0
"""How long after a device has come what the broker kept for it arrives."""
_KINDS: Final = (
    "is missing",
    "unmarked",
    "no kill, no absence",
    "final receipt",
    "an answer",
    "a receipt written",
)
_SHOWN: Final = 12
"""Lines of evidence for each kind of violation."""


class TimedReceipt(NamedTuple):
    """A receipt: its state, the answer in it, and when Pulsar stored it, in seconds since the epoch."""

    state: str
    answer: bytes
    at: float


@dataclass
class Verdict:
    """What was found; every list but ``repeats`` and ``explained`` should be empty."""

    commands: int = 0
    received: int = 0
    missing: list[tuple[int, int]] = field(default_factory=list)
    disordered: list[str] = field(default_factory=list)
    unmarked: list[str] = field(default_factory=list)
    unexplained: list[str] = field(default_factory=list)
    unsettled: list[str] = field(default_factory=list)
    """Commands without exactly one kind of final receipt, or with one that is not what the device did."""
    repeats: Counter[str] = field(default_factory=Counter)
    evidence: list[str] = field(default_factory=list)

    @property
    def broken(self) -> bool:
        """Whether anything was found that must not be."""
        return bool(self.missing or self.disordered or self.unmarked or self.unexplained or self.unsettled)

    @property
    def lacking(self) -> int:
        """How many commands or receipts have not come so far."""
        return len(self.missing) + len(self.unsettled)

    def text(self) -> str:
        """Return sums, and the first of each kind of violation with its evidence."""
        counts = (
            f"{self.commands} commands, {self.received} arrivals, {len(self.missing)} missing, {len(self.disordered)} out of "
            f"order, repeats {dict(sorted(self.repeats.items()))}, {len(self.unmarked)} unmarked, {len(self.unexplained)} "
            f"unexplained, {len(self.unsettled)} without one final receipt"
        )
        shown: Counter[str] = Counter()
        lines = [counts]
        for line in self.evidence:
            kind = next((kind for kind in _KINDS if kind in line), "")
            shown[kind] += 1
            if shown[kind] <= _SHOWN:
                lines.append(line)
        return "\n".join(lines)


class _Life:
    """What one device logged, in order of time."""

    def __init__(self, events: Sequence[DeviceEvent]) -> None:
        self.received = [event for event in events if event.kind == "R"]
        self.moves = [event for event in events if event.kind in "CL"]
        self.answers = [event for event in events if event.kind == "A"]
        self._times = [event.at for event in self.moves]

    def comes_with_its_session(self, event: DeviceEvent) -> bool:
        """Whether the broker had kept what came for a persistent session, and gives it as the device comes."""
        found = bisect_right(self._times, event.at)
        last = self.moves[found - 1] if found else None
        kept = event.persistent and last is not None and last.kind == "C"
        return kept and last is not None and event.at - last.at < _KEPT_S * 1e6

    def moved_between(self, first: int, last: int) -> bool:
        return bisect_left(self._times, first) < bisect_right(self._times, last)

    def near(self, at: int) -> str:
        found = bisect_right(self._times, at)
        found_receipts = [
            f"{'connected' if move.kind == 'C' else f'left ({move.number})'} {(move.at - at) / 1e6:+.3f} s, connection "
            f"{move.connection}{', persistent' if move.persistent else ''}"
            for move in self.moves[max(0, found - 2) : found + 2]
        ]
        return "; ".join(found_receipts) or "never connected"


def verdict_of(
    written: Mapping[int, Sequence[float]],
    events: Iterable[DeviceEvent],
    receipts: Mapping[str, Sequence[TimedReceipt]],
    kills: Sequence[Kill],
    *,
    name: str = "d%06d",
) -> Verdict:
    """Compare the records.

    ``written``: for each device when Pulsar acknowledged its commands ``0, 1, …``; ``receipts`` by command id, which is
    ``<device>-<number>``; a device's answer is ``<device> did <number>``.
    """
    by_device: dict[int, list[DeviceEvent]] = defaultdict(list)
    for event in events:
        by_device[event.device].append(event)
    verdict = Verdict()
    for device, times in written.items():
        life = _Life(sorted(by_device[device], key=lambda event: event.at))
        verdict.commands += len(times)
        verdict.received += len(life.received)
        _DeviceCheck(verdict, name % device, device, life, kills).all_of(times, receipts)
    return verdict


class _DeviceCheck:
    """Judges one device."""

    def __init__(self, verdict: Verdict, name: str, device: int, life: _Life, kills: Sequence[Kill]) -> None:
        self._verdict = verdict
        self._name = name
        self._device = device
        self._life = life
        self._kills = kills

    def all_of(self, times: Sequence[float], receipts: Mapping[str, Sequence[TimedReceipt]]) -> None:
        had = self._arrivals(receipts)
        for number, at in enumerate(times):
            found_receipts = receipts.get(f"{self._name}-{number}", ())
            if number not in had:
                self._verdict.missing.append((self._device, number))
                self._report(f"{self._name}-{number} is missing; receipts {_states(found_receipts)}", int(at * 1e6))
            self._receipts(number, at, found_receipts)

    def _arrivals(self, receipts: Mapping[str, Sequence[TimedReceipt]]) -> Mapping[int, Sequence[DeviceEvent]]:
        last = -1
        had: dict[int, list[DeviceEvent]] = defaultdict(list)
        for event in self._life.received:
            number = int(event.number)
            if had[number]:
                self._repeat(number, had[number], event, receipts.get(f"{self._name}-{number}", ()))
            elif number < last:
                line = f"{self._name}-{number} after {last}"
                self._verdict.disordered.append(line)
                self._report(line, event.at)
            last = max(last, number)
            had[number].append(event)
        return had

    def _repeat(
        self, number: int, copies: Sequence[DeviceEvent], event: DeviceEvent, receipts: Sequence[TimedReceipt]
    ) -> None:
        count, before = self._verdict.repeats, copies[-1]
        same = any(
            (one.repeat, one.position) == (event.repeat, event.position) and one.connection != event.connection
            for one in copies
        )
        if event.dup or (same and event.persistent):
            count["sent again by the MQTT broker to a persistent session"] += 1
            return
        first_of_all = not event.repeat and all(one.repeat for one in copies)
        if first_of_all and self._life.comes_with_its_session(event):
            count["sent first, and given by the MQTT broker behind a marked copy"] += 1
            return
        line = f"{self._name}-{number} came again {(event.at - before.at) / 1e6:.3f} s later"
        if not event.repeat:
            self._verdict.unmarked.append(line)
            places = f"at {before.position}, then at {event.position}"
            self._report(f"{line}, unmarked, first marked: {before.repeat}; {places}", event.at)
        if self._crash(before.at / 1e6, event.at / 1e6):
            count["marked, after a kill"] += 1
        elif self._life.comes_with_its_session(event):
            count["marked, kept by the MQTT broker for a persistent session"] += 1
        elif event.connection != before.connection or self._life.moved_between(before.at, event.at):
            count["marked, the device had left"] += 1
        else:
            self._verdict.unexplained.append(line)
            taken = [one.at - before.at for one in self._life.answers if int(one.number) == number]
            after = ", ".join(f"{us / 1e6:+.3f} s" for us in taken) or "never"
            self._report(
                f"{line}, no kill, no absence; receipts {_states(receipts)}; the broker took its answers {after}",
                event.at,
            )

    def _receipts(self, number: int, at: float, found_receipts: Sequence[TimedReceipt]) -> None:
        final = [one for one in found_receipts if one.state != "duplicate"]
        why = ""
        if {one.state for one in final} != {"answered"}:
            why = "no final receipt" if not final else "not one kind of final receipt"
        elif any(one.answer and one.answer != f"{self._name} did {number}".encode() for one in final):
            why = "an answer that its device did not give"
        elif len(final) > 1:
            self._verdict.repeats["receipts written again"] += len(final) - 1
            if not self._crash(final[0].at, final[-1].at):
                why = "a receipt written again without a kill"
        if why:
            line = f"{self._name}-{number}: {why}: {_states(found_receipts)}"
            self._verdict.unsettled.append(line)
            self._report(line, int((final[0].at if final else at) * 1e6))

    def _crash(self, first: float, last: float) -> bool:
        return any(kill.at - _BEFORE_S <= last and first <= kill.up + AFTER_S for kill in self._kills)

    def _report(self, line: str, at_us: int) -> None:
        at = at_us / 1e6
        near = [
            f"{kill.victim} killed {kill.at - at:+.1f} s, up {kill.up - at:+.1f} s"
            for kill in self._kills
            if abs(kill.at - at) < 60 or kill.at <= at <= kill.up
        ]
        self._verdict.evidence.append(
            f"{line}; at {at:.3f}; {self._life.near(at_us)}; {', '.join(near) or 'no kill within a minute'}"
        )


def _states(found_receipts: Sequence[TimedReceipt]) -> str:
    return ", ".join(f"{one.state} at {one.at:.3f}" for one in found_receipts) or "none"
