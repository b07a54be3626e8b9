"""What a test run must not leave behind: child processes, listening ports, temporary folders."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.support.folders import PREFIX, is_ours
from tests.support.waiting import poll_for


@dataclass(frozen=True)
class Footprint:
    """What this process has at one moment: children (pid, start), ports they listen on, our temporary folders."""

    children: frozenset[tuple[int, float]]
    folders: frozenset[Path]

    @classmethod
    def now(cls) -> Footprint:
        return cls(
            frozenset((p.pid, p.create_time()) for p in _children()),
            frozenset(Path(tempfile.gettempdir()).glob(f"{PREFIX}*")),
        )


def _children() -> list[psutil.Process]:
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if process.status() != psutil.STATUS_ZOMBIE:
                process.create_time()
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found


def leaks_since(before: Footprint, *, grace_s: float = 15.0) -> list[str]:
    """Return one line for each child process, listening port or folder that was not there ``before``.

    Processes get ``grace_s`` seconds to end by themselves.
    """
    left: list[str] = []

    def nothing_left() -> bool:
        left[:] = _lines(before)
        return not left

    with suppress(AssertionError):
        poll_for(nothing_left, grace_s, "the end of what the tests began", every=0.2)
    return left


def _lines(before: Footprint) -> list[str]:
    lines = []
    for process in _children():
        try:
            if (process.pid, process.create_time()) in before.children:
                continue
            command = " ".join(process.cmdline())[:160]
            ports = [c.laddr.port for c in process.net_connections("tcp") if c.status == psutil.CONN_LISTEN]
            lines.append(f"process {process.pid} listens on {ports or 'nothing'}: {command}")
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    for port in _own_ports():
        lines.append(f"this process still listens on port {port}")
    now = frozenset(Path(tempfile.gettempdir()).glob(f"{PREFIX}*"))
    lines += [f"folder {folder}" for folder in sorted(now - before.folders) if is_ours(folder)]
    return lines


def _own_ports() -> list[int]:
    connections = psutil.Process().net_connections("tcp")
    return [c.laddr.port for c in connections if c.status == psutil.CONN_LISTEN]
