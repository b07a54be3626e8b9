"""Shows a run while it goes on: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections import deque
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from pulsebridge.demo.counters import Counts

__all__ = ["Progress"]

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


class Progress:
    """The display of one run. ``say`` adds an event, ``update`` the counts. Use as a context manager."""

    def __init__(self, console: Console, expected: int) -> None:
        self.console = console
        self._expected = expected
        self._began = time.monotonic()
        self._samples: deque[tuple[float, Counts]] = deque()
        self._counts = Counts()
        self._last_plain = 0.0
        self._live: Live | None = None

    @property
    def elapsed_s(self) -> float:
        """Seconds since the display was made: the run's own clock."""
        return time.monotonic() - self._began

    def __enter__(self) -> Progress:
        if self.console.is_terminal:
            self._live = Live(
                get_renderable=self._render,
                console=self.console,
                refresh_per_second=4,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def say(self, text: str, style: str = "") -> None:
        """Show an event: at once as a line, and on a terminal beside the table too."""
        at = self.elapsed_s
        self.console.print(Text(f"{at:6.1f} s  ", style="dim") + Text(text, style=style))

    def update(self, counts: Counts) -> None:
        """Show the counts of now."""
        now = time.monotonic()
        self._counts = counts
        self._samples.append((now, counts))
        while len(self._samples) > 2 and now - self._samples[0][0] > _WINDOW_S:
            self._samples.popleft()
        if self._live is None and now - self._last_plain >= _PLAIN_S:
            self._last_plain = now
            self.console.print(self._plain(), highlight=False)

    def _rate(self, name: str) -> float:
        if len(self._samples) < 2:
            return 0.0
        (t0, first), (t1, last) = self._samples[0], self._samples[-1]
        return float(getattr(last, name) - getattr(first, name)) / max(0.001, t1 - t0)

    def _plain(self) -> str:
        c = self._counts
        return (
            f"{self.elapsed_s:6.1f} s  published {c.published:,} ({self._rate('published'):.0f}/s), Pulsar {c.pulsar:,}, "
            f"bronze {c.bronze:,}, silver {c.silver:,}, quarantine {c.quarantine:,}, "
            f"commands {c.emitted:,} emitted, {c.received:,} received"
        )

    def _render(self) -> RenderableType:
        table = Table(box=None, padding=(0, 2, 0, 0), title=f"{self.elapsed_s:5.0f} s", title_justify="left")
        table.add_column("")
        table.add_column("so far", justify="right", min_width=8)
        table.add_column("per second", justify="right", min_width=10)
        table.add_column("", min_width=24)
        for label, name in _LINES:
            value = int(getattr(self._counts, name))
            bar = (
                self._bar(value)
                if name in ("published", "acknowledged", "pulsar", "bronze", "silver")
                else Text("")
            )
            table.add_row(label, f"{value:,}", f"{self._rate(name):,.0f}", bar)
        return Group(Text(""), table)

    def _bar(self, value: int) -> Text:
        full = round(24 * min(1.0, value / max(1, self._expected)))
        return Text("━" * full, style="green") + Text("━" * (24 - full), style="dim")
