"""Counts of a run in progress, read from outside the parts, and their display. The audit counts separately."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from bridge.contract import COMMANDS_TOPIC, RECEIPTS_TOPIC
from bridge.errors import RefusedError, TransientError
from bridge.pulsar.admin import PulsarAdmin, rest_path
from bridge.settings.pulsar import PulsarSettings
from pulsebridge.audit.tables import LogTail, table_folders
from pulsebridge.demo.run_folder import RunFolder
from pulsebridge.demo.simulator import Simulator

__all__ = ["Counters", "Counts", "Progress"]

Counts = dict[str, int]
"""Messages published, acknowledged and refused, in pulsar, bronze, measurements, quarantine, alerts; commands emitted, receipted, received."""
_EVERY_S = 3.0


class Counters:
    """Reads the counts. The count of a part that does not answer stays unchanged."""

    def __init__(self, pulsar: PulsarSettings, topics: Sequence[str], run: RunFolder, fleet: Simulator) -> None:
        self._admin = PulsarAdmin(pulsar, timeout_s=2.0)
        self._fleet = fleet
        self._tables = {name: LogTail(folder) for name, folder in table_folders(run.lakehouse).items()}
        self._counted = dict.fromkeys(topics, "pulsar")
        self._counted[pulsar.system_topic(COMMANDS_TOPIC)] = "emitted"
        self._counted[pulsar.system_topic(RECEIPTS_TOPIC)] = "receipted"
        self._last = dict.fromkeys(self._counted, 0)
        self._totals = dict.fromkeys(self._counted.values(), 0)

    def close(self) -> None:
        """Close the connection to Pulsar's admin."""
        self._admin.close()

    def read(self) -> Counts:
        """Return the current counts. Raises the error that ended a device's connection for good."""
        self._fleet.check()
        for topic, name in self._counted.items():
            stored = self._stored(topic)
            if stored is not None:  # after a restart Pulsar counts from 0
                self._totals[name] += stored - self._last[topic] if stored >= self._last[topic] else stored
                self._last[topic] = stored
        return {
            **self._fleet.counts(),
            **{name: tail.advance() for name, tail in self._tables.items()},
            **self._totals,
        }

    def _stored(self, topic: str) -> int | None:
        query = f"/{rest_path(topic)}/partitioned-stats?perPartition=false"
        try:
            stats = self._admin.request("GET", query, accept=(404,))
        except (TransientError, RefusedError):
            return None
        return None if stats is None else int(stats.get("msgInCounter", 0))


class Progress:
    """Prints events, and the counts every few seconds."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began = time.monotonic()
        self._last = (self._began, 0)

    def say(self, text: str, style: str = "") -> None:
        """Print an event."""
        elapsed = time.monotonic() - self._began
        line = Text(f"{elapsed:6.1f} s  ", style="dim") + Text(text, style=style)
        self._console.print(line, soft_wrap=True)

    def update(self, c: Counts) -> None:
        """Print the current counts if the interval is over."""
        now, (before, published) = time.monotonic(), self._last
        if now - before >= _EVERY_S:
            self._last = (now, c["published"])
            self.say(
                f"published {c['published']:,} ({(c['published'] - published) / (now - before):.0f}/s), "
                f"Pulsar {c['pulsar']:,}, bronze {c['bronze']:,}, measurements {c['measurements']:,}, "
                f"quarantine {c['quarantine']:,}, commands {c['emitted']:,} emitted, {c['received']:,} received"
            )
