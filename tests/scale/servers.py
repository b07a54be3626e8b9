"""Mosquittos that hold many connections, and the open files that they need."""

from __future__ import annotations

import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil

from bridge.errors import TerminalError
from pulsebridge.downloads.preflight import find_mosquitto
from pulsebridge.local.ports import free_ports
from tests.bench.processes import running

__all__ = ["brokers_for", "mosquittos", "raise_open_files"]

_OTHER_FILES = 500
"""Of a broker, beside its connections with devices."""


def raise_open_files(wanted: int) -> tuple[int, str]:
    """Let processes that are started from now on open ``wanted`` files. Returns how many they may open, and what is missing to
    have ``wanted``, empty if nothing is.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        if hard < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, wanted))
        elif soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (ValueError, PermissionError):  # the hard limit needs CAP_SYS_RESOURCE, or is at fs.nr_open
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        return hard, (
            f"a process may open {hard:,} files, and one broker for all devices needs {wanted:,}: run `ulimit -Hn {wanted}` "
            "as root (CAP_SYS_RESOURCE) before"
        )
    return wanted, ""


def brokers_for(devices: int, files: int) -> int:
    """Return how many brokers hold that many devices if each may open so many files."""
    return -(-devices // (files - _OTHER_FILES))


@contextmanager
def mosquittos(folder: Path, count: int) -> Iterator[list[tuple[int, psutil.Process]]]:
    """Run brokers until the block ends; yields port and process of each."""
    program = find_mosquitto()
    if program is None:
        raise TerminalError("mosquitto is not on the PATH", remedy="install it")
    with ExitStack() as run:
        found = []
        for number, port in enumerate(free_ports(count)):
            config = folder / f"mosquitto-{number}.conf"
            config.write_text(
                f"listener {port} 127.0.0.1\nallow_anonymous true\nmax_inflight_messages 1000\n"
                "max_queued_messages 1000000\nset_tcp_nodelay true\nlog_dest stderr\nlog_type error\n"
            )
            log = folder / f"mosquitto-{number}.log"
            process = run.enter_context(running([program, "-c", str(config)], log, ready=lambda p=port: _listens(p)))  # type: ignore[misc]
            found.append((port, process))
        yield found


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
