"""Supervises the N processes ``ingest --shard I/N`` of ``ingest --workers N``. It carries no message.

It forwards a stop, restarts a worker that died, and ends if a worker reports that an operator must change something.
Each worker has the read end of a pipe, and only this process has the write end. When it dies for any reason, the
workers read the end of the pipe, drain and end too. They are in separate sessions, so that a Ctrl-C reaches only this
process, which notifies them once.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Final

import structlog

from bridge.settings import Settings
from pulsebridge.cli.options import settings_from
from pulsebridge.workers.restarts import Restarts
from pulsebridge.workers.shared_ports import refuse_without_sharing, reserved

__all__ = ["end_with_owner", "run_workers"]

log = structlog.get_logger("ingest")

_SPARE_S: Final = 8.0
"""Extra time for a worker to close, beyond ``ingest.drain``, in seconds."""
_LOOK_S: Final = 0.1


@dataclass
class _Worker:
    index: int
    command: list[str]
    process: subprocess.Popen[bytes] | None = None
    due: float = 0.0

    def start(self) -> None:
        self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, start_new_session=True)

    def send(self, number: signal.Signals) -> None:
        if self.process is not None:
            with suppress(ProcessLookupError):  # it has ended in the meantime
                self.process.send_signal(number)

    def reap(self) -> int | None:
        """Return the exit code, None while the worker runs or is not started."""
        if self.process is None or self.process.poll() is None:
            return None
        code = self.process.returncode
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process = None
        return code


def run_workers(config: Path | None, sets: Sequence[str], count: int) -> int:
    """Run ``count`` workers until a signal or a terminal failure. Returns the exit code: 0, 1, 2 or 130.

    Workers that listen share their ports: the kernel distributes the connections.

    Raises ConfigError if the settings do not allow so many workers on one machine, TerminalError if a port is in use.
    """
    settings = settings_from(config, sets, {"ingest.shard": f"0/{count}"})
    listening = [name for name in settings.messaging_protocols if name != "mqtt"]
    if listening:
        refuse_without_sharing(listening)
    with reserved(settings.http.host, _ports(settings)) as ports:
        options = [*sets, *(f"{name}={port}" for name, port in ports.items())]
        if ports:
            log.info("the workers share ports", host=settings.http.host, **ports)
        workers = [_Worker(i, _command(config, options, settings, count=count, index=i)) for i in range(count)]
        return _Watch(workers, settings.ingest.drain + _SPARE_S).run()


def _ports(settings: Settings) -> dict[str, int]:
    if "http" not in settings.messaging_protocols:
        return {}
    wanted = {"http.port": settings.http.port, "http.tls_port": settings.http.tls_port}
    return {name: port for name, port in wanted.items() if port is not None}


def _command(config: Path | None, sets: Sequence[str], settings: Settings, *, count: int, index: int) -> list[str]:
    command = [sys.executable, "-c", "from pulsebridge.cli.app import main; main()", "ingest", "--owned"]
    command += ["--shard", f"{index}/{count}"]
    if config is not None:
        command += ["--config", str(config)]
    for one in sets:
        command += ["--set", one]
    if settings.metrics.port:
        command += ["--set", f"metrics.port={settings.metrics.port + index}"]
    return command


class _Watch:
    """Supervises the workers. A stop kills them if it takes longer than ``limit_s``."""

    def __init__(self, workers: Sequence[_Worker], limit_s: float) -> None:
        self._workers = workers
        self._limit_s = limit_s
        self._restarts = Restarts()
        self._asked: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._code = 0

    def run(self) -> int:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        try:
            self._watch()
            return self._code
        finally:
            for worker in self._workers:
                worker.send(signal.SIGKILL)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self._asked.put(number)

    def _watch(self) -> None:
        for worker in self._workers:
            self._start(worker)
        while not self._stop_wanted():
            for worker in self._workers:
                if self._look(worker, time.monotonic()):
                    self._drain()
                    return
        self._drain()

    def _stop_wanted(self) -> bool:
        try:
            self._asked.get(timeout=_LOOK_S)
        except queue.Empty:
            return False
        return True

    def _start(self, worker: _Worker) -> None:
        worker.start()
        self._restarts.started(worker.index, time.monotonic())
        assert worker.process is not None
        log.info("worker started", worker=worker.index, pid=worker.process.pid)

    def _look(self, worker: _Worker, now: float) -> bool:
        """Restart a worker that is due, note one that has ended. Returns whether all must end."""
        if worker.process is None:
            if now >= worker.due:
                self._start(worker)
            return False
        code = worker.reap()
        if code is None:
            return False
        restart = self._restarts.ended(worker.index, code, now)
        if restart is None:
            self._code = code
            log.error("a worker has failed for good, so all end. Action: see its last log line", worker=worker.index)
            return True
        worker.due = now + restart.seconds
        log.warning(
            "a worker died and restarts; its unacknowledged messages are resent. Action: if this repeats, see its log",
            worker=worker.index,
            exit_code=code,
            restart_in_s=round(restart.seconds, 1),
        )
        return False

    def _drain(self) -> None:
        """Stop all workers and wait; a second signal or the time limit kills them."""
        for worker in self._workers:
            worker.send(signal.SIGTERM)
        deadline = time.monotonic() + self._limit_s
        while any(worker.process is not None for worker in self._workers):
            for worker in self._workers:
                code = worker.reap()
                if code not in (None, 0, -signal.SIGTERM) and not self._code:
                    self._code = 1
            if self._stop_wanted():
                self._code = 130
                return
            if time.monotonic() >= deadline:
                self._code = 1
                log.error(
                    "workers did not end in time and are killed; their unacknowledged messages are resent. "
                    "Action: see their logs"
                )
                return


def end_with_owner() -> None:
    """Drain and end when standard input closes. The worker's owner keeps it open while it runs."""

    def wait() -> None:
        with suppress(OSError):
            while os.read(0, 64):
                continue
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="ingest-owner", daemon=True).start()
