"""Device journals: publishes, acknowledgements and received commands of a device.

A journal is an append-only JSONL file, named after its device. Each line is flushed before its effect: a publish before
the client gets it, a command before its PUBACK. Each line has ``e``, the event, and ``us``, the time in µs since the
epoch.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from pulsebridge.audit.records import Ack, Published, Received

__all__ = ["ACKNOWLEDGED", "COMMAND", "PUBLISHED", "REFUSED", "Journal", "json_lines", "read_journals"]

PUBLISHED: Final = "published"
"""Fields ``id``, ``metric``, ``seq``, ``ts``, ``value`` (null for a fault), ``fault`` (left out without one)."""
ACKNOWLEDGED: Final = "acknowledged"
"""Field ``id``."""
REFUSED: Final = "refused"
"""Fields ``id`` and ``reason``, the MQTT 5 reason code from 0x80 on."""
COMMAND: Final = "command"
"""Fields ``id`` and ``n``, the order of arrival from 1; others are for readers."""


class Journal:
    """The journal of one device. It is thread-safe; each line is complete and flushed."""

    def __init__(self, folder: Path, device: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / f"{device}.jsonl").open("a", encoding="utf-8")
        self._lock = threading.Lock()

    def write(self, event: str, us: int, **fields: Any) -> None:
        """Append a line and flush it to the operating system. It survives a kill of the process."""
        line = json.dumps({"e": event, "us": us} | fields, separators=(",", ":"), ensure_ascii=False)
        with self._lock:
            self._file.write(line + "\n")
            self._file.flush()

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._file.close()


def json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a JSONL file. A last line that a kill truncated is left out."""
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            if line.endswith("\n"):
                yield json.loads(line)


def read_journals(folder: Path) -> tuple[tuple[Published, ...], tuple[Ack, ...], tuple[Received, ...]]:
    """Return the lines of a folder's journals, for each device in order of writing."""
    published, acks, received = [], [], []
    for path in sorted(folder.glob("*.jsonl")):
        device = path.stem
        for line in json_lines(path):
            event, name, us = line["e"], line.get("id", ""), int(line["us"])
            if event == PUBLISHED:
                how = (line["metric"], int(line["seq"]), line["ts"], line["value"], line.get("fault", ""))
                published.append(Published(name, device, *how, us))
            elif event == ACKNOWLEDGED:
                acks.append(Ack(name, device, us))
            elif event == COMMAND:
                received.append(Received(name, device, int(line["n"]), us))
    return tuple(published), tuple(acks), tuple(received)
