"""The files of a new project: settings, a pipeline module, and a suite of Great Expectations. ``pulsebridge init`` writes
them.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import yaml

from bridge.errors import ConfigError
from bridge.settings.files import conf_path
from bridge.settings.presets import load_preset

if TYPE_CHECKING:
    from bridge.settings.tables import TableDeclaration

__all__ = ["Answers", "project_files", "refuse_existing", "write_project"]

SETTINGS: Final = "pulsebridge.yaml"
MODULE: Final = "pipeline.py"
_SUITES: Final = "quality"
_LOOPBACK: Final = ("127.0.0.1", "localhost")


@dataclass(frozen=True)
class Answers:
    """What a project is made of."""

    mqtt_host: str = "127.0.0.1"
    mqtt_port: int = 1883
    pulsar_url: str = "pulsar://127.0.0.1:6650"
    admin_url: str = "http://127.0.0.1:8080"
    preset: str | None = None
    filter: str | None = None
    """MQTT filter of the messages, with ``+device`` for the level of the device."""
    discovered: str = ""
    """Sections ``ingest`` and ``streaming`` that ``topics discover`` proposes, as YAML."""
    tables: tuple[TableDeclaration, ...] = ()
    """The typed tables in ``discovered``."""
    confirm: str = "broker"

    @property
    def table(self) -> str:
        """The table of which module and suite are examples."""
        declared = self.tables or (() if self.preset is None else load_preset(self.preset).tables)
        return declared[0].name if declared else "readings"


def project_files(answers: Answers) -> dict[str, str]:
    """Return the content of each file, by its path in the project."""
    return {
        SETTINGS: _settings(answers),
        MODULE: _module(answers.table),
        f"{_SUITES}/great_expectations.yml": conf_path("demo/gx/great_expectations.yml")
        .read_text(encoding="utf-8")
        .split("\n", 1)[1],
        f"{_SUITES}/.gitignore": "uncommitted/\n",
        f"{_SUITES}/expectations/{answers.table}.json": _suite(answers.table),
    }


def refuse_existing(folder: Path, names: Iterable[str] = (SETTINGS, MODULE)) -> None:
    """Raise ConfigError if one of these files exists in the folder."""
    for name in names:
        if (folder / name).exists():
            raise ConfigError(
                f"{folder / name} exists already", remedy="choose another folder, or give --force to replace it"
            )


def write_project(folder: Path, files: dict[str, str], *, replace: bool = False) -> None:
    """Write the files. Raises ConfigError, and writes nothing, if one exists or the folder is not writable."""
    if not replace:
        refuse_existing(folder, files)
    try:
        for name, text in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    except OSError as e:
        where = e.filename or folder
        raise ConfigError(f"{where}: {e.strerror}", remedy="choose a folder with room in which you may write") from e


def _value(value: object) -> str:
    return yaml.safe_dump(value, default_flow_style=True, width=10_000).removesuffix("\n").removesuffix("\n...")


def _settings(answers: Answers) -> str:
    found: dict[str, Any] = yaml.safe_load(answers.discovered) or {}
    ingest = dict(found.get("ingest", {}))
    if answers.preset is not None:
        ingest["presets"] = [answers.preset]
    if answers.filter is not None:
        ingest["routes"] = [_route(answers.filter)]
    tables = found.get("streaming", {}).get("tables", [])
    parts = [
        _HEAD.format(
            host=_value(answers.mqtt_host),
            port=answers.mqtt_port,
            pulsar=_value(answers.pulsar_url),
            admin=_value(answers.admin_url),
        ),
        _INGEST + (_indented(ingest) if ingest else _ROUTES),
        _PUSH.format(confirm=answers.confirm, rule=_PRESENCE.get(answers.preset or "", _WILL)),
        _local(answers),
        _STREAMING.format(module=MODULE, suites=_SUITES) + (_indented({"tables": tables}) if tables else ""),
    ]
    return "\n".join(filter(None, parts))


def _route(filter: str) -> dict[str, str]:
    first = re.sub(r"[^\w.-]", "-", filter.split("/")[0]) if filter[0] not in "+#" else "devices"
    return {
        "name": first, "filter": filter, "topic": first, "device": "{device}",
        "command_topic": "devices/{device}/commands",
    }  # fmt: skip


def _local(answers: Answers) -> str:
    """Return the section of the servers that ``pulsebridge up`` starts, at the addresses above."""
    pulsar, admin = urlsplit(answers.pulsar_url), urlsplit(answers.admin_url)
    if pulsar.hostname not in _LOOPBACK:
        return ""
    mqtt = (
        f"mqtt_port: {answers.mqtt_port}"
        if answers.mqtt_host in _LOOPBACK
        else f"mqtt_url: mqtt://{answers.mqtt_host}:{answers.mqtt_port}"
    )
    return _LOCAL.format(mqtt=mqtt, pulsar=pulsar.port or 6650, admin=admin.port or 8080)


def _indented(body: dict[str, Any]) -> str:
    text = yaml.safe_dump(body, sort_keys=False, allow_unicode=True, width=120)
    return re.sub(r"^(?=.)", "  ", text, flags=re.MULTILINE)


def _module(table: str) -> str:
    return _READINGS_MODULE if table == "readings" else _TABLE_MODULE.replace("TABLE", table)


def _suite(table: str) -> str:
    def rule(kind: str, severity: str, name: str, **kwargs: object) -> dict[str, object]:
        return {
            "id": str(uuid.uuid4()), "type": kind, "kwargs": kwargs, "meta": {"rule": name}, "severity": severity,
        }  # fmt: skip

    rules: Sequence[dict[str, object]] = [
        rule("expect_column_values_to_not_be_null", "critical", "device_named", column="device"),
        rule(
            "expect_column_values_to_be_between", "critical", "time_plausible",
            column="event_time", min_value="2000-01-01T00:00:00+00:00",
        ),
    ]  # fmt: skip
    suite: dict[str, object] = {
        "name": table,
        "id": str(uuid.uuid4()),
        "expectations": rules,
        "meta": {},
        "notes": None,
    }
    return json.dumps(suite, indent=2) + "\n"


_HEAD: Final = """\
# Settings of Pulsebridge. Paths are relative to the folder in which a command starts.
# `pulsebridge config default` prints every setting with its default, `pulsebridge config show --origin` those in force.

