"""A child process under measurement: started with the stack's settings, its CPU summed over its whole tree."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil

from tests.support.waiting import poll_for

__all__ = ["cpu_seconds", "pulsebridge", "running"]


def pulsebridge(*args: str) -> list[str]:
    """Return the command line that runs this project's command with this interpreter."""
    return [str(Path(sys.executable).with_name("pulsebridge")), *args]


@contextmanager
def running(
    command: list[str], log: Path, *, ready: Callable[[], bool], env: Mapping[str, str] | None = None
) -> Iterator[psutil.Process]:
    """Run a process until the block ends; ends it with SIGTERM, its whole group with SIGKILL when it lingers.

    Raises RuntimeError with the end of its log when it stops before ``ready()``.
    """
    with log.open("wb") as out:
        child = subprocess.Popen(
            command,
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(env or {})},
            start_new_session=True,
        )
    try:
        poll_for(lambda: ready() or child.poll() is not None, 90, f"{command[-1]} to be ready")
        if child.poll() is not None:
            raise RuntimeError(
                f"{' '.join(command)} ended with {child.returncode}:\n{log.read_text()[-2000:]}"
            )
        yield psutil.Process(child.pid)
    finally:
        if child.poll() is None:
            child.send_signal(signal.SIGTERM)
            try:
                child.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait(10)


def cpu_seconds(process: psutil.Process) -> float:
    """Return user + system CPU time of a process and its living descendants, in seconds."""
    total = 0.0
    for p in [process, *process.children(recursive=True)]:
        times = p.cpu_times()
        total += times.user + times.system
    return total
