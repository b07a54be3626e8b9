"""The process of ``pulsebridge up``: owns the servers, writes the state file, and stops in time.

It runs in a separate session (``python -m pulsebridge.local.supervisor FOLDER``, the settings as JSON on standard
input). It stops on SIGTERM or SIGINT, or after its lifetime if it has one. If a server ends by itself, it writes the
failure to the state file and its log, stops the other server and exits with 1. If it is killed, the guardians stop the
servers.
"""

from __future__ import annotations

import fcntl
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import FrameType

from bridge.errors import PulsebridgeError, TransientError
from bridge.settings.local import LocalSettings
from pulsebridge.local.stack import LocalStack
from pulsebridge.local.state import ProcessId, StackState, write_state
from pulsebridge.output.text import text_of

__all__ = ["main"]

_CHECK_S = 0.5


def main(arguments: list[str]) -> int:
    """Run a stack in ``FOLDER`` until a signal. Exit codes: 0 stopped, 1 failed to start or lost a server."""
    folder = Path(arguments[0])
    settings = LocalSettings.model_validate_json(sys.stdin.read())
    stopping = threading.Event()

    def on_signal(number: int, frame: FrameType | None) -> None:
        stopping.set()
        if not ready.is_set():
            raise KeyboardInterrupt  # the start does not wait for ``stopping``

    ready = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with (folder / "lock").open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return 1  # another supervisor owns this folder and its state file
        return _supervise(folder, settings, stopping, ready)


def _supervise(folder: Path, settings: LocalSettings, stopping: threading.Event, ready: threading.Event) -> int:
    state = StackState(phase="starting", supervisor=ProcessId.own(), since=time.time())
    write_state(folder, state)

    def report(line: str) -> None:
        write_state(folder, replace(state, message=line))

    stack = LocalStack(settings, report=report, usual_ports=True)
    try:
        stack.start()
        ready.set()
    except KeyboardInterrupt:
        write_state(folder, replace(state, phase="stopped"))
        return 0
    except PulsebridgeError as e:
        write_state(folder, replace(state, phase="failed", message=str(e)))
        return 1
    except BaseException as e:
        write_state(folder, replace(state, phase="failed", message=f"{type(e).__name__}: {e}"))
        raise
    state = _describe(stack, state, until=time.time() + settings.lifetime if settings.lifetime else 0.0)
    write_state(folder, state)
    end = replace(state, phase="stopped")
    try:
        while not stopping.wait(_CHECK_S) and (not state.until or time.time() < state.until):
            stack.check()
    except TransientError as e:
        end = replace(state, phase="failed", message=str(e))
        write_state(folder, end)  # before stop(), because the other server needs a while to end
        sys.stderr.write(text_of([time.strftime("%F %T"), *str(e).split("\n")]) + "\n")
    finally:
        stack.stop()
        write_state(folder, end)
    return 1 if end.phase == "failed" else 0


def _describe(stack: LocalStack, state: StackState, *, until: float) -> StackState:
    servers = {name: ProcessId(server.pid, server.created) for name, server in stack.servers.items()}
    return replace(
        state,
        phase="ready",
        until=until,
        mqtt_url=stack.mqtt_url,
        pulsar_url=stack.pulsar_url,
        admin_url=stack.admin_url,
        mqtt_server=stack.settings.mqtt_server if "mqtt" in servers else "given",
        fsync=stack.settings.fsync,
        servers=servers,
        logs={name: str(server.log) for name, server in stack.servers.items()},
        stages=dict(stack.stages),
        overrides=stack.settings_overrides(),
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