mqtt:
  host: {host}
  port: {port}
  # The broker keeps the session of this id while ingest is down: keep it, and give each installation its own.
  client_id: pulsebridge
  # username: bridge
  # password_file: mqtt-password    # or PULSEBRIDGE_MQTT__PASSWORD; a file is read at each connect
  # tls: true

pulsar:
  service_url: {pulsar}
  admin_url: {admin}
  # token_file: pulsar-token
  # retention: 3d                   # how long Pulsar stores messages that were read
"""
_INGEST: Final = "ingest:\n"
_ROUTES: Final = """\
  # Without a route every MQTT topic is read: its first level names the Pulsar topic. A route names the device, too:
  routes: []
  #  - name: plant
  #    filter: plant/+device/+metric
  #    topic: plant
  #    device: "{device}"
  #    command_topic: devices/{device}/commands
"""
_PUSH: Final = """\
push:
  # broker: a command counts as delivered when the MQTT broker has it; device: when the device has answered.
  confirm: {confirm}
  # Push parks the commands of offline devices if it knows where their state is published (a will, say):
  # presence:
  #   rules:
  #     - {rule}
"""
_WILL: Final = "filter: devices/+device/status"
_PRESENCE: Final = {
    "tasmota": "{filter: tele/+device/LWT, absent: [Offline]}",
    "zigbee2mqtt": """{filter: zigbee2mqtt/+device/availability, absent: ['{"state":"offline"}']}""",
}
"""Rules of the presets whose devices have one topic for it."""
_LOCAL: Final = """\
local:
  # Where `pulsebridge up` starts servers on this machine, and the folder of what they store.
  {mqtt}
  pulsar_port: {pulsar}
  admin_port: {admin}
  data_dir: servers
"""
_STREAMING: Final = """\
streaming:
  # Folder or URI of tables and checkpoints; or schema_name: catalog.schema
  root: lakehouse
  modules: [{module}]
  # Great Expectations project: a suite validates the table that has its name.
  suites: {suites}
  # alerts: rules.yaml              # `pulsebridge config export rules.yaml` writes a file that describes each kind
"""
_READINGS_MODULE: Final = '''\
"""Tables and views of this installation. `pulsebridge stream` keeps them up to date."""

from pyspark.sql import functions as F

from streaming import pipelines as dp

# A typed table: the fields of the payload as columns. Uncomment it, and correct filter and fields.
#
# @dp.table(comment="Presses", cluster_by=["device", "event_time"])
# def presses():
#     return dp.messages("plant/+device/+metric", fields="temperature double, pressure double")


@dp.materialized_view(keys=["device", "metric", "hour"], within=("event_time", "1 hour"))
def hourly():
    """Mean of each metric by device and hour. A late reading corrects its hour."""
    hour = F.date_trunc("hour", "event_time").alias("hour")
    rows = dp.read("readings").where("value IS NOT NULL")
    return rows.groupBy("device", "metric", hour).agg(F.avg("value").alias("mean"), F.count("*").alias("readings"))
'''
_TABLE_MODULE: Final = '''\
"""Tables and views of this installation. `pulsebridge stream` keeps them up to date."""

from pyspark.sql import functions as F

from streaming import pipelines as dp


@dp.materialized_view(keys=["device", "hour"], within=("event_time", "1 hour"))
def TABLE_hourly():
    """Messages by device and hour. A late message corrects its hour."""
    hour = F.date_trunc("hour", "event_time").alias("hour")
    return dp.read("TABLE").groupBy("device", hour).agg(F.count("*").alias("messages"))
'''
