"""Runs the ``main`` of a module of tests in a process that kills itself at a point."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from tests.support.waiting import patient

__all__ = ["run_killed"]


def run_killed(module: str, point: str, *arguments: str) -> None:
    """Run ``main`` of a module until it is killed at the point. Raises AssertionError if it ends in another way."""
    ended = subprocess.run(
        [sys.executable, "-c", f"from {module} import main; main()", *arguments],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "PULSEBRIDGE_KILL_AT": point},
        capture_output=True,
        text=True,
        timeout=patient(200),
        check=False,
    )
    assert ended.returncode == -signal.SIGKILL, ended.stdout + ended.stderr
