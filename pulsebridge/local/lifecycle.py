"""Steps of ``up``, ``down`` and ``status``: requirements, downloads, and start and stop of the supervisor."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import psutil
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn
from rich.table import Table

from bridge.errors import ConfigError, MissingExtraError, TerminalError, TransientError
from bridge.settings.local import LocalSettings
from bridge.settings.units import Duration
from bridge.user_folders import default_cache_dir, default_stack_dir
from pulsebridge.downloads import distributions
from pulsebridge.downloads.distributions import Distribution
from pulsebridge.downloads.preflight import Finding, check_all, find_java
from pulsebridge.downloads.spark_jars import delta_jars, delta_jars_present
from pulsebridge.local.ports import refuse_used
from pulsebridge.local.state import StackState, read_state
from pulsebridge.output.text import markup

__all__ = ["bring_down", "bring_up", "fetch_all", "hours", "preflight", "show_status"]

_STOP_S = 40.0
_DELTA_BYTES = 13_400_000


def hours(text: str) -> float:
    """Return the hours of ``90m``, ``12h`` or ``2d``. Raises ConfigError for any other text."""
    with suppress(ValueError):
        if found := Duration(text, bare="h"):
            return found / 3600
    raise ConfigError(f"--for {text}: not a duration", remedy="give 90m, 12h or 2d")


# --- up ---


def bring_up(settings: LocalSettings, *, as_json: bool = False) -> None:
    """Start the servers under a supervisor and wait until they are ready; report it if they already run.

    Raises TerminalError with the missing requirements, TransientError if a download or a server failed.
    """
    console = Console(stderr=as_json)
    folder = _folder(settings)
    state = read_state(folder)
    if state is not None and state.running and state.phase == "ready":
        if as_json:
            _print_json(state)
        else:
            console.print("Already up.")
            _show_addresses(console, state)
        return
    preflight(settings, folder, console)
    refuse_used(settings)
    fetch_all(settings, console=console)
    state = _await_ready(_spawn(settings, folder), folder, console)
    if as_json:
        _print_json(state)
        return
    stages = ", ".join(f"{name} {state.stages[name]:.1f} s" for name in ("pulsar", "mqtt") if name in state.stages)
    console.print(f"[green]Up.[/] {stages}")
    _show_addresses(console, state)
    console.print(f"Data: {folder}. {_end_of(state, folder)}", soft_wrap=True)


def preflight(settings: LocalSettings, folder: Path, console: Console) -> None:
    """Print the requirements, what the machine has, and the downloads with their sizes and the cache.

    ``folder`` is the folder of the servers' data. Raises TerminalError with the missing requirements.
    """
    cache = settings.cache_dir or default_cache_dir()
    findings = check_all([folder, cache])
    console.print(_table(findings, settings, cache))
    missing = [f for f in findings if not f.ok]
    if missing:
        raise TerminalError(
            "; ".join(f"{f.name}: needs {f.needed}, found {f.found}" for f in missing),
            remedy="; ".join(f.remedy for f in missing),
        )


def _wanted(settings: LocalSettings) -> list[Distribution]:
    wanted = []
    if settings.pulsar_url is None:
        wanted.append(distributions.PULSAR)
    if settings.mqtt_url is None and settings.mqtt_server == "artemis":
        wanted.append(distributions.ARTEMIS)
    return wanted


def _delta_absent(cache: Path) -> bool:
    try:
        return not delta_jars_present(cache)
    except MissingExtraError:
        return False  # without Spark, its jars are not needed


def _table(findings: list[Finding], settings: LocalSettings, cache: Path) -> Table:
    table = Table(title="Requirements of this machine", title_justify="left")
    for column in ("", "needed", "found", ""):
        table.add_column(column)
    for f in findings:
        table.add_row(f.name, f.needed, f.found, "[green]ok[/]" if f.ok else f"[red]missing[/]: {f.remedy}")
    for d in _wanted(settings):
        absent = d in distributions.missing([d], cache)
        found = "to download" if absent else "in the cache"
        note = f"[yellow]{d.size / 1e6:.0f} MB[/]" if absent else "[green]ok[/]"
        table.add_row(d.title, d.artifact.version, f"{found}, {cache}", note)
    if _delta_absent(cache):
        table.add_row(
            "Delta Lake's jars",
            "for Spark",
            f"to download, {cache}",
            f"[yellow]{_DELTA_BYTES / 1e6:.0f} MB[/]",
        )
    return table


def fetch_all(settings: LocalSettings, *, console: Console | None = None) -> None:
    """Download at once the missing servers, and Delta's jars if Spark is installed.

    Shows a bar for each download on a terminal. Raises TerminalError or TransientError, see ``distributions``.
    """
    cache = settings.cache_dir or default_cache_dir()
    wanted, delta = _wanted(settings), _delta_absent(cache)
    absent = distributions.missing(wanted, cache)
    java, _ = find_java()
    if (not absent and not delta) or java is None:
        return
    if settings.offline:  # raises an error with the missing servers; Spark itself reports missing jars
        distributions.ensure(wanted, cache=cache, java=java.home, offline=True)
        return
    failures: list[BaseException] = []

    def jars() -> None:
        try:
            delta_jars(cache, java=java.home)
        except (TerminalError, TransientError) as e:
            failures.append(e)

    with _bars(console or Console()) as bars:
        tasks: dict[str, TaskID] = {d.title: bars.add_task(d.title, total=d.size) for d in absent}
        download = threading.Thread(target=jars, name="delta-jars")
        if delta:
            task = bars.add_task("Delta Lake's jars", total=None)
            download.start()
        distributions.ensure(
            wanted,
            cache=cache,
            java=java.home,
            progress=lambda title, done, _: bars.update(tasks[title], completed=done),
        )
        if download.ident is not None:
            download.join()
            bars.update(task, total=_DELTA_BYTES, completed=_DELTA_BYTES)
    if failures:
        raise failures[0]


def _bars(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description:<18}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        console=console,
    )


def _spawn(settings: LocalSettings, folder: Path) -> subprocess.Popen[bytes]:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "supervisor.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "pulsebridge.local.supervisor", str(folder)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        )
    assert process.stdin is not None
    process.stdin.write(settings.model_dump_json().encode())
    process.stdin.close()
    return process


def _await_ready(supervisor: subprocess.Popen[bytes], folder: Path, console: Console) -> StackState:
    try:
        with console.status("starting the servers") as shown:
            while True:
                state = read_state(folder)
                mine = state is not None and state.supervisor.pid == supervisor.pid
                if state is not None and mine and state.phase == "ready":
                    return state
                if supervisor.poll() is not None:
                    break
                if state is not None and mine and state.message:
                    shown.update(state.message)
                time.sleep(0.1)
    except KeyboardInterrupt:
        supervisor.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            supervisor.wait(_STOP_S)
        raise
    state = read_state(folder)
    if state is not None and state.supervisor.pid == supervisor.pid and state.phase == "failed":
        raise TransientError(state.message)
    if state is not None and state.running:
        raise TransientError(f"another `up` starts or stops servers in {folder}", remedy="see pulsebridge status")
    raise TransientError(
        f"the supervisor ended with code {supervisor.returncode}", remedy=f"see {folder / 'supervisor.log'}"
    )


# --- down ---


def bring_down(settings: LocalSettings, *, delete_data: bool = False) -> None:
    """Stop the supervised servers in any state. Does nothing if none runs."""
    console = Console()
    folder = _folder(settings)
    state = read_state(folder)
    processes = (
        [p for p in (state.supervisor.process(), *(s.process() for s in state.servers.values())) if p] if state else []
    )
    if processes:
        _end(processes)
        console.print("Down.")
    else:
        console.print("Nothing is running.")
    if delete_data and folder.is_dir():
        shutil.rmtree(folder)
        console.print(f"Deleted {folder}", soft_wrap=True)


def _end(processes: list[psutil.Process]) -> None:
    # The first is the supervisor, which stops its servers; the others are left only if it was killed.
    for process in processes[:1]:
        with suppress(psutil.NoSuchProcess):
            process.terminate()
    _, alive = psutil.wait_procs(processes, timeout=_STOP_S)
    for process in alive:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(alive, timeout=5)


# --- status ---


def show_status(settings: LocalSettings, *, as_json: bool = False, more: Mapping[str, object] | None = None) -> bool:
    """Print the state of the supervised servers, in JSON with ``more``. Return whether all of them run."""
    state = read_state(_folder(settings))
    up = state is not None and state.running and state.phase == "ready"
    alive = {name: state.servers[name].process() is not None for name in state.servers} if state and up else {}
    if as_json:
        body = {"up": up and all(alive.values()), "data_dir": str(_folder(settings))}
        if state is not None:
            body |= asdict(state) | {"alive": alive}
        sys.stdout.write(json.dumps(body | dict(more or {}), indent=2) + "\n")
    elif state is not None and state.phase == "failed":
        Console().print("\n".join(map(markup, f"Down: {state.message}".split("\n"))), soft_wrap=True)
    elif state is None or not up:
        phase = "starting" if state is not None and state.running else "down"
        Console().print(f"{phase.capitalize()}. Start with: pulsebridge up" if phase == "down" else "Starting.")
    else:
        _show_state(Console(), state, alive, _folder(settings))
    return bool(up and all(alive.values()))


def _show_state(console: Console, state: StackState, alive: dict[str, bool], folder: Path) -> None:
    table = Table(title="Local servers", title_justify="left")
    for column in ("", "address", "pid", "memory", "state"):
        table.add_column(column)
    addresses = {"pulsar": f"{state.pulsar_url}\n{state.admin_url}", "mqtt": state.mqtt_url}
    for name, address in addresses.items():
        known = state.servers.get(name)
        process = known.process() if known else None
        memory = f"{process.memory_info().rss / 2**20:.0f} MiB" if process else ""
        word = "given" if known is None else "[green]runs[/]" if alive.get(name) else "[red]gone[/]"
        table.add_row(
            f"{name} ({state.mqtt_server})" if name == "mqtt" else name,
            address,
            str(known.pid) if known else "",
            memory,
            word,
        )
    console.print(table)
    fsync = f"Fsync is {'on' if state.fsync else 'off'}."
    console.print(f"Up since {_clock(state.since)}. {fsync} {_end_of(state, folder)}", soft_wrap=True)
    if not all(alive.values()):
        console.print(
            f"A server has ended: run {_down(folder)}, then pulsebridge up again. Its log: "
            + ", ".join(state.logs[n] for n, ok in alive.items() if not ok),
            soft_wrap=True,
        )


# --- shared ---


def _folder(settings: LocalSettings) -> Path:
    assert settings.data_dir is not None
    return settings.data_dir.absolute()


def _down(folder: Path) -> str:
    """Return the command that stops these servers; without a folder it stops those of the user's data folder."""
    return "pulsebridge down" if folder == default_stack_dir() else f"pulsebridge down --data-dir {folder}"


def _end_of(state: StackState, folder: Path) -> str:
    stop = f"Stop it with: {_down(folder)}"
    return f"Stops at {_clock(state.until)}. {stop}" if state.until else stop


def _clock(seconds: float) -> str:
    return time.strftime("%a %H:%M", time.localtime(seconds))


def _show_addresses(console: Console, state: StackState) -> None:
    console.print(f"  MQTT    {state.mqtt_url}\n  Pulsar  {state.pulsar_url}\n  Admin   {state.admin_url}")
    sets = " ".join(f"--set {path}={value}" for path, value in state.overrides.items())
    console.print(f"For the other commands: {sets}", soft_wrap=True)


def _print_json(state: StackState) -> None:
    sys.stdout.write(json.dumps(asdict(state), indent=2) + "\n")
