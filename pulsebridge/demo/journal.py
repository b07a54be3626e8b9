"""What a device itself writes down: the first of the audit's three records.

One append-only JSONL file per device, flushed line by line, written before anything counts: a publish before it
is handed to the client, an acknowledgement when the MQTT broker's PUBACK is there, a command before it is
acknowledged. Each line has ``e``, the event, and ``us``, the time in µs since the epoch.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

__all__ = ["ACKNOWLEDGED", "COMMAND", "PUBLISHED", "REFUSED", "Journal", "read_journal"]

PUBLISHED: Final = "published"
"""Fields ``id``, ``seq``, ``ts``, ``value`` (null for a fault), ``fault`` (its kind, absent otherwise)."""
ACKNOWLEDGED: Final = "acknowledged"
"""Field ``id``."""
REFUSED: Final = "refused"
"""Fields ``id`` and ``reason``, the MQTT 5 reason code from 0x80 on."""
COMMAND: Final = "command"
"""Fields ``id``, ``n`` (order of arrival at the device, from 1), ``dup``, ``reading_id``, ``rule``, ``text``."""


class Journal:
    """The journal of one device. Safe to use from several threads; each line is whole and flushed."""

    def __init__(self, folder: Path, device: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / f"{device}.jsonl").open("a", encoding="utf-8")
        self._lock = threading.Lock()

    def write(self, event: str, us: int, **fields: Any) -> None:
        """Append one line and flush it to the operating system: it survives a kill of the process."""
        line = json.dumps({"e": event, "us": us} | fields, separators=(",", ":"), ensure_ascii=False)
        with self._lock:
            self._file.write(line + "\n")
            self._file.flush()

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._file.close()


def read_journal(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of one journal. A last line that a kill cut short is left out."""
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            if line.endswith("\n"):
                yield json.loads(line)
