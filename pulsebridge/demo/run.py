"""One run: set up, send readings, kill and restart parts, drain, read records, audit, report.

This module decides the order and the time-outs. ``plan`` decides about the kills.
"""

from __future__ import annotations

import json
import threading
import time
from contextlib import closing
from typing import Final

from rich.console import Console
from rich.text import Text

from bridge.errors import EXIT_INTERRUPTED, PulsebridgeError
from bridge.settings import Settings
from bridge.stopping import stopping_on_signals
from pulsebridge.audit.measures import PARTS
from pulsebridge.audit.pulsar import dump, read_live
from pulsebridge.audit.show import show
from pulsebridge.audit.verdict import Verdict
from pulsebridge.demo.plan import Plan, Send
from pulsebridge.demo.progress import Counters, Counts, Progress
from pulsebridge.demo.report import write_report
from pulsebridge.demo.run_folder import RunFolder
from pulsebridge.demo.setup import (
    DemoOptions,
    local_settings,
    make_children,
    plan_run,
    provision,
    write_settings,
)
from pulsebridge.demo.simulator import Simulator
from pulsebridge.local.lifecycle import fetch_all, preflight
from pulsebridge.local.stack import LocalStack
from pulsebridge.output.text import markup
from pulsebridge.processes import Child, stop_all

__all__ = ["Demo", "Interrupted", "run_demo"]

READY_S: Final = 180.0
SPARK_START_S: Final = 180.0
STALL_S: Final = 120.0
"""The drain stops after this time without progress. The audit then names the missing messages."""
RESTARTS: Final = 3
"""Most restarts of a part that stops by itself."""
STOP_S: Final = 90.0
"""Time after which a run that must stop is killed."""
_STEP_S: Final = 0.4
_READY: Final = {"ingest": "subscribed", "spark": "running"}
"""Line that a part logs when it works. The devices wait for it, so that the figures exclude the start."""
_OUTPUTS: Final = {"ingest": "pulsar", "push": "receipted", "spark": "bronze", "pulsar": "pulsar"}
"""The count that increases when a killed part has recovered."""


class Interrupted(Exception):
    """Raised inside a run if the user requested a stop."""


