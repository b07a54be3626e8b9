"""The state that the pages show: read again and again by one thread, replaced as a whole.

A source that fails keeps its former rows, and the pages show why. A read never overlaps another, and the thread rests
four times as long as a read takes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

import structlog

from bridge.errors import PulsebridgeError, UnreachableError
from bridge.inspect.devices.status import PushStatus, look_at_push
from bridge.inspect.instances import Instances, look_at_instances
from bridge.inspect.sessions import Sessions, look_at_sessions
from bridge.pulsar.client import PulsarClient
from bridge.settings import Settings
from pulsebridge.ui.endpoints import Endpoint, Endpoints, checkpointed, endpoint_urls, link_rows, query_rows
from pulsebridge.ui.lakehouse import Lakehouse, Tables, lakehouse_problem
from pulsebridge.ui.rows import SearchedRows, clip, searched
from pulsebridge.ui.topics import Letters, Queues, Receipts, patient, read_queues

__all__ = ["Device", "Snapshot", "Snapshots", "merged"]

log = structlog.get_logger("ui")

_REST: Final = 4.0

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Device:
    """One row of the list of devices. Times are in µs since the epoch, 0 if they are not known."""

    name: str
    presence: str = "unknown"
    seen_us: int = 0
    link: str = ""
    pending: int = 0
    parked: int = 0
    reading_us: int = 0
    reading: str = ""
    receipt: str = ""
    receipt_us: int = 0

    @property
    def searched(self) -> str:
        """The text by which it is found."""
        return f"{self.name}\n{self.presence}\n{self.link}\n{'pending' if self.pending else ''}\n{self.receipt}"


@dataclass(frozen=True)
class Snapshot:
    """The state at one time."""

    at_us: int = 0
    """Time of the last complete read, 0 before the first."""
    devices: SearchedRows[Device] = field(default_factory=lambda: SearchedRows([], []))
    by_name: dict[str, Device] = field(default_factory=dict)
    totals: dict[str, int] = field(default_factory=lambda: Queues().totals)
    alerts: SearchedRows[Row] = field(default_factory=lambda: SearchedRows([], []))
    letters: SearchedRows[Row] = field(default_factory=lambda: SearchedRows([], []))
    verdicts: list[Row] = field(default_factory=list)
    missing_tables: tuple[str, ...] = ()
    endpoints: list[Endpoint] = field(default_factory=list)
    links: list[Row] = field(default_factory=list)
    queries: list[Row] = field(default_factory=list)
    instances: Instances = field(default_factory=Instances)
    sessions: Sessions = field(default_factory=Sessions)
    push: PushStatus = field(default_factory=PushStatus)
    problems: dict[str, str] = field(default_factory=dict)
    """Why the data of a source is missing or old."""


def merged(queues: Queues, tables: Tables, receipts: dict[str, tuple[str, int]], most: int) -> list[Device]:
    """Return the devices of Pulsar and of the tables, at most ``most``: the most pending commands first, then by name."""
    found = []
    for one, presence in queues.devices:
        reading_us, reading = tables.latest.get(one.device, (0, ""))
        state, at_us = receipts.get(one.device, ("", 0))
        found.append(
            Device(
                one.device, presence, one.seen_us, clip(one.link, 60), one.pending, one.parked, reading_us, reading,
                clip(state, 40), at_us,
            )
        )  # fmt: skip
    known = {one.name for one in found}
    for name in sorted(tables.latest.keys() - known)[: max(0, most - len(found))]:
        reading_us, reading = tables.latest[name]
        state, at_us = receipts.get(name, ("", 0))
        found.append(Device(name, reading_us=reading_us, reading=reading, receipt=clip(state, 40), receipt_us=at_us))
    return sorted(found, key=lambda one: (-one.pending, one.name))


class Snapshots:
    """Makes snapshots on a thread, from ``start`` to ``stop``. Any thread reads ``current``."""

    def __init__(self, settings: Settings) -> None:
        self._settings = patient(settings)
        self._interval_s = float(settings.ui.refresh)
        self._endpoints = Endpoints(endpoint_urls(settings))
        self._receipts = Receipts(settings.ui.max_devices)
        self._letters = Letters()
        self._lakehouse: Lakehouse | None = None
        self._tables = Tables()
        self._queues = Queues()
        self._problems: dict[str, str] = {}
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ui-snapshots", daemon=True)
        self.current = Snapshot()

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Request the end."""
        self._stop.set()
        self._wake.set()

    def await_end(self, timeout_s: float) -> None:
        """Wait for the end of a read; it may wait for a server that does not answer."""
        self._thread.join(timeout_s)

    def refresh_soon(self) -> None:
        """Begin the next read at once, because a page has changed something."""
        self._wake.set()

    def read(self) -> None:
        """Read all sources, and replace the snapshot."""
        self._problems = {}
        self._attempt("tables", self._read_tables)
        self._attempt("endpoints", self._read_endpoints)
        self._attempt("Pulsar", self._read_pulsar)
        devices = merged(self._queues, self._tables, self._receipts.last, self._settings.ui.max_devices)
        self.current = replace(
            self.current,
            at_us=time.time_ns() // 1000,
            devices=SearchedRows(devices, [one.searched for one in devices]),
            by_name={one.name: one for one in devices},
            totals={**self._queues.totals, "devices": len(devices)},
            problems=self._problems,
        )

    def _run(self) -> None:
        while not self._stop.is_set():
            began = time.monotonic()
            self.read()
            rest = max(self._interval_s, _REST * (time.monotonic() - began))
            if self._wake.wait(rest):
                self._wake.clear()
        self._endpoints.close()

    def _attempt(self, source: str, read: Callable[[], None]) -> None:
        try:
            read()
        except PulsebridgeError as e:
            self._problems[source] = clip(e, 400)
        except Exception as e:  # an observer, whose errors must not end it
            self._problems[source] = clip(f"{type(e).__name__}: {e}", 400)
            log.warning("a read of the live view failed. Action: report it", source=source, exc_info=True, shown=1)

    def _read_tables(self) -> None:
        if problem := lakehouse_problem(self._settings.streaming):
            self._problems["tables"] = problem
            self._lakehouse = None
            return
        if self._lakehouse is None:
            self._lakehouse = Lakehouse(self._settings.streaming, self._settings.ui.max_devices)
        self._tables = self._lakehouse.read()
        alerts = self._tables.alerts
        self.current = replace(
            self.current,
            alerts=searched(
                [{**row, "is": "open" if row["open"] else "past"} for row in alerts],
                *("rule", "state", "device", "table", "message", "is"),
            ),
            verdicts=self._tables.verdicts,
            missing_tables=self._tables.missing,
        )

    def _read_endpoints(self) -> None:
        found = self._endpoints.read()
        before = self.current.endpoints
        queries = query_rows(found) or checkpointed(self._settings.streaming.root)
        self.current = replace(self.current, endpoints=found, links=link_rows(found, before), queries=queries)

    def _read_pulsar(self) -> None:
        settings = self._settings
        instances = look_at_instances(settings)
        self.current = replace(self.current, instances=instances)
        if instances.problem and not instances.records:
            raise UnreachableError(instances.problem)
        push, sessions = look_at_push(settings), look_at_sessions(settings, instances)
        self.current = replace(self.current, push=push, sessions=sessions)
        with PulsarClient(settings.pulsar) as client:
            self._receipts.read(client)
            letters = self._letters.read(client)
        found = searched(
            [{**row, "is": "replayed" if row["replayed"] else "waiting"} for row in letters],
            *("id", "device", "topic", "reason", "is"),
        )
        self.current = replace(self.current, letters=found)
        self._queues = read_queues(settings)
        if self._queues.cut:
            self._problems["commands"] = "more commands wait than the live view reads: the counts are too small"
