"""Guardian of one server process: it stops the server after its owner ended in any way.

It runs as a separate program with the bare interpreter (``python -I -S guardian.py OWNER GRACE LOG -- COMMAND …``). So
it imports only the standard library. Its standard input is a pipe from the owner. It stops the server after end of
file, SIGTERM or a change of its parent: a forked child of the owner may keep the pipe open. It sends SIGTERM to the
server's process group, and SIGKILL after GRACE seconds. It prints the server's pid as its only line, and exits with the
server's exit code. It has one thread, because the parent-death signal on Linux is bound to the thread that forks.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys

__all__ = ["main"]

_POLL_S = 0.25
_PR_SET_PDEATHSIG = 1


def _die_with_guardian() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _signal_group(pid: int, number: int) -> None:
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        return  # it ended between the check and the signal


def _end(server: subprocess.Popen[bytes], grace: float) -> None:
    if grace > 0:
        _signal_group(server.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):  # then SIGKILL follows
            server.wait(grace)
    _signal_group(server.pid, signal.SIGKILL)
    server.wait()


def _watch(server: subprocess.Popen[bytes], owner: int) -> bool:
    """Wait until the server has ended (True) or the guardian must end it (False)."""
    while server.poll() is None:
        try:
            readable, _, _ = select.select([0], [], [], _POLL_S)
        except InterruptedError:
            continue
        if readable and not os.read(0, 64):
            return False
        if os.getppid() != owner:
            return False
    return True


class _Stopped(Exception):
    pass


def _stop(*_: object) -> None:
    raise _Stopped


def main(arguments: list[str]) -> int:
    """Start the server and wait until it ends. Return its exit code, 128 + n if signal n ended it."""
    owner, grace, log = int(arguments[0]), float(arguments[1]), arguments[2]
    command = arguments[arguments.index("--") + 1 :]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # only the owner handles Ctrl-C
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _stop)
    with open(log, "ab") as out:  # noqa: PTH123
        server = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
            preexec_fn=_die_with_guardian,
        )
    try:
        os.write(1, b"%d\n" % server.pid)
        os.close(1)
        ended = _watch(server, owner)
    except (_Stopped, BrokenPipeError):
        ended = False
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if not ended:
        _end(server, grace)
    code = server.returncode
    return 128 - code if code < 0 else code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
