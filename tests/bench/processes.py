"""A child process under measurement: started with the stack's settings, its CPU summed over its whole tree; and the
folder of a measurement, whose logs stay when it fails.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil

from pulsebridge.local.stack import LocalStack
from tests.support.folders import own_folder
from tests.support.waiting import poll_for

__all__ = ["bench_folder", "cpu_seconds", "pulsebridge", "running", "with_logs_of"]

KEPT = Path("build/bench-failed")
"""Below here are the logs of measurements that failed, in a folder for each."""


@contextmanager
def bench_folder() -> Iterator[Path]:
    """Make a folder for one measurement. What ends in .log, .txt or .yaml directly in it is kept when the block raises."""
    with own_folder("bench") as folder:
        try:
            yield folder
        except BaseException:
            kept = KEPT / time.strftime("%Y%m%d-%H%M%S")
            kept.mkdir(parents=True, exist_ok=True)
            for file in (*folder.glob("*.log"), *folder.glob("*.txt"), *folder.glob("*.yaml")):
                shutil.copy(file, kept)
            print(f"  failed; its logs are in {kept.absolute()}", flush=True)
            raise


@contextmanager
def with_logs_of(stack: LocalStack, folder: Path) -> Iterator[None]:
    """Copy the logs of the stack's servers into ``folder`` when the block raises: the stack removes them."""
    try:
        yield
    except BaseException:
        for name, server in stack.servers.items():
            if server.log.exists():
                shutil.copy(server.log, folder / f"server-{name}.log")
        raise


def pulsebridge(*args: str) -> list[str]:
    """Return the command line that runs this project's command with this interpreter."""
    return [str(Path(sys.executable).with_name("pulsebridge")), *args]


@contextmanager
def running(
    command: list[str],
    log: Path,
    *,
    ready: Callable[[], bool],
    env: Mapping[str, str] | None = None,
    within_s: float = 90,
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
        poll_for(lambda: ready() or child.poll() is not None, within_s, f"{command[-1]} to be ready")
        if child.poll() is not None:
            raise RuntimeError(f"{' '.join(command)} ended with {child.returncode}:\n{log.read_text()[-2000:]}")
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
