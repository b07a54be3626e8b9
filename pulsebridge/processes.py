"""The processes of a run: started with a log each, killed with all their children, stopped in order.

Each is owned by a guardian (``bridge.local.processes``), so that none outlives the demo, however that ends.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import psutil

from bridge.errors import TransientError
from bridge.local.processes import Server, last_lines

__all__ = ["Child", "pulsebridge_command", "stop_all"]


def pulsebridge_command(*arguments: str) -> list[str]:
    """Return the command line of ``pulsebridge`` in this very Python."""
    return [sys.executable, "-c", "from bridge.cli import main; main()", *arguments]


class Child:
    """One process of the run, started again after a kill with the same command and log."""

    def __init__(
        self, name: str, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.log = log
        self._command = list(command)
        self._environment = dict(os.environ if environment is None else environment)
        self._server: Server | None = None

    def start(self) -> None:
        """Start it. Raises TransientError when the command cannot be run."""
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
        """Whether it was started and has ended by itself."""
        return self._server is not None and not self._server.alive()

    def logged(self) -> str:
        """Return what is in its log so far."""
        return self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""

    def failure(self) -> TransientError:
        """Return what to say about a process that has ended by itself: its exit code and the end of its log."""
        code = None if self._server is None else self._server.exit_code
        return TransientError(
            f"{self.name} ended with exit code {code}; the end of {self.log}:\n{last_lines(self.log, 8)}",
            remedy=f"read {self.log}",
        )

    def kill(self) -> int:
        """Kill -9 the process and every descendant. Returns how many processes that were."""
        if self._server is None:
            return 0
        tree = _tree(self._server.pid)
        for process in tree:  # pyspark's daemon leaves the process group: each is killed by itself
            try:
                process.send_signal(signal.SIGKILL)
            except psutil.NoSuchProcess:
                continue
        self._server.kill()
        psutil.wait_procs(tree, timeout=5)
        return len(tree)

    def ask(self) -> None:
        """Ask it to end in order (SIGTERM), without waiting."""
        if self._server is not None:
            self._server.ask()

    def wait(self) -> None:
        """Wait until it has ended, killing it and what it left behind when its grace is over."""
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
    """Ask all to end, then wait for each. Returns the seconds it took."""
    began = time.monotonic()
    listed = list(children)
    for child in listed:
        child.ask()
    for child in listed:
        child.wait()
    return time.monotonic() - began
