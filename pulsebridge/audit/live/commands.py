"""Compares commands with alerts, receipts and dead letters. Pure.

Id and device together identify a command. Commands without a receipt are fine while they wait: the caller says which.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from bridge.contract import DELIVERIES, REMARKS
from pulsebridge.audit.live.findings import Finding, Hop, Kind

__all__ = ["Commands", "Emitted", "Letter", "Receipted", "Row"]

_BURIED: Final = ("rejected", "overflowed")
"""States before which push writes a dead letter."""


class Emitted(NamedTuple):
    """A command in Pulsar."""

    id: str
    device: str
    us: int
    partition: int
    position: tuple[int, int, int]
    whole_group: bool = False
    """Whether it is a broadcast, which no device has."""


class Receipted(NamedTuple):
    """A receipt in Pulsar."""

    id: str
    device: str
    state: str
    us: int
    emitted_us: int
    group: str = ""


class Letter(NamedTuple):
    """A dead letter of a command."""

    id: str
    device: str
    us: int


class Row(NamedTuple):
    """An alert, of the topic or of the table. ``device`` is the command's, empty without a command."""

    id: str
    device: str
    us: int


@dataclass
class Commands:
    """All records about commands of one audit; memory is proportional to the commands of the window."""

    since_us: int
    until_us: int
    emitted: list[Emitted] = field(default_factory=list)
    receipts: list[Receipted] = field(default_factory=list)
    letters: list[Letter] = field(default_factory=list)
    alerts: list[Row] = field(default_factory=list)
    alert_rows: list[Row] | None = None
    """Rows of the table ``alerts``, None if it does not exist."""

    def findings(self, waits: Callable[[Emitted], bool], copy: Callable[[str], None]) -> Iterator[Finding]:
        """Yield the differences. ``copy`` is called with the hop of each copy that at-least-once delivery allows."""
        first: dict[tuple[str, str], Emitted] = {}
        for one in self.emitted:
            if first.setdefault((one.device, one.id), one) is not one:
                copy(Hop.COMMANDS)
        yield from self._from_alerts(first, copy)
        yield from self._receipts(first, waits, copy)
        yield from self._buried()

    def _within(self, us: int) -> bool:
        return self.since_us <= us < self.until_us

    def _from_alerts(self, first: dict[tuple[str, str], Emitted], copy: Callable[[str], None]) -> Iterator[Finding]:
        known = {one.id for one in self.alerts}
        rows: dict[str, int] = defaultdict(int)
        for row in self.alert_rows or ():
            rows[row.id] += 1
            if rows[row.id] == 2:
                yield Finding(Hop.ALERTS, Kind.REPEATED, row.device, row.us, row.id)
            if self._within(row.us) and row.id not in known and rows[row.id] == 1:
                yield Finding(Hop.ALERTS, Kind.UNEXPECTED, row.device, row.us, row.id, "the alerts topic lacks it")
        seen: set[str] = set()
        for one in self.alerts:
            if one.id in seen:
                copy(Hop.ALERTS)
                continue
            seen.add(one.id)
            if not self._within(one.us):
                continue
            if self.alert_rows is not None and one.id not in rows:
                yield Finding(Hop.ALERTS, Kind.MISSING, one.device, one.us, one.id)
            if one.device and (one.device, one.id) not in first:
                yield Finding(Hop.COMMANDS, Kind.MISSING, one.device, one.us, one.id)

    def _receipts(
        self, first: dict[tuple[str, str], Emitted], waits: Callable[[Emitted], bool], copy: Callable[[str], None]
    ) -> Iterator[Finding]:
        ended: dict[tuple[str, str], Receipted] = {}
        devices = {one.id: one.device for one in first.values()}
        latest: dict[str, Emitted] = {}
        for one in self.receipts:
            key, command = (one.device, one.id), first.get((one.device, one.id))
            if one.state in REMARKS:
                continue
            if key in ended:
                copy(Hop.RECEIPTS)
                continue
            ended[key] = one
            if command is not None:
                before = latest.get(one.device)
                if one.state in DELIVERIES and not one.group:
                    if before is not None and before.position > command.position:
                        yield Finding(Hop.RECEIPTS, Kind.REORDERED, one.device, one.us, one.id, f"after {before.id}")
                    else:
                        latest[one.device] = command
            elif one.id in devices and devices[one.id] != one.device and (devices[one.id], one.id) not in ended:
                yield Finding(Hop.RECEIPTS, Kind.ALTERED, devices[one.id], one.us, one.id, f"receipt of {one.device}")
            elif self._within(one.emitted_us) and not one.group:
                yield Finding(Hop.RECEIPTS, Kind.UNEXPECTED, one.device, one.us, one.id, "no such command")
        for key, command in first.items():
            due = self._within(command.us) and not command.whole_group and key not in ended
            if due and not waits(command):
                yield Finding(Hop.RECEIPTS, Kind.MISSING, command.device, command.us, command.id)

    def _buried(self) -> Iterator[Finding]:
        buried = {(one.device, one.id) for one in self.letters}
        wanted = {(one.device, one.id): one for one in self.receipts if one.state in _BURIED and self._within(one.us)}
        for key, one in wanted.items():
            if key not in buried:
                yield Finding(Hop.DEAD_LETTERS, Kind.MISSING, one.device, one.us, one.id, f"receipt {one.state}")
