"""State file of a running stack: its supervisor, its addresses, and its end.

Only the supervisor writes it; ``up``, ``status`` and ``down`` read it. A pid is valid only with the start time of its
process, so that no signal reaches a later process with the same pid.
"""

from __future__ import annotations

import json
import os
import threading
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil

__all__ = ["ProcessId", "StackState", "read_state", "write_state"]

STATE_FILE = "stack.json"


@dataclass(frozen=True)
class ProcessId:
    """Unique id of a process: its pid and its start, in seconds since the epoch."""

    pid: int
    created: float

    @classmethod
    def own(cls) -> ProcessId:
        """Return the id of this process."""
        return cls(os.getpid(), psutil.Process().create_time())

    def process(self) -> psutil.Process | None:
        """Return the process if it runs and its start time matches, else None."""
        try:
            process = psutil.Process(self.pid)
            if abs(process.create_time() - self.created) < 0.01 and process.status() != psutil.STATUS_ZOMBIE:
                return process
        except psutil.NoSuchProcess:
            return None
        return None


@dataclass(frozen=True)
class StackState:
    """State of a supervised stack. ``phase`` is starting, ready, failed or stopped; times are Unix seconds.

    ``until`` is 0 if the servers have no end time.
    """

    phase: str
    supervisor: ProcessId
    message: str = ""
    since: float = 0.0
    until: float = 0.0
    mqtt_url: str = ""
    pulsar_url: str = ""
    admin_url: str = ""
    mqtt_server: str = ""
    fsync: bool = False
    servers: dict[str, ProcessId] = field(default_factory=dict)
    logs: dict[str, str] = field(default_factory=dict)
    stages: dict[str, float] = field(default_factory=dict)
    overrides: dict[str, str | int] = field(default_factory=dict)

    @property
    def running(self) -> bool:
        """Whether the supervisor runs."""
        return self.supervisor.process() is not None


def write_state(folder: Path, state: StackState) -> None:
    """Replace the state file atomically: a reader sees the old one or the new one."""
    # One name for each thread, so that two concurrent calls do not remove each other's file.
    part = folder / f".{STATE_FILE}.{os.getpid()}.{threading.get_ident()}"
    part.write_text(json.dumps({"v": 1} | asdict(state), indent=2) + "\n", encoding="utf-8")
    part.replace(folder / STATE_FILE)


def read_state(folder: Path) -> StackState | None:
    """Return the last state, None if there is none that this version can read."""
    try:
        body = json.loads((folder / STATE_FILE).read_text(encoding="utf-8"))
        if body.pop("v") != 1:
            return None
        body["supervisor"] = ProcessId(**body["supervisor"])
        body["servers"] = {name: ProcessId(**p) for name, p in body["servers"].items()}
        return StackState(**body)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
