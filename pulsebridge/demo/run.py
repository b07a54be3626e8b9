"""One demo: set up, let readings flow, kill and restart parts, drain, take the records, audit, report.

It decides the order and when to stop waiting; what is killed when stands in the plan, what is right in the audit.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from rich.console import Console

from bridge.errors import TransientError
from bridge.local.lifecycle import fetch_all, preflight
from bridge.local.stack import LocalStack
from bridge.settings import LocalSettings, Settings
from pulsebridge.audit.pulsar_record import DUMP_FILE, dump, read_live
from pulsebridge.audit.verdict import Verdict, audit_run
from pulsebridge.demo.counters import Counters, Counts
from pulsebridge.demo.fleet import read_status
from pulsebridge.demo.options import DemoOptions
from pulsebridge.demo.plan import Kill, Plan
from pulsebridge.demo.progress import Progress
from pulsebridge.demo.run_folder import RunFolder
from pulsebridge.demo.servers import Addresses
from pulsebridge.demo.setup import (
    Stages,
    addresses_of,
    local_settings,
    make_children,
    plan_run,
    provision,
    write_settings,
)
from pulsebridge.processes import Child, stop_all

__all__ = ["Demo", "Interrupted"]

READY_S: Final = 180.0
SPARK_START_S: Final = 180.0
STALL_S: Final = 120.0
"""The drain is given up when nothing moved for so long: the audit then says what is missing."""
RESTARTS: Final = 3
"""How often a part that ends by itself is started again."""
_STEP_S: Final = 0.4
_TITLES: Final = {
    "ingest": "the ingest worker",
    "push": "the push worker",
    "spark": "the Spark driver",
    "pulsar": "Pulsar",
}


class Interrupted(Exception):
    """Raised inside a run when the user asked it to stop."""


class Demo:
    """One run. Call ``run`` once; ``close`` ends everything that it started."""

    def __init__(self, options: DemoOptions, console: Console, stop: threading.Event) -> None:
        self.options = options
        self.folder = RunFolder(options.out)
        self.stages = Stages(self.folder)
        self.addresses: Addresses | None = None
        self.children: dict[str, Child] = {}
        self._console = console
        self._stop = stop
        self._stack: LocalStack | None = None
        self._ending: threading.Thread | None = None
        self._waiting: dict[str, tuple[float, int]] = {}
        """Killed parts whose output has not moved yet: when they were killed, and their count at the restart."""
        self._ended: dict[str, int] = {}
        self._counts = Counts()
        self._began = time.monotonic()

    def run(self) -> Verdict:
        """Run the demo and return the audit's verdict.

        Raises Interrupted when the user asked to stop, TerminalError or TransientError when a part cannot start.
        """
        plan = plan_run(self.folder, self.options)
        local = self._prepare()
        with Progress(self._console, plan.readings) as progress:
            settings, topics = self._set_up(local, progress)
            tables = {name: self.folder.lakehouse / name for name in ("bronze", "silver", "quarantine")}
            counters = Counters(settings.pulsar, topics, self.folder.devices, tables)
            try:
                self._start_parts(progress, counters)
                self._flow(plan, progress, counters)
            finally:
                counters.close()
            self._take_records(settings, progress)
            progress.say("auditing: the devices' journals, Pulsar and Delta are joined record by record")
            return audit_run(self.folder)

    def check_servers(self) -> None:
        """Raise TransientError that names a server of this run's own which ended by itself."""
        if self._stack is not None:
            self._stack.check()

    def close(self, *, at_once: bool = False) -> None:
        """End all processes and servers that this run started."""
        if at_once:
            for child in self.children.values():
                child.kill()
        else:
            stop_all(self.children.values())
        self._end_stack()
        if self._ending is not None:
            self._ending.join()

    # --- setting up ---

    def _prepare(self) -> LocalSettings | None:
        """Show what is needed and fetch what is missing; None when the servers run already."""
        if self.options.servers is not None:
            return None
        local = local_settings(self.options)
        with self.stages.stage("preflight and downloads"):
            preflight(local, self.folder.root, self._console)
            fetch_all(local, console=self._console)
        self._check_stop()
        return local

    def _set_up(self, local: LocalSettings | None, progress: Progress) -> tuple[Settings, list[str]]:
        self.addresses = a = self.options.servers if local is None else addresses_of(local)
        assert a is not None
        settings = write_settings(self.folder, self.options, a)
        self.children = make_children(self.folder, self.options)
        # The JVM of the Spark job takes as long as the servers, so they start beside each other.
        self.children["spark"].start()
        if local is not None:
            progress.say("starting Pulsar, the MQTT broker, and beside them the Spark job")
            self._stack = LocalStack(local)
            with self.stages.stage("servers ready"):
                self._stack.start()
            for name in ("pulsar", "mqtt"):
                self.stages.note(f"  {name}", self._stack.stages.get(name, 0.0))
            self._check_stop()
        progress.say(f"MQTT {a.mqtt_host}:{a.mqtt_port} · Pulsar {a.pulsar_url} · admin {a.admin_url}")
        with self.stages.stage("topics created"):
            topics = provision(settings)
        return settings, topics

    def _start_parts(self, progress: Progress, counters: Counters) -> None:
        progress.say("starting ingest, push and the devices")
        began = time.monotonic()
        for name in ("ingest", "fleet", "push"):
            self.children[name].start()
        self._wait(
            lambda: self._logged("ingest", "subscribed"), "ingest is not subscribed", progress, counters
        )
        self.stages.note("ingest ready", time.monotonic() - began)
        devices = self.options.scale.wearables + self.options.scale.buoys
        self._wait(
            lambda: read_status(self.folder.devices).devices >= devices,
            "the devices are not connected",
            progress,
            counters,
        )
        self.stages.note("devices connected", time.monotonic() - began)
        progress.say("ingest is subscribed, the devices are connected; the Spark job is on its way")
        self.folder.go_file.touch()
        self._announce(progress)

    def _announce(self, progress: Progress) -> None:
        scale, a = self.options.scale, self.addresses
        assert a is not None
        progress.say(
            f"{scale.wearables} wearables and {scale.buoys} buoys send {scale.rate:.0f} real readings per second: one "
            "wearable's and one buoy's recording, cut into virtual devices",
            "bold",
        )
        progress.say(
            f"your own MQTT devices may publish too: {a.mqtt_host}:{a.mqtt_port}, topic wearables/NAME/glucose, payload "
            '{"id": "NAME-1", "ts": "2026-01-01T12:00:00Z", "glucose": 65}; commands come back on devices/NAME/commands'
        )

    def _logged(self, name: str, word: str) -> bool:
        log = self.children[name].log
        return log.exists() and word in log.read_text(encoding="utf-8", errors="replace")

    def _wait(self, ready: Callable[[], bool], what: str, progress: Progress, counters: Counters) -> None:
        deadline = time.monotonic() + READY_S
        while not ready():
            self._check_stop()
            self._check_children(progress)
            if time.monotonic() > deadline:
                raise TransientError(
                    f"{what} after {READY_S:.0f} s", remedy=f"see the logs in {self.folder.logs}"
                )
            self._sample(progress, counters)

    # --- the flow ---

    def _flow(self, plan: Plan, progress: Progress, counters: Counters) -> None:
        due, first = list(plan.kills), {"readings": time.monotonic()}
        moved, last = time.monotonic(), Counts()
        while True:
            self._check_stop()
            self._check_children(progress)
            counts, now = self._sample(progress, counters), time.monotonic()
            if counts.received:
                first.setdefault("commands", now)
            if counters.first_row_us and "rows" not in first:
                first["rows"] = now
                self.stages.note(
                    "time to first row", now - self._began - (time.time() - counters.first_row_us / 1e6)
                )
                progress.say("the first rows are in bronze", "green")
            for kill in [k for k in due if k.after in first and now >= first[k.after] + k.at_s]:
                due.remove(kill)
                self._strike(kill, progress, counters)
            self._see_recoveries(counts, progress)
            if counts != last:
                moved, last = now, counts
            if not due and _drained(plan, counts):
                progress.say("every reading is in silver or quarantine, every command at its device", "green")
                return
            spark_starts = "rows" not in first or "spark" in self._waiting
            if now - moved > (SPARK_START_S if spark_starts else STALL_S):
                progress.say("nothing moves any more: going on to the audit as it is", "red")
                return

    def _strike(self, kill: Kill, progress: Progress, counters: Counters) -> None:
        title = _TITLES[kill.target]
        progress.say(f"kill -9 {title}", "bold red")
        self.folder.append(self.folder.events_file, e="kill", us=time.time_ns() // 1000, target=kill.target)
        began = time.monotonic()
        if kill.target == "pulsar" and self._stack is not None:
            self._stack.kill("pulsar")
        else:
            killed = self.children[kill.target].kill()
            progress.say(f"{killed} process{'es' if killed > 1 else ''} gone; starting {title} again")
        self._waiting[kill.target] = (began, counters.read().output_of(kill.target))
        us = time.time_ns() // 1000
        self.folder.append(self.folder.events_file, e="restarted", us=us, target=kill.target)
        if kill.target == "pulsar" and self._stack is not None:
            self._stack.restart("pulsar")
        else:
            self.children[kill.target].start()

    def _see_recoveries(self, counts: Counts, progress: Progress) -> None:
        for target, (began, count) in list(self._waiting.items()):
            if counts.output_of(target) > count:
                del self._waiting[target]
                us = time.time_ns() // 1000
                self.folder.append(self.folder.events_file, e="recovered", us=us, target=target)
                progress.say(
                    f"{_TITLES[target]} is back: its output moves again after {time.monotonic() - began:.1f} s",
                    "green",
                )

    def _sample(self, progress: Progress, counters: Counters) -> Counts:
        began = time.monotonic()
        self._counts = counters.read()
        self.folder.append(self.folder.progress_file, us=time.time_ns() // 1000, **self._counts.as_dict())
        progress.update(self._counts)
        self._stop.wait(max(0.0, _STEP_S - (time.monotonic() - began)))
        return self._counts

    def _check_stop(self) -> None:
        if self._stop.is_set():
            raise Interrupted

    def _check_children(self, progress: Progress) -> None:
        """Restart a part that ended by itself, as a service manager would; give up when it does so too often."""
        self.check_servers()
        for name, child in self.children.items():
            if not child.ended:
                continue
            self._ended[name] = self._ended.get(name, 0) + 1
            if name not in _TITLES or self._ended[name] > RESTARTS:
                raise child.failure()
            progress.say(f"{_TITLES[name]} ended by itself (see {child.log}); starting it again", "yellow")
            self.folder.append(self.folder.events_file, e="ended", us=time.time_ns() // 1000, target=name)
            child.start()

    # --- the end ---

    def _take_records(self, settings: Settings, progress: Progress) -> None:
        progress.say("reading all of Pulsar with the bare client")
        parts = self.children
        if not self.options.keep:
            for child in parts.values():
                child.ask()
            for name in ("ingest", "push", "fleet"):  # what writes into Pulsar and the journals
                parts[name].wait()
        dump(read_live(settings.pulsar), self.folder.root / DUMP_FILE)
        if not self.options.keep:
            parts["spark"].wait()
            # Its data is not needed any more; removing it need not keep the audit waiting.
            self._ending = threading.Thread(target=self._end_stack, name="end-stack")
            self._ending.start()

    def _end_stack(self) -> None:
        stack, self._stack = self._stack, None
        if stack is not None:
            stack.stop()


def _drained(plan: Plan, counts: Counts) -> bool:
    return (
        counts.sent_all
        and counts.acknowledged >= plan.readings + plan.faults
        and counts.silver >= plan.readings
        and counts.quarantine >= plan.faults
        and counts.received >= plan.commands
        and counts.receipts >= plan.commands
    )
