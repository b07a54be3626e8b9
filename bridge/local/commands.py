"""The commands ``pulsebridge up``, ``down`` and ``status``: the local servers, left running under a supervisor."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bridge.options import ConfigOption, JsonOption, SetOption, settings_from

if TYPE_CHECKING:
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
MqttOption = Annotated[
    str | None,
    typer.Option("--mqtt", metavar="URL", help="MQTT broker that runs already.", show_default=False),
]
PulsarOption = Annotated[
    str | None,
    typer.Option("--pulsar", metavar="URL", help="Pulsar that runs already; with --admin.", show_default=False),
]
AdminOption = Annotated[
    str | None,
    typer.Option("--admin", metavar="URL", help="Its admin REST; with --pulsar.", show_default=False),
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
    typer.Option("--for", metavar="TIME", help="Stop after it: 90m, 12h, 2d. Default: never.", show_default=False),
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
    """Start Pulsar and an MQTT broker on this machine, and leave them running.

    They listen on 127.0.0.1 only, keep their data over `down` and `up`, and run until `pulsebridge down`, or for the
    time that --for gives. Without --fsync a killed process loses nothing, a power cut may.
    If one of them dies, the other is stopped, and `pulsebridge status` shows which one died, how, and its last lines.

    Examples:

      pulsebridge up

      pulsebridge up --fsync --for 2d

      pulsebridge up --mqtt-server mosquitto

      pulsebridge up --mqtt mqtt://broker.example:1883
    """
    from bridge.local.lifecycle import bring_up, hours

    flags: dict[str, object] = {
        "local.data_dir": data_dir,
        "local.mqtt_server": mqtt_server,
        "local.mqtt_url": mqtt,
        "local.pulsar_url": pulsar,
        "local.admin_url": admin,
        "local.mqtt_port": mqtt_port,
        "local.pulsar_port": pulsar_port,
        "local.admin_port": admin_port,
        "local.fsync": fsync,
        "local.offline": offline,
        "local.lifetime_h": None if lifetime is None else hours(lifetime),
    }
    bring_up(_settings(config, sets, flags), as_json=as_json)


def down(
    config: ConfigOption = None,
    sets: SetOption = None,
    data_dir: DataOption = None,
    delete_data: Annotated[bool, typer.Option("--delete-data", help="Also delete the servers' data.")] = False,
) -> None:
    """Stop the servers that `up` left running. Done when there are none, too.

    Examples:

      pulsebridge down

      pulsebridge down --delete-data
    """
    from bridge.local.lifecycle import bring_down

    bring_down(_settings(config, sets, {"local.data_dir": data_dir}), delete_data=delete_data)


def status(
    config: ConfigOption = None,
    sets: SetOption = None,
    data_dir: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the local servers, every ingest process that writes to the configured Pulsar, and who serves the commands.

    For each process: its protocols, where it listens, and the Pulsar brokers that own its topics. MQTT sessions that
    nobody reads any more are errors, each with what to do about it. For each partition of the commands: the push process
    that serves it, what is not acknowledged, and how many devices are away. Exit code 0 when the local servers or an ingest
    process run, 1 when neither does, or when there is such a session.

    Examples:

      pulsebridge status

      pulsebridge status --json
    """
    from rich.console import Console

    from bridge.devices.status import PushStatus, look_at_push, show_push
    from bridge.ingest.session_status import look_at_sessions, show_sessions
    from bridge.local.lifecycle import show_status
    from bridge.protocols.status import look_at_instances, show_instances

    settings = settings_from(config, sets)
    found = look_at_instances(settings)
    sessions = look_at_sessions(settings, found)
    away = bool(found.problem) and not found.records
    push = PushStatus(problem=found.problem) if away else look_at_push(settings)
    local = _settings(config, sets, {"local.data_dir": data_dir})
    up = show_status(local, as_json=as_json, more=found.as_dict() | sessions.as_dict() | push.as_dict())
    if not as_json:
        show_instances(found, Console())
        show_sessions(sessions, Console(), told=found.problem)
        show_push(push, Console(), told=found.problem)
    if sessions.unserved or not (up or found.alive):
        raise typer.Exit(1)


def _settings(config: Path | None, sets: list[str] | None, flags: dict[str, object]) -> LocalSettings:
    from bridge.local.distributions import default_data_dir

    local = settings_from(config, sets, flags).local
    if local.data_dir is None:
        local = local.model_copy(update={"data_dir": default_data_dir() / "stack"})
    return local
