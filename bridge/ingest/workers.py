"""``ingest --workers N``: N processes of ``ingest --shard I/N``, watched over. It carries no message itself.

It forwards a stop, starts a worker again that died, and ends when one has said that somebody must change something.
Each worker holds the reading end of a pipe whose other end only this process has: when it dies, however it dies, the
workers read the end of it, drain and end too. They are in sessions of their own, so that a Ctrl-C reaches this
process alone, which tells them once.
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

from bridge.ingest.restarts import Restarts
from bridge.ingest.shared_ports import held, refuse_without_sharing
from bridge.options import settings_from
from bridge.settings import Settings

__all__ = ["end_with_owner", "run_workers"]

log = structlog.get_logger("ingest")

_SPARE_S: Final = 8.0
"""What a worker may need beyond ``ingest.drain_s`` to close what it has, in seconds."""
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
            with suppress(ProcessLookupError):  # it ended by itself meanwhile
                self.process.send_signal(number)

    def reap(self) -> int | None:
        """Return the exit code when it has ended, None while it runs or is not started."""
        if self.process is None or self.process.poll() is None:
            return None
        code = self.process.returncode
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process = None
        return code


def run_workers(config: Path | None, sets: Sequence[str], count: int) -> int:
    """Run ``count`` workers until a signal or a terminal failure. Returns the exit code: 0, 1, 2 or 130.

    Workers that listen share their ports: the kernel deals the connections to them.

    Raises ConfigError when the settings do not allow so many workers on one machine, TerminalError when a port is taken.
    """
    settings = settings_from(config, sets, {"ingest.shard": f"0/{count}"})
    listening = [name for name in settings.messaging_protocols if name != "mqtt"]
    if listening:
        refuse_without_sharing(listening)
    with held(settings.http.host, _ports(settings)) as ports:
        told = [*sets, *(f"{name}={port}" for name, port in ports.items())]
        if ports:
            log.info("the workers share ports", host=settings.http.host, **ports)
        workers = [_Worker(i, _command(config, told, settings, count=count, index=i)) for i in range(count)]
        return _Watch(workers, settings.ingest.drain_s + _SPARE_S).run()


def _ports(settings: Settings) -> dict[str, int]:
    if "http" not in settings.messaging_protocols:
        return {}
    wanted = {"http.port": settings.http.port, "http.tls_port": settings.http.tls_port}
    return {name: port for name, port in wanted.items() if port is not None}


def _command(config: Path | None, sets: Sequence[str], settings: Settings, *, count: int, index: int) -> list[str]:
    command = [sys.executable, "-c", "from bridge.cli import main; main()", "ingest", "--owned"]
    command += ["--shard", f"{index}/{count}"]
    if config is not None:
        command += ["--config", str(config)]
    for one in sets:
        command += ["--set", one]
    if settings.metrics.port:
        command += ["--set", f"metrics.port={settings.metrics.port + index}"]
    return command


class _Watch:
    """Looks after the workers. ``patience_s`` is how long a stop may take before they are killed."""

    def __init__(self, workers: Sequence[_Worker], patience_s: float) -> None:
        self._workers = workers
        self._patience_s = patience_s
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
        """Start a worker again that is due, note one that has ended. Returns whether all must end."""
        if worker.process is None:
            if now >= worker.due:
                self._start(worker)
            return False
        code = worker.reap()
        if code is None:
            return False
        again = self._restarts.ended(worker.index, code, now)
        if again is None:
            self._code = code
            log.error("a worker has failed for good and all end; see its last line", worker=worker.index)
            return True
        worker.due = now + again.seconds
        log.warning(
            "a worker died and is started again; what it had not acknowledged comes again. If it goes on, see its log",
            worker=worker.index,
            exit_code=code,
            again_in_s=round(again.seconds, 1),
        )
        return False

    def _drain(self) -> None:
        """Ask all to end, and wait; a second signal, or the end of patience, kills them."""
        for worker in self._workers:
            worker.send(signal.SIGTERM)
        deadline = time.monotonic() + self._patience_s
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
                    "workers did not end in time and are killed, what they had not acknowledged comes again; see what holds them"
                )
                return


def end_with_owner() -> None:
    """Drain and end when standard input ends, which the owner of this worker keeps open while it lives."""

    def wait() -> None:
        with suppress(OSError):
            while os.read(0, 64):
                continue
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="ingest-owner", daemon=True).start()
