"""A server process under its guardian: start, liveness, kill and stop."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from bridge.errors import RefusedError, TransientError

__all__ = ["Server", "await_ready", "last_lines"]

_GUARDIAN = Path(__file__).with_name("guardian.py")


class Server:
    """One server process. It ends after this process has ended in any way (see ``guardian``).

    ``pid`` and ``created`` (seconds since the epoch) identify the server itself, not its guardian; a signal is sent
    only while both match.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        log: Path,
        cwd: Path,
        environment: Mapping[str, str],
        grace_s: float,
    ) -> None:
        self.name = name
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        self._grace_s = grace_s
        self._asked = False
        self._guardian = subprocess.Popen(
            [
                sys.executable,
                "-I",
                "-S",
                str(_GUARDIAN),
                str(os.getpid()),
                str(grace_s),
                str(log),
                "--",
                *command,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=cwd,
            env=dict(environment),
            start_new_session=True,
        )
        assert self._guardian.stdout is not None
        line = self._guardian.stdout.readline()
        self._guardian.stdout.close()
        if not line.strip().isdigit():
            self._reap()
            raise TransientError(f"{name} did not start: {command[0]}", remedy=f"see {log}")
        self.pid = int(line)
        self.created = _created(self.pid)

    @property
    def exit_code(self) -> int | None:
        """The server's exit code, 128 + n if signal n ended it, None while it runs."""
        return self._guardian.poll()

    def alive(self) -> bool:
        """Return whether the server runs."""
        return self.exit_code is None and _created(self.pid) == self.created

    def failure(self) -> TransientError | None:
        """Return the error of a server that ended by itself, with its last log lines; else None."""
        code = self.exit_code
        if self._asked or code is None:
            return None
        how = f"was ended by {_signal_name(code - 128)}" if code > 128 else f"ended with code {code}"
        if code < 0:
            how = f"ended with its guardian, which was ended by {_signal_name(-code)}"
        return TransientError(
            f"{self.name} {how}; its log ends:\n{last_lines(self.log)}", remedy=f"the whole log: {self.log}"
        )

    def kill(self) -> None:
        """Send SIGKILL to the server's process group and wait until it has ended."""
        self._asked = True
        if self.alive():
            with suppress(ProcessLookupError):  # it has ended meanwhile
                os.killpg(self.pid, signal.SIGKILL)
        self._reap()

    def stop(self) -> None:
        """Send SIGTERM to the server, SIGKILL after its grace period, and wait until it has ended."""
        self.ask()
        self._reap()

    def ask(self) -> None:
        """Begin to stop the server, without waiting."""
        self._asked = True
        stdin = self._guardian.stdin
        if stdin is not None and not stdin.closed:
            stdin.close()

    def _reap(self) -> None:
        try:
            self._guardian.wait(self._grace_s + 15)
        except subprocess.TimeoutExpired:
            self._guardian.kill()
            self._guardian.wait()
        self.ask()


def await_ready(
    server: Server, ready: Callable[[], bool], timeout_s: float, abandoned: Callable[[], bool] = lambda: False
) -> None:
    """Wait until ``ready`` returns True; an error of it counts as not ready.

    Raises TransientError if the server ends, is not ready within ``timeout_s``, or if ``abandoned`` returns True.
    """
    deadline = time.monotonic() + timeout_s
    pause, last = 0.05, "it does not answer"
    while time.monotonic() < deadline:
        if abandoned():
            raise TransientError(f"the start of {server.name} was cancelled")
        failure = server.failure()
        if failure is not None:
            raise failure
        try:
            if ready():
                return
        except (TransientError, RefusedError) as e:
            last = e.what
        time.sleep(pause)
        pause = min(pause * 1.3, 0.25)
    raise TransientError(
        f"{server.name} is not ready after {timeout_s:.0f} s ({last}); its log ends:\n{last_lines(server.log)}",
        remedy="check whether the machine is overloaded, or raise local.start_timeout",
    )


def _signal_name(number: int) -> str:
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"


def _created(pid: int) -> float:
    try:
        return psutil.Process(pid).create_time()
    except psutil.NoSuchProcess:
        return 0.0


def last_lines(log: Path, count: int = 15) -> str:
    """Return the last lines of a server's log without Java's stack frames, for an error message.

    The last errors come first, because Pulsar logs many lines at its end.
    """
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 65_536))
            lines = file.read().decode("utf-8", "replace").splitlines()
        lines = [line for line in lines if not line.startswith("\tat ")]
    except OSError as e:
        return f"(no log: {e})"
    errors = [line for line in lines[:-count] if " ERROR " in line or line.startswith("Caused by: ")]
    return "\n".join([*errors[-5:], *lines[-count:]])