class Demo:
    """One run. Call ``run`` once; ``close`` stops everything that it started."""

    def __init__(self, options: DemoOptions, console: Console, stop: threading.Event) -> None:
        self.options = options
        self.folder = RunFolder(options.out)
        self._console = console
        self.progress = Progress(console)
        self._stop = stop
        self._local = local_settings(options)
        self._stack = LocalStack(self._local)
        self._children: dict[str, Child] = {}
        self._fleet: Simulator | None = None
        self._threads: list[threading.Thread] = []
        self._killed: dict[str, tuple[float, int]] = {}
        """Killed parts without output since: the time of the kill, and the count at that time."""
        self._ended: dict[str, int] = {}
        self._began = time.monotonic()

    def run(self) -> Verdict:
        """Run the demo and return the audit's verdict.

        Raises Interrupted if the user requested a stop, TerminalError or TransientError if a part cannot start.
        """
        plan, devices, sends = plan_run(self.folder, self.options)
        with self.folder.stage("preflight and downloads"):
            preflight(self._local, self.folder.root, self._console)
            fetch_all(self._local, console=self._console)
        self._check_stop()
        settings = write_settings(self.folder, self.options, self._local)
        topics = self._start_servers(settings)
        self._fleet = Simulator(devices, settings.mqtt, self.folder.devices)
        with closing(Counters(settings.pulsar, topics, self.folder, self._fleet)) as counters:
            self._start_parts(self._fleet, sends, counters)
            self._flow(plan, self._fleet, counters)
        self._take_records(settings, self._fleet)
        self.progress.say("auditing: the devices' journals, Pulsar and Delta are compared message by message")
        return self.folder.audit()

    def check(self) -> None:
        """Restart a part that stopped by itself, as a service manager would.

        Raises TransientError if that happens too often, or if a server stopped.
        """
        self._stack.check()
        for name, child in self._children.items():
            if child.ended:
                self._ended[name] = self._ended.get(name, 0) + 1
                if self._ended[name] > RESTARTS:
                    raise child.failure()
                self.progress.say(f"{PARTS[name]} stopped by itself (see {child.log}); restarting it", "yellow")
                self.folder.note("ended", target=name)
                child.start()

    def close(self) -> None:
        """Stop all devices, processes and servers that this run started."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        try:
            if self._fleet is not None:
                self._fleet.close()
        finally:
            stop_all(self._children.values())
            self._stack.stop()

    # --- the start ---

    def _start_servers(self, settings: Settings) -> list[str]:
        self._children = make_children(self.folder, self.options)
        # The JVM of the Spark job starts as slowly as the servers, so they start simultaneously.
        self._children["spark"].start()
        self.progress.say("starting Pulsar, the MQTT broker and the Spark job")
        with self.folder.stage("servers ready"):
            self._stack.start()
        self._check_stop()
        mqtt, pulsar = self._stack.mqtt_url, self._stack.pulsar_url
        self.progress.say(f"MQTT {mqtt} · Pulsar {pulsar} · admin {self._stack.admin_url}")
        with self.folder.stage("topics created"):
            return provision(settings)

    def _start_parts(self, fleet: Simulator, sends: list[Send], counters: Counters) -> None:
        self.progress.say("starting ingest, push and the devices")
        for name in ("ingest", "push"):
            self._children[name].start()
        with self.folder.stage("ingest, Spark and devices ready"):
            fleet.connect()
            for name, line in _READY.items():
                self._children[name].await_log(line, READY_S, check=lambda: self._look(counters))
        replay = threading.Thread(target=fleet.replay, args=(sends, self._stop), name="replay")
        self._threads.append(replay)
        replay.start()
        scale = self.options.scale
        self.progress.say(
            f"{scale.wearables} wearables and {scale.buoys} buoys send {scale.rate:.0f} real readings per second: one "
            "wearable's and one buoy's recording, cut into virtual devices",
            "bold",
        )
        self.progress.say(
            f"your own MQTT devices may publish too: {self._stack.mqtt_host}:{self._stack.mqtt_port}, topic "
            'wearables/NAME/glucose, payload {"id": "NAME-1", "ts": "2026-01-01T12:00:00Z", "glucose": 65}; commands '
            "arrive on devices/NAME/commands"
        )

    # --- the flow ---

    def _flow(self, plan: Plan, fleet: Simulator, counters: Counters) -> None:
        due, first = list(plan.kills), {"readings": time.monotonic()}
        moved, last = time.monotonic(), Counts()
        while True:
            counts, now = self._look(counters), time.monotonic()
            if counts["received"]:
                first.setdefault("commands", now)
            if counts["bronze"] and "rows" not in first:
                first["rows"] = now
                self.folder.note("stage", name="time to first row", s=round(now - self._began, 1))
                self.progress.say("the first rows are in bronze", "green")
            for kill in [k for k in due if k.after in first and now >= first[k.after] + k.at_s]:
                due.remove(kill)
                self._strike(kill.target, counters)
            self._see_recoveries(counts)
            if counts != last:
                moved, last = now, counts
            if not due and fleet.sent_all and _drained(plan, counts):
                self.progress.say(
                    "every reading is in measurements or quarantine, every command at its device", "green"
                )
                return
            spark_starts = "rows" not in first or "spark" in self._killed
            if now - moved > (SPARK_START_S if spark_starts else STALL_S):
                self.progress.say("no progress any more; continuing with the audit", "red")
                return

    def _look(self, counters: Counters) -> Counts:
        """Check everything once, and wait for the rest of the step."""
        began = time.monotonic()
        self._check_stop()
        self.check()
        counts = counters.read()
        self.progress.update(counts)
        self._stop.wait(max(0.0, _STEP_S - (time.monotonic() - began)))
        return counts

    def _check_stop(self) -> None:
        if self._stop.is_set():
            raise Interrupted

    def _strike(self, target: str, counters: Counters) -> None:
        title = PARTS[target]
        self.progress.say(f"kill -9 {title}", "bold red")
        self.folder.note("kill", target=target)
        began = time.monotonic()
        if target == "pulsar":
            self._stack.kill("pulsar")
        else:
            killed = self._children[target].kill()
            self.progress.say(f"{killed} process{'es' if killed > 1 else ''} killed; restarting {title}")
        self._killed[target] = (began, counters.read()[_OUTPUTS[target]])
        self.folder.note("restarted", target=target)
        if target == "pulsar":
            self._stack.restart("pulsar")
        else:
            self._children[target].start()

    def _see_recoveries(self, counts: Counts) -> None:
        for target, (began, count) in list(self._killed.items()):
            if counts[_OUTPUTS[target]] > count:
                del self._killed[target]
                self.folder.note("recovered", target=target)
                took = time.monotonic() - began
                self.progress.say(f"{PARTS[target]} has recovered: its output increases after {took:.1f} s", "green")

    # --- the end ---

    def _take_records(self, settings: Settings, fleet: Simulator) -> None:
        self.progress.say("reading all of Pulsar with the bare client")
        parts = self._children
        if not self.options.keep:
            for child in parts.values():
                child.ask()
            for name in ("ingest", "push"):  # they write to Pulsar and to the devices
                parts[name].wait()
            fleet.close()
        dump(read_live(settings.pulsar), self.folder.dump_file)
        if not self.options.keep:
            parts["spark"].wait()
            # Its data is not needed any more, and the audit need not wait for its removal.
            ending = threading.Thread(target=self._stack.stop, name="end-stack")
            self._threads.append(ending)
            ending.start()

    def conclude(self, verdict: Verdict) -> None:
        """Write the verdict and the report, print the verdict and the next commands."""
        run, keep, console = self.folder, self.options.keep, self._console
        run.audit_file.write_text(json.dumps(verdict.as_dict(), indent=2, ensure_ascii=False), encoding="utf-8")
        write_report(run, verdict)
        console.print()
        show(verdict, console)
        took = time.monotonic() - self._began
        console.print(Text(f"The run took {took:.0f} s; its folder is {run.root}.", style="dim"))
        console.print(Text("Next:", style="bold"))
        following = {
            f"pulsebridge audit {run.root}{' --live' if keep else ''}": "repeat the audit of this run",
            f"python -m webbrowser file://{run.report_file}": "open the report",
            "pulsebridge demo --chaos pulsar --keep": "kill Pulsar as well, and keep everything running",
        }
        for command, why in following.items():
            console.print(Text(f"  {command}", style="cyan"), soft_wrap=True)
            console.print(Text(f"      {why}", style="dim"))


def _drained(plan: Plan, counts: Counts) -> bool:
    return (
        counts["acknowledged"] >= plan.readings + plan.faults
        and counts["measurements"] >= plan.readings
        and counts["quarantine"] >= plan.faults
        and min(counts["received"], counts["receipted"], counts["alerts"]) >= plan.commands
    )


def run_demo(options: DemoOptions) -> int:
    """Run a demo and return its exit code. It is 0 if the audit passed, 1 if not, 130 if interrupted.

    Raises TerminalError or TransientError if a part cannot start. Then everything is stopped.
    """
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = max(console.width, 100)
    stop = threading.Event()
    demo = Demo(options, console, stop)
    with stopping_on_signals("demo", stop.set, STOP_S):
        try:
            verdict = demo.run()
            demo.conclude(verdict)
            if options.keep:
                console.print("[bold]Everything is still running; Ctrl-C stops it.[/bold]")
                while not stop.wait(1.0):
                    demo.check()
        except Interrupted:
            console.print("stopped: all processes have ended")
            return EXIT_INTERRUPTED
        except PulsebridgeError:
            console.print(f"[red]the demo could not continue; its logs are in {markup(str(demo.folder.logs))}[/red]")
            raise
        finally:
            demo.close()
    return 0 if verdict.passed else 1
