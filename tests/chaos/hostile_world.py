"""Ingest, push and tables beside hostile devices, and what became of the honest ones; nothing is killed.

Interrupted is measured at the sockets: ingest and push go through a proxy that counts connections, so a reconnect is one more of them,
and a process that ended by itself is seen as such.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

from bridge.settings.push import GroupRule
from bridge.settings.rules import TopicRule
from pulsebridge.local.stack import LocalStack
from tests.chaos.hostile import HostileDevices, Target
from tests.chaos.push_world import PushWorld, push_world
from tests.chaos.tables_beside import TablesBeside
from tests.chaos.world import TOPIC, World
from tests.support.device_processes import DeviceProcesses
from tests.support.fleet import Fleet
from tests.support.reading_back import read_back
from tests.support.tcp_proxy import TcpProxy

__all__ = ["HostileVerdict", "HostileWorld", "hostile_world"]

_THREADS: Final = 4


@dataclass(frozen=True)
class HostileVerdict:
    """What was found; ``broken`` names what must not be."""

    broken: tuple[str, ...]
    figures: str

    def text(self) -> str:
        """Return it on a few lines."""
        return "\n".join([self.figures, *(f"BROKEN: {one}" for one in self.broken)])


class HostileWorld:
    """``ingest`` and ``push`` with their honest fleets, and the hostile devices."""

    def __init__(
        self,
        ingest: World,
        push: PushWorld,
        fleet: Fleet,
        devices: DeviceProcesses,
        proxy: TcpProxy,
        tables: TablesBeside | None,
        seed: int,
    ) -> None:
        self._ingest = ingest
        self._tables = tables
        self._push = push
        self._fleet = fleet
        self._devices = devices
        self._proxy = proxy
        self._connections = self._counted()
        stack = ingest.stack
        target = Target(stack.mqtt_host, stack.mqtt_port, ingest.root, lambda: list(push.writer.places))
        self.hostile = HostileDevices(target, count=_THREADS, seed=seed)

    def _counted(self) -> tuple[int, int]:
        return self._ingest.proxy.connections, self._proxy.connections

    @property
    def published(self) -> int:
        """How many messages of the honest devices the broker has confirmed."""
        return self._fleet.total

    def interruptions(self) -> list[str]:
        """Return what was interrupted so far: reconnects, and processes that ended by themselves."""
        found = []
        for name, before, now in zip(("ingest", "push"), self._connections, self._counted(), strict=True):
            if now != before:
                found.append(f"{name} connected {now - before} times more to the MQTT broker")
        process = self._ingest.process
        if process is None or process.poll() is not None:
            found.append(f"ingest ended by itself: {_tail(self._ingest.log)}")
        try:
            self._push.check()
        except AssertionError as e:
            found.append(str(e))
        return found + (self._tables.interruptions() if self._tables is not None else [])

    def account(self, say: Callable[[str], None]) -> HostileVerdict:
        """End the attacks, and compare what honest devices sent and got with what should have come."""
        self.hostile.stop()
        broken = self.interruptions()
        figures = [f"attacks: {self.hostile.text()}"]
        if broken:  # what ended gives no account
            return HostileVerdict(tuple(broken), "\n".join(figures))
        readings = self._ingest.account(self._fleet)
        figures.append(f"readings: {self._fleet.total} confirmed, {readings.text()}; longest gap {self._gap_ms()} ms")
        broken += [f"readings: {readings.text()}"] * bool(
            readings.missing or readings.disordered or readings.unexplained
        )
        if self._tables is not None:
            broken += self._tables.account(self._fleet.confirmed)
            figures.append(f"rows: {self._tables.text()}")
        commands = self._push.account(self._devices, say=say)
        arrivals = sorted(event.at for event in self._devices.events() if event.kind == "R")
        figures.append(f"commands: {commands.text()}; longest gap {_longest(arrivals) // 1000} ms")
        broken += [f"commands: {commands.text()}"] * commands.broken
        for name, before, now in zip(("ingest", "push"), self._connections, self._counted(), strict=True):
            if now != before:
                broken.append(f"{name} connected {now - before} times more to the MQTT broker")
        return HostileVerdict(tuple(broken), "\n".join(figures))

    def _gap_ms(self) -> int:
        pulsar = self._ingest.pulsar
        return _longest(sorted(m.event_timestamp() for _, m in read_back(pulsar, pulsar.readings_topic(TOPIC))))


def _longest(times: Sequence[int]) -> int:
    return max((b - a for a, b in pairwise(times)), default=0)


def _tail(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()
    lines_of_interest = [line for line in lines if '"warning"' in line or '"error"' in line or not line.startswith("{")]
    return json.dumps([line[:400] for line in lines_of_interest[-12:]], ensure_ascii=True, indent=1)


@contextmanager
def hostile_world(
    stack: LocalStack,
    folder: Path,
    *,
    devices: int,
    rate: float,
    command_rate: float,
    seed: int,
    with_tables: bool = False,
) -> Iterator[HostileWorld]:
    """A world with ``devices`` that publish ``rate`` messages a second together, and as many that take commands."""
    with ExitStack() as closing:
        proxy = closing.enter_context(TcpProxy(stack.mqtt_host, stack.mqtt_port))
        other = closing.enter_context(TcpProxy(stack.mqtt_host, stack.mqtt_port))
        ingest = World(
            stack,
            folder,
            proxy,
            protocol="5",
            rules=lambda root: (
                TopicRule(name="hostile", filter=f"{root}/+device/y", topic="hostile", device="{device}"),
                TopicRule(name="named", filter=f"{root}/named/#", topic="named", device="{json:$.id}"),
            ),
            resume_topic=lambda root: f"{root}/resume/+device",
        )
        closing.callback(ingest.end_or_kill)
        push, fleet_of_push = closing.enter_context(
            push_world(
                stack,
                folder,
                devices=devices,
                rate=command_rate,
                seed=seed,
                present_s=0.0,
                away_s=0.0,
                processes=max(1, devices // 500),
                old_share=0.0,
                pulsar_settings=ingest.pulsar,
                root=ingest.root,
                port=other.port,
                groups={"declared": (GroupRule(name="all", devices=("*",)),)},
            )
        )
        ingest.start()
        fleet = closing.enter_context(ingest.fleet(devices=devices, rate=rate))
        fleet_of_push.all_there()
        tables = None
        if with_tables:
            tables = TablesBeside(ingest.pulsar, ingest.root, (TOPIC, "hostile", "named"), folder)
            closing.callback(tables.end)
            tables.start()
        made = HostileWorld(ingest, push, fleet, fleet_of_push, other, tables, seed)
        with made.hostile:
            yield made
