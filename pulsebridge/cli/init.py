"""The command ``pulsebridge init``: a new project by at most four questions."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final
from urllib.parse import urlsplit

import typer

from bridge.errors import ConfigError

if TYPE_CHECKING:
    from pulsebridge.project import Answers

__all__ = ["register"]

_DISCOVER: Final = "discover"
_OTHER: Final = "other"


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command("init")(init)


def init(
    folder: Annotated[Path, typer.Argument(help="Folder of the project.")] = Path(),
    mqtt: Annotated[str | None, typer.Option(metavar="HOST[:PORT]", help="MQTT broker.", show_default=False)] = None,
    pulsar: Annotated[str | None, typer.Option(metavar="URL", help="Pulsar's service URL.", show_default=False)] = None,
    devices: Annotated[
        str | None,
        typer.Option(
            help="What the devices send: the name of a preset, discover (listen and propose), or other.",
            show_default=False,
        ),
    ] = None,
    filter: Annotated[
        str | None,
        typer.Option(help="With other: MQTT filter of the devices, as plant/+device/+metric.", show_default=False),
    ] = None,
    confirm: Annotated[
        str | None, typer.Option(help="Who confirms a command: broker or device.", show_default=False)
    ] = None,
    listen: Annotated[str, typer.Option(metavar="DURATION", help="With discover: how long to listen.")] = "30s",
    force: Annotated[bool, typer.Option("--force", help="Replace existing files.")] = False,
) -> None:
    """Write the settings of a new project, by a few questions.

    It asks for each option that is not given; without a terminal it takes the defaults. Nothing existing is replaced.

    Examples:

      pulsebridge init

      pulsebridge init plant --filter plant/+device/+metric

      pulsebridge init home --mqtt broker.example --devices zigbee2mqtt

      pulsebridge init --mqtt broker.example:1884 --devices discover --listen 2m
    """
    from bridge.settings.presets import preset_names
    from pulsebridge.project import SETTINGS, Answers, project_files, write_project

    presets = preset_names()
    broker = _answer(mqtt, "MQTT broker (host or host:port)", "127.0.0.1")
    url = _answer(pulsar, "Pulsar's service URL", "pulsar://127.0.0.1:6650")
    kind = (
        _OTHER
        if filter is not None and devices is None
        else _answer(devices, f"Devices: {', '.join(presets)}, {_DISCOVER} or {_OTHER}", _OTHER)
    )
    if kind == _OTHER:
        filter = _answer(
            filter, "MQTT filter of the devices, +device for the level of the device (empty: all topics)", ""
        )
    # Devices of a preset have a firmware of others: they do not answer as Pulsebridge's protocol says, so it is no question.
    who = (
        (confirm or "broker")
        if kind in presets
        else _answer(confirm, "Who confirms a command: broker, or device if devices answer", "broker")
    )
    if kind not in (*presets, _DISCOVER, _OTHER):
        raise ConfigError(f"--devices {kind}: is not one of {', '.join((*presets, _DISCOVER, _OTHER))}")
    if who not in ("broker", "device"):
        raise ConfigError(f"--confirm {who}: is not one of broker, device")
    host, port = _host_and_port(broker)
    answers = Answers(mqtt_host=host, mqtt_port=port, pulsar_url=url, admin_url=_admin_url(url), confirm=who)
    if kind == _DISCOVER:
        answers = _discovered(answers, listen)
    elif kind == _OTHER:
        answers = replace(answers, filter=_filter(filter or ""))
    else:
        answers = replace(answers, preset=kind)
        if who == "device":
            typer.echo(
                f"note: devices of {kind} do not answer commands by themselves, and push repeats a command without an "
                "answer: set push.confirm: broker unless yours do",
                err=True,
            )
    files = project_files(answers)
    _check(files[SETTINGS])
    write_project(folder, files, replace=force)
    for name in files:
        typer.echo(f"wrote {folder / name}")
    where = "" if folder == Path() else f"cd {folder}\n  "
    local = "pulsebridge up\n  " if "\nlocal:\n" in files[SETTINGS] else ""
    typer.echo(
        f"\nNext:\n  {where}{local}pulsebridge check\n  pulsebridge ingest        # in a terminal of its own\n"
        f"  pulsebridge stream --available-now\n\nThen read the table {answers.table}: "
        f'python -c "import pulsebridge as pb; pb.connect().table({answers.table!r}).show()"'
    )


def _answer(given: str | None, question: str, default: str) -> str:
    """Return the option, else the answer of the user, else the default if there is no terminal."""
    if given is not None:
        return given
    if not sys.stdin.isatty():
        return default
    return str(typer.prompt(question, default=default))


def _filter(text: str) -> str | None:
    from bridge.routing.templates import Filter

    if not text:
        return None
    try:
        names = Filter.of_settings(text).names
    except ValueError as e:
        raise ConfigError(f"--filter: {e}") from e
    if "device" not in names:
        raise ConfigError(f"--filter {text}: names no level +device", remedy="for example plant/+device/+metric")
    return text


def _host_and_port(broker: str) -> tuple[str, int]:
    if "://" in broker:
        raise ConfigError(f"--mqtt {broker}: is a URL", remedy="give host or host:port; mqtt.tls turns TLS on")
    found = urlsplit(f"//{broker}")
    try:
        host, port = found.hostname, found.port
    except ValueError as e:
        raise ConfigError(f"--mqtt {broker}: {e}", remedy="give host or host:port") from e
    if not host or found.path or found.username:
        raise ConfigError(f"--mqtt {broker}: is not a host", remedy="give host or host:port")
    return host, port or 1883


def _admin_url(service_url: str) -> str:
    """Return the usual admin URL of a service URL; the settings check the latter."""
    scheme, _, hosts = service_url.partition("://")
    secure = scheme.endswith("+ssl")
    port = 8443 if secure else 8080
    names = [one.rpartition(":")[0] if one.rpartition(":")[2].isdigit() else one for one in hosts.split(",")]
    return f"http{'s' * secure}://" + ",".join(f"{name}:{port}" for name in names)


def _check(settings: str) -> None:
    """Raise ConfigError for settings that no command would accept."""
    import tempfile

    from bridge.settings.loading import load_with_origins

    with tempfile.NamedTemporaryFile("w", suffix=".yaml", encoding="utf-8") as file:
        file.write(settings)
        file.flush()
        load_with_origins(Path(file.name), environ={})


def _discovered(answers: Answers, listen: str) -> Answers:
    """Listen at the broker, and return the answers with what is proposed."""
    from bridge.settings.loading import load_with_origins
    from pulsebridge.topics.listening import proposal
    from pulsebridge.topics.showing import seconds_of

    # User, password and TLS of the broker may be in the environment.
    flags = {"mqtt.host": answers.mqtt_host, "mqtt.port": answers.mqtt_port}
    mqtt = load_with_origins(None, (), flags=flags).settings.mqtt
    found = proposal(mqtt, ["#"], seconds_of(listen))
    for note in found.notes:
        typer.echo(f"note: {note}", err=True)
    if not found.yaml():
        typer.echo("no message arrived: the settings have no routes", err=True)
    return replace(answers, discovered=found.yaml(), tables=tuple(found.tables))
