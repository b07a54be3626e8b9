"""The commands ``pulsebridge up``, ``down`` and ``status``: the local servers under a supervisor."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pulsebridge.cli.options import ConfigOption, JsonOption, SetOption, settings_from

if TYPE_CHECKING:
    from bridge.settings import Settings
    from bridge.settings.local import LocalSettings

__all__ = ["register"]

DataOption = Annotated[
    Path | None,
    typer.Option("--data-dir", metavar="PATH", help="Folder of the servers' data.", show_default=False),
]
MqttServerOption = Annotated[
    str | None,
    typer.Option(help="MQTT broker to start: artemis or mosquitto (if on the PATH).", show_default=False),
]
ClusterOption = Annotated[
    bool | None,
    typer.Option(
        "--cluster", help="Start Pulsar as a cluster: 3 brokers, 3 bookies, ZooKeeper, proxy.", show_default=False
    ),
]
MqttOption = Annotated[
    str | None,
    typer.Option("--mqtt", metavar="URL", help="URL of a running MQTT broker.", show_default=False),
]
PulsarOption = Annotated[
    str | None,
    typer.Option("--pulsar", metavar="URL", help="URL of a running Pulsar; with --admin.", show_default=False),
]
AdminOption = Annotated[
    str | None,
    typer.Option("--admin", metavar="URL", help="URL of its admin REST; with --pulsar.", show_default=False),
]
MqttPortOption = Annotated[int | None, typer.Option(help="Port of the MQTT broker.", show_default=False)]
PulsarPortOption = Annotated[int | None, typer.Option(help="Port of Pulsar.", show_default=False)]
AdminPortOption = Annotated[int | None, typer.Option(help="Port of Pulsar's admin REST.", show_default=False)]
FsyncOption = Annotated[
    bool | None, typer.Option("--fsync", help="Flush to the disk before acknowledging.", show_default=False)
]
OfflineOption = Annotated[bool | None, typer.Option("--offline", help="Use the cache only.", show_default=False)]
ForOption = Annotated[
    str | None,
    typer.Option("--for", metavar="TIME", help="Stop after 90m, 12h, 2d. Default: never.", show_default=False),
]


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command()(up)
    app.command()(down)
    app.command()(status)


def up(
    config: ConfigOption = None,
    sets: SetOption = None,
    data_dir: DataOption = None,
    mqtt_server: MqttServerOption = None,
    cluster: ClusterOption = None,
    mqtt: MqttOption = None,
    pulsar: PulsarOption = None,
    admin: AdminOption = None,
    mqtt_port: MqttPortOption = None,
    pulsar_port: PulsarPortOption = None,
    admin_port: AdminPortOption = None,
    fsync: FsyncOption = None,
    offline: OfflineOption = None,
    lifetime: ForOption = None,
    as_json: JsonOption = False,
) -> None:
    """Start Pulsar and an MQTT broker on this machine.

    They listen on 127.0.0.1 only, keep their data after `down`, and run until `pulsebridge down`, or for the time of
    --for. Without --fsync a killed process loses no data, but a power cut may. If one server dies, the supervisor stops
    the other; `pulsebridge status` then shows which one died, how, and its last lines.

    Examples:

      pulsebridge up

      pulsebridge up --fsync --for 2d

      pulsebridge up --mqtt-server mosquitto

      pulsebridge up --cluster

      pulsebridge up --mqtt mqtt://broker.example:1883
    """
    from bridge.settings.units import Duration
    from pulsebridge.local.lifecycle import bring_up, hours

    flags: dict[str, object] = {
        "local.data_dir": data_dir,
        "local.mqtt_server": mqtt_server,
        "local.cluster": cluster,
        "local.mqtt_url": mqtt,
        "local.pulsar_url": pulsar,
        "local.admin_url": admin,
        "local.mqtt_port": mqtt_port,
        "local.pulsar_port": pulsar_port,
        "local.admin_port": admin_port,
        "local.fsync": fsync,
        "local.offline": offline,
        "local.lifetime": None if lifetime is None else Duration(hours(lifetime) * 3600),
    }
    bring_up(_settings(config, sets, flags), as_json=as_json)


def down(
    config: ConfigOption = None,
    sets: SetOption = None,
    data_dir: DataOption = None,
    delete_data: Annotated[bool, typer.Option("--delete-data", help="Also delete the servers' data.")] = False,
) -> None:
    """Stop the servers of `up`. Succeeds also if none runs.

    Examples:

      pulsebridge down

      pulsebridge down --delete-data
    """
    from pulsebridge.local.lifecycle import bring_down

    bring_down(_settings(config, sets, {"local.data_dir": data_dir}), delete_data=delete_data)


def status(
    config: ConfigOption = None,
    sets: SetOption = None,
    data_dir: DataOption = None,
    trace: Annotated[
        str | None,
        typer.Option(metavar="TOPIC", help="Only the way of a publish on this MQTT topic.", show_default=False),
    ] = None,
    payload: Annotated[
        str | None,
        typer.Option(help="With --trace: publish this, and follow it into Pulsar.", show_default=False),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show the local servers, and all processes of the bridge.

    For each ingest process: its protocols, its listeners, and the Pulsar brokers that own its topics. An MQTT session
    that no process reads any more is an error, with its remedy. For each push process: its share of the partitions.
    For each partition of the commands: the push process that serves it, the unacknowledged commands, and the number of
    offline devices. Exit code 0 if the local servers or an ingest process run, 1 if neither does, or if there is an
    unserved session.

    Examples:

      pulsebridge status

      pulsebridge status --json

      pulsebridge status --trace plant/7/press/temperature --payload 21.5
    """
    if trace is not None:
        _trace(settings_from(config, sets), trace, payload, as_json=as_json)
        return
    from rich.console import Console

    from bridge.inspect.devices.status import PushStatus, look_at_push
    from bridge.inspect.instances import look_at_instances
    from bridge.inspect.sessions import look_at_sessions
    from pulsebridge.local.lifecycle import show_status
    from pulsebridge.output.status import (
        instances_json,
        push_json,
        sessions_json,
        show_instances,
        show_push,
        show_sessions,
    )

    settings = settings_from(config, sets)
    found = look_at_instances(settings)
    sessions = look_at_sessions(settings, found)
    unreachable = bool(found.problem) and not found.records
    push = PushStatus(problem=found.problem) if unreachable else look_at_push(settings)
    local = _settings(config, sets, {"local.data_dir": data_dir})
    more = instances_json(found) | sessions_json(sessions) | push_json(push)
    up = show_status(local, as_json=as_json, more=more)
    if not as_json:
        show_instances(found, Console())
        show_sessions(sessions, Console(), reported=found.problem)
        show_push(push, Console(), reported=found.problem)
    if sessions.unserved or not (up or found.alive):
        raise typer.Exit(1)


def _trace(settings: Settings, topic: str, payload: str | None, *, as_json: bool) -> None:
    from bridge.errors import RefusedError
    from bridge.inspect.trace import trace
    from pulsebridge.output.text import json_text, text_of
    from pulsebridge.topics.explaining import explanation_of

    body = None if payload is None else payload.encode("utf-8", "surrogateescape")
    found = explanation_of(settings, topic, body)
    if "partition" not in found:
        why = found.get("why", found["outcome"])
        raise RefusedError(
            f"{topic} has no partition: {why}", remedy="give --payload, or see pulsebridge topics explain"
        )
    steps = trace(settings, found["pulsar_topic"], found["key"], topic, body)
    if as_json:
        typer.echo(json_text([step._asdict() for step in steps], indent=2))
    else:
        typer.echo(text_of(f"{step.ms:8.1f} ms  {step.name:<12}  {step.what}" for step in steps))
    if not steps[-1].ok:
        raise typer.Exit(1)


def _settings(config: Path | None, sets: list[str] | None, flags: dict[str, object]) -> LocalSettings:
    from bridge.user_folders import default_stack_dir

    local = settings_from(config, sets, flags).local
    if local.data_dir is None:
        local = local.model_copy(update={"data_dir": default_stack_dir()})
    return local
