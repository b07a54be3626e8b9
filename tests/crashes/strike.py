"""Kills a component while the process that reached a kill point stands still there, and restarts it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import psutil

from bridge.pulsar.admin import PulsarAdmin, rest_path
from bridge.settings import PulsarSettings
from pulsebridge.local.stack import LocalStack
from tests.crashes.cells import SERVERS, Cell
from tests.support.cluster import owner_of
from tests.support.reading_back import patiently
from tests.support.waiting import poll_for

__all__ = ["Outcome", "armed", "ordered", "resume", "strike"]

_REACHED_S: Final = 120.0


@dataclass
class Outcome:
    """What a cell did to its messages."""

    messages: int
    """How many were confirmed to their sender."""
    lost: list[str] = field(default_factory=list)
    disordered: list[str] = field(default_factory=list)
    unexplained: list[str] = field(default_factory=list)
    """Repeats that no rule explains."""
    repeats: Mapping[str, int] = field(default_factory=dict)
    """Repeats by the rule that explains them."""


def ordered(outcome: Outcome, device: str, numbers: Iterable[int], wanted: Iterable[int]) -> None:
    """Note which of the wanted numbers of a device lack, and whether their first copies are out of order."""
    first = list(dict.fromkeys(numbers))
    outcome.lost += [f"{device}-{number}" for number in wanted if number not in set(first)]
    if first != sorted(first):
        outcome.disordered.append(f"{device}: {first}")


def armed(cell: Cell, passage: int) -> dict[str, str]:
    """Return the environment in which a process stops at the point of a cell, at this passage."""
    return {**os.environ, "PULSEBRIDGE_KILL_AT": f"{cell.point}:{passage}", "PULSEBRIDGE_KILL_SIGNAL": "STOP"}


def strike(
    cell: Cell,
    stack: LocalStack,
    settings: PulsarSettings,
    partition: str,
    root: int,
    victims: Callable[[psutil.Process], Sequence[psutil.Process]],
) -> None:
    """Wait until a process in the tree of ``root`` stands at the point, kill the component, and let the others continue.

    A server is killed and restarted: of Pulsar the broker that owns ``partition``, or a bookie that has its ledger.
    ``victims`` returns the processes of any other component, given the one at the point; the caller restarts them.
    """
    at_point, *_ = poll_for(lambda: _stopped(root), _REACHED_S, f"{cell.point} to be reached", every=0.02)
    if cell.component not in SERVERS:
        for process in victims(at_point):
            process.kill()
            poll_for(lambda process=process: _ended(process), 10, f"the end of {process}", every=0.01)  # type: ignore[misc]
        with suppress(psutil.NoSuchProcess):  # a worker whose executor is dead is no longer below the root
            at_point.resume()
        resume(root)
        return
    if cell.component == "mqtt":
        stack.kill("mqtt")
        restart = partial(stack.restart, "mqtt")
    else:
        assert stack.cluster is not None
        with PulsarAdmin(settings, timeout_s=30) as admin:
            name = owner_of(stack.cluster, admin, partition)
            if cell.component == "bookie":
                name = _bookie_of(stack, admin, partition)
        stack.cluster.kill(name)
        restart = partial(stack.cluster.restart, name)
    resume(root)
    restart()


def resume(root: int) -> bool:
    """Let all processes in the tree of ``root`` continue: after the first, others may have reached the point."""
    for process in _stopped(root):
        with suppress(psutil.NoSuchProcess):
            process.resume()
    return True


def _ended(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def _stopped(root: int) -> list[psutil.Process]:
    found = []
    with suppress(psutil.NoSuchProcess):
        one = psutil.Process(root)
        for process in (one, *one.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                if process.status() == psutil.STATUS_STOPPED:
                    found.append(process)
    return found


def _bookie_of(stack: LocalStack, admin: PulsarAdmin, partition: str) -> str:
    """Return a bookie that has the open ledger of a partition."""
    assert stack.cluster is not None
    path = f"/{rest_path(partition)}/internalStats?metadata=true"
    stats: dict[str, Any] = patiently(admin.request, "GET", path)
    ports = set(re.findall(r":(\d+)", stats["ledgers"][-1]["metadata"]))
    for name, server in stack.cluster.servers.items():
        if name.startswith("bookie"):
            connections = psutil.Process(server.pid).net_connections("tcp")
            if any(str(c.laddr.port) in ports for c in connections if c.status == psutil.CONN_LISTEN):
                return name
    raise AssertionError(f"no bookie listens on one of {ports}: {stats['ledgers'][-1]['metadata']}")
