"""Sets up a run: its folder with the plan, settings, topics and processes."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from bridge.pulsar.admin import PulsarAdmin
from bridge.pulsar.provisioning import provision_commands
from bridge.settings import LocalSettings, Settings
from bridge.settings.loading import conf_path, load
from pulsebridge.audit.rules import load_rules
from pulsebridge.demo.plan import FULL, Plan, Scale, Send, kills, make_devices, make_plan
from pulsebridge.demo.recordings import BUOY, GLUCOSE, VirtualDevice
from pulsebridge.demo.recordings import load as load_recording
from pulsebridge.demo.run_folder import RunFolder
from pulsebridge.local.ports import free_ports
from pulsebridge.local.readiness import mqtt_address
from pulsebridge.processes import Child, pulsebridge_command

__all__ = [
    "SETTINGS",
    "DemoOptions",
    "local_settings",
    "make_children",
    "plan_run",
    "provision",
    "write_settings",
]

SETTINGS: Final = "demo/pulsebridge.yaml"
"""The demo's settings, in ``conf``."""


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """The options of ``pulsebridge demo``."""

    out: Path
    scale: Scale = FULL
    chaos: bool = True
    more_chaos: tuple[str, ...] = ()
    """Additional parts to kill, of ``plan.KILLABLE``."""
    keep: bool = False
    offline: bool = False
    mqtt: str | None = None
    """URL of a running MQTT broker; None: the demo starts one."""
    pulsar: str | None = None
    admin: str | None = None
    sets: Sequence[str] = ()
    """Further settings as ``path=value``."""


def plan_run(run: RunFolder, options: DemoOptions) -> tuple[Plan, list[VirtualDevice], list[Send]]:
    """Create a run folder with rules, suite and manifest. Return the plan, the devices and their timeline."""
    run.create()
    shutil.copyfile(conf_path("demo/rules.yaml"), run.rules_file)
    shutil.copytree(conf_path("demo/gx"), run.expectations)
    devices, speed = make_devices(options.scale, {kind: load_recording(kind) for kind in (GLUCOSE, BUOY)})
    planned = kills(options.scale, chaos=options.chaos, more=options.more_chaos)
    plan, sends = make_plan(options.scale, devices, speed, load_rules(run.rules_file), planned)
    recordings = [kind.source for kind in (GLUCOSE, BUOY)]
    created_us = time.time_ns() // 1000
    run.write_manifest({"created_us": created_us, "plan": asdict(plan), "recordings": recordings})
    return plan, devices, sends


def local_settings(options: DemoOptions) -> LocalSettings:
    """Return the settings of the run's servers. Their free ports are chosen first, because Spark starts in parallel."""
    mqtt, pulsar, admin = free_ports(3)
    return LocalSettings(
        offline=options.offline,
        mqtt_port=mqtt,
        pulsar_port=pulsar,
        admin_port=admin,
        mqtt_url=options.mqtt,
        pulsar_url=options.pulsar,
        admin_url=options.admin,
        start_timeout=load(conf_path(SETTINGS), options.sets).local.start_timeout,
    )


def write_settings(run: RunFolder, options: DemoOptions, local: LocalSettings) -> Settings:
    """Write the common settings of all processes of the run, and return them."""
    body: dict[str, Any] = yaml.safe_load(conf_path(SETTINGS).read_text(encoding="utf-8"))
    host, port = mqtt_address(local.mqtt_url or f"127.0.0.1:{local.mqtt_port}")
    body.setdefault("mqtt", {}).update(host=host, port=port)
    body.setdefault("pulsar", {}).update(
        service_url=local.pulsar_url or f"pulsar://127.0.0.1:{local.pulsar_port}",
        admin_url=local.admin_url or f"http://127.0.0.1:{local.admin_port}",
    )
    body["streaming"] |= {
        "root": str(run.lakehouse),
        "alerts": str(run.rules_file),
        "suites": str(run.expectations),
    }
    run.settings_file.write_text(yaml.safe_dump(body, sort_keys=False), encoding="utf-8")
    return load(run.settings_file, list(options.sets))


def provision(settings: Settings) -> list[str]:
    """Create the topics of the run before any process writes or reads them. Returns the readings topics."""
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
    packages = [str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, packages)),
        "PYTHONUNBUFFERED": "1",
    }
    return {
        name: Child(name, pulsebridge_command(command, *common), run.logs / f"{name}.log", environment)
        for name, command in (("ingest", "ingest"), ("push", "push"), ("spark", "stream"))
    }
