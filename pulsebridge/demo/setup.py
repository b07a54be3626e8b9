"""Sets a run up: its folder, its settings, its servers and its processes, each stage timed."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from bridge.local.ports import free_ports
from bridge.provisioning import provision_commands
from bridge.pulsar_admin import PulsarAdmin
from bridge.settings import LocalSettings, Settings
from bridge.settings.loading import conf_path, load
from pulsebridge.audit.expected import load_rules
from pulsebridge.demo.options import DemoOptions
from pulsebridge.demo.plan import Plan, kills, make_devices, make_plan
from pulsebridge.demo.recordings import BUOY, GLUCOSE
from pulsebridge.demo.recordings import load as load_recording
from pulsebridge.demo.run_folder import RunFolder
from pulsebridge.demo.servers import Addresses
from pulsebridge.processes import Child, pulsebridge_command

__all__ = [
    "Stages",
    "addresses_of",
    "local_settings",
    "make_children",
    "plan_run",
    "provision",
    "write_settings",
]


class Stages:
    """Times the stages of the set-up and writes them into the run's events."""

    def __init__(self, run: RunFolder) -> None:
        self._run = run

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time what is done inside."""
        began = time.monotonic()
        yield
        self.note(name, time.monotonic() - began)

    def note(self, name: str, seconds: float) -> None:
        """Write one stage's time, in seconds."""
        self._run.append(
            self._run.events_file, e="stage", us=time.time_ns() // 1000, name=name, s=round(seconds, 3)
        )


def plan_run(run: RunFolder, options: DemoOptions) -> Plan:
    """Make an empty run folder with the rules and the manifest, before anything starts; return the plan."""
    if run.manifest_file.exists():
        shutil.rmtree(run.root)  # an earlier run: its tables and journals would be counted again
    for folder in (run.root, run.devices, run.logs):
        folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(conf_path("rules.yaml"), run.rules_file)
    devices, speed = make_devices(options.scale, {kind: load_recording(kind) for kind in (GLUCOSE, BUOY)})
    planned = kills(options.scale, chaos=options.chaos, more=options.more_chaos)
    plan, _ = make_plan(options.scale, devices, speed, load_rules(run.rules_file), planned)
    tables = {name: f"{run.lakehouse.name}/{name}" for name in ("bronze", "silver", "quarantine")}
    run.write_manifest(
        {
            "created_us": time.time_ns() // 1000,
            "plan": plan.as_manifest(),
            "metrics": [[kind.prefix, kind.metric] for kind in (GLUCOSE, BUOY)],
            "recordings": {kind.name: kind.source for kind in (GLUCOSE, BUOY)},
            "tables": tables,
        }
    )
    return plan


def local_settings(options: DemoOptions) -> LocalSettings:
    """Return the settings of the demo's own stack, on free ports chosen beforehand: Spark starts beside it."""
    mqtt, pulsar, admin = free_ports(3)
    given = load(conf_path("demo/pulsebridge.yaml"), options.sets).local
    return LocalSettings(
        offline=options.offline,
        mqtt_port=mqtt,
        pulsar_port=pulsar,
        admin_port=admin,
        start_timeout_s=given.start_timeout_s,
    )


def addresses_of(local: LocalSettings) -> Addresses:
    """Return where the servers of the stack will be."""
    pulsar, admin = f"pulsar://127.0.0.1:{local.pulsar_port}", f"http://127.0.0.1:{local.admin_port}"
    return Addresses("127.0.0.1", local.mqtt_port, pulsar, admin)


def write_settings(run: RunFolder, options: DemoOptions, addresses: Addresses) -> Settings:
    """Write the settings that all processes of the run share, and return them."""
    body = yaml.safe_load(conf_path("demo/pulsebridge.yaml").read_text(encoding="utf-8"))
    given: dict[str, Any] = {
        **addresses.as_settings(),
        "streaming.root": str(run.lakehouse),
        "streaming.rules": str(run.rules_file),
        **options.settings,
    }
    for path, value in given.items():
        section, _, name = path.partition(".")
        body.setdefault(section, {})[name] = value
    run.settings_file.write_text(yaml.safe_dump(body, sort_keys=False), encoding="utf-8")
    return load(run.settings_file, list(options.sets))


def provision(settings: Settings) -> list[str]:
    """Create the topics of the run before anything writes or reads them. Returns the readings topics."""
    topics = [settings.pulsar.readings_topic(name) for name in settings.streaming.topics]
    with PulsarAdmin(settings.pulsar, timeout_s=30.0) as admin:
        provision_commands(admin)
        for topic in topics:
            admin.create_partitioned(topic, settings.pulsar.partitions)
    return topics


def make_children(run: RunFolder, options: DemoOptions) -> dict[str, Child]:
    """Return the processes of the run, not started yet."""
    common = ["--config", str(run.settings_file)]
    for pair in options.sets:
        common += ["--set", pair]
    scale = options.scale
    fleet = [
        "--wearables",
        str(scale.wearables),
        "--buoys",
        str(scale.buoys),
        "--rate",
        str(scale.rate),
        "--seconds",
        str(scale.seconds),
        "--faults-every",
        str(scale.fault_every),
        "--journals",
        str(run.devices),
        "--go",
        str(run.go_file),
        "--client-prefix",
        "",
        "--stay",
    ]
    commands = {
        "ingest": ["ingest", *common],
        "push": ["push", *common],
        "spark": ["stream", *common],
        "fleet": ["simulate", *common, *fleet],
    }
    environment = _environment()
    return {
        name: Child(name, pulsebridge_command(*command), run.logs / f"{name}.log", environment)
        for name, command in commands.items()
    }


def _environment() -> dict[str, str]:
    packages = str(Path(__file__).resolve().parents[2])
    path = os.environ.get("PYTHONPATH", "")
    return {
        **os.environ,
        "PYTHONPATH": f"{packages}{os.pathsep}{path}" if path else packages,
        "PYTHONUNBUFFERED": "1",
    }
