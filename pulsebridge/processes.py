"""The processes of a run, with logs; they are killed with all their children.

A guardian owns each of them (``pulsebridge.local.processes``), so that none outlives the demo, even if that is killed.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import psutil

from bridge.errors import TransientError
from pulsebridge.local.processes import Server, last_lines

__all__ = ["Child", "pulsebridge_command", "stop_all"]


def pulsebridge_command(*arguments: str) -> list[str]:
    """Return the command line of ``pulsebridge`` in this Python."""
    return [sys.executable, "-c", "from pulsebridge.cli.app import main; main()", *arguments]


class Child:
    """One process of the run. After a kill it is restarted with the same command and log."""

    def __init__(
        self, name: str, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.log = log
        self._command = list(command)
        self._environment = dict(os.environ if environment is None else environment)
        self._server: Server | None = None

    def start(self) -> None:
        """Start it. Raises TransientError if the command cannot be run."""
        self._server = Server(
            self.name,
            self._command,
            log=self.log,
            cwd=Path.cwd(),
            environment=self._environment,
            grace_s=20.0,
        )

    @property
    def ended(self) -> bool:
        """Whether it was started and has ended."""
        return self._server is not None and not self._server.alive()

    def logged(self) -> str:
        """Return its log so far."""
        return self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""

    def await_log(
        self, line: str, timeout_s: float, *, times: int = 1, check: Callable[[], object] = lambda: None
    ) -> None:
        """Wait until its log contains ``line``, so many times; ``check`` is called in between.

        Raises TransientError if it ends before, or if that takes longer than ``timeout_s``, in seconds.
        """
        deadline = time.monotonic() + timeout_s
        while self.logged().count(line) < times:
            check()
            if self.ended:
                raise self.failure()
            if time.monotonic() > deadline:
                raise TransientError(f"{self.name} is not ready after {timeout_s:.0f} s", remedy=f"see {self.log}")
            time.sleep(0.1)

    def failure(self) -> TransientError:
        """Return the error of an ended process: its exit code and last log lines."""
        code = None if self._server is None else self._server.exit_code
        return TransientError(
            f"{self.name} ended with exit code {code}; the end of {self.log}:\n{last_lines(self.log, 8)}",
            remedy=f"read {self.log}",
        )

    def kill(self) -> int:
        """Kill -9 the process and every descendant. Returns the number of killed processes."""
        if self._server is None:
            return 0
        tree = _tree(self._server.pid)
        for process in tree:  # each one, because pyspark's daemon leaves the process group
            try:
                process.send_signal(signal.SIGKILL)
            except psutil.NoSuchProcess:
                continue
        self._server.kill()
        psutil.wait_procs(tree, timeout=5)
        return len(tree)

    def ask(self) -> None:
        """Send SIGTERM, without waiting."""
        if self._server is not None:
            self._server.ask()

    def wait(self) -> None:
        """Wait until it has ended. After its grace period, kill it and its remaining children."""
        if self._server is None:
            return
        tree = _tree(self._server.pid)
        self._server.stop()
        for process in psutil.wait_procs(tree, timeout=1)[1]:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        self._server = None


def _tree(pid: int) -> list[psutil.Process]:
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def stop_all(children: Iterable[Child]) -> float:
    """Send SIGTERM to all, then wait for each. Returns the duration in seconds."""
    began = time.monotonic()
    listed = list(children)
    for child in listed:
        child.ask()
    for child in listed:
        child.wait()
    return time.monotonic() - began
