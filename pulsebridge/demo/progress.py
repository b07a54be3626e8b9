"""What a run counts while it goes on, from outside every part, and how that is shown. The audit counts by itself."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from bridge.contract import COMMANDS_TOPIC, RECEIPTS_TOPIC
from bridge.errors import RefusedError, TransientError
from bridge.pulsar_admin import PulsarAdmin, rest_path
from bridge.settings.pulsar import PulsarSettings
from pulsebridge.audit.tables import LogTail, table_folders
from pulsebridge.demo.run_folder import RunFolder
from pulsebridge.demo.simulator import Simulator

__all__ = ["Counters", "Counts", "Progress"]

_LINES = (
    ("published by devices", "published"),
    ("acknowledged by MQTT", "acknowledged"),
    ("in Pulsar", "pulsar"),
    ("in bronze", "bronze"),
    ("in silver", "silver"),
    ("in quarantine", "quarantine"),
    ("commands emitted", "emitted"),
    ("commands receipted", "receipts"),
    ("commands received", "received"),
)
_WINDOW_S = 3.0
_PLAIN_S = 5.0


@dataclass(frozen=True, slots=True)
class Counts:
    """The counts of one moment."""

    published: int = 0
    acknowledged: int = 0
    pulsar: int = 0
    bronze: int = 0
    silver: int = 0
    quarantine: int = 0
    emitted: int = 0
    receipts: int = 0
    received: int = 0

    def output_of(self, target: str) -> int:
        """Return the count that moves when the killed part works again."""
        return {"push": self.receipts, "spark": self.bronze}.get(target, self.pulsar)


class Counters:
    """Reads the counts; a part that does not answer keeps its last one."""

    def __init__(
        self, pulsar: PulsarSettings, topics: Sequence[str], run: RunFolder, fleet: Simulator
    ) -> None:
        self._admin = PulsarAdmin(pulsar, timeout_s=2.0)
        self._fleet = fleet
        self.tables = {name: LogTail(folder) for name, folder in table_folders(run.lakehouse).items()}
        self._readings = topics
        self._commands, self._receipts = (
            pulsar.system_topic(COMMANDS_TOPIC),
            pulsar.system_topic(RECEIPTS_TOPIC),
        )
        self._last = dict.fromkeys((*topics, self._commands, self._receipts), 0)
        self._totals = dict(self._last)

    def close(self) -> None:
        """Close the connection to Pulsar's admin."""
        self._admin.close()

    def read(self) -> Counts:
        """Return the counts of now. Raises the error that ended a device's connection for good."""
        self._fleet.check()
        for topic, last in self._last.items():
            now = self._stored(topic)
            if now is not None:  # Pulsar counts from 0 again when it restarts
                self._totals[topic] += now - last if now >= last else now
                self._last[topic] = now
        return Counts(
            self._fleet.published,
            self._fleet.acknowledged,
            sum(self._totals[topic] for topic in self._readings),
            **{name: tail.advance() for name, tail in self.tables.items()},
            emitted=self._totals[self._commands],
            receipts=self._totals[self._receipts],
            received=self._fleet.commands,
        )

    def _stored(self, topic: str) -> int | None:
        query = f"/{rest_path(topic)}/partitioned-stats?perPartition=false"
        try:
            stats = self._admin.request("GET", query, accept=(404,))
        except (TransientError, RefusedError):
            return None
        return None if stats is None else int(stats.get("msgInCounter", 0))


class Progress:
    """Shows a run: a live table on a terminal, plain lines elsewhere. Use as a context manager."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began = time.monotonic()
        self._samples: deque[tuple[float, Counts]] = deque([(self._began, Counts())])
        self._last_plain = 0.0
        self._live = Live(
            get_renderable=self._table,
            console=console,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def __enter__(self) -> Progress:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def say(self, text: str, style: str = "") -> None:
        """Print an event."""
        elapsed = time.monotonic() - self._began
        self._console.print(Text(f"{elapsed:6.1f} s  ", style="dim") + Text(text, style=style))

    def update(self, counts: Counts) -> None:
        """Show the counts of now."""
        now = time.monotonic()
        self._samples.append((now, counts))
        while len(self._samples) > 2 and now - self._samples[0][0] > _WINDOW_S:
            self._samples.popleft()
        if not self._console.is_terminal and now - self._last_plain >= _PLAIN_S:
            self._last_plain = now
            c = counts
            self.say(
                f"published {c.published:,} ({self._rate('published'):.0f}/s), Pulsar {c.pulsar:,}, "
                f"bronze {c.bronze:,}, silver {c.silver:,}, quarantine {c.quarantine:,}, "
                f"commands {c.emitted:,} emitted, {c.received:,} received"
            )

    def _rate(self, name: str) -> float:
        (t0, first), (t1, last) = self._samples[0], self._samples[-1]
        return float(getattr(last, name) - getattr(first, name)) / max(0.001, t1 - t0)

    def _table(self) -> Table:
        elapsed = time.monotonic() - self._began
        table = Table(box=None, padding=(0, 2, 0, 0), title=f"{elapsed:5.0f} s", title_justify="left")
        table.add_column("")
        table.add_column("so far", justify="right", min_width=8)
        table.add_column("per second", justify="right", min_width=10)
        for label, name in _LINES:
            table.add_row(label, f"{getattr(self._samples[-1][1], name):,}", f"{self._rate(name):,.0f}")
        return table
