"""The command ``pulsebridge init``: a new project by at most four questions."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeVar, cast
from urllib.parse import urlsplit

import typer

from bridge.errors import ConfigError

if TYPE_CHECKING:
    from pulsebridge.project import Answers

__all__ = ["register"]

_DISCOVER: Final = "discover"
_OTHER: Final = "other"

T = TypeVar("T")


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
    from pulsebridge.project import SETTINGS, Answers, project_files, refuse_existing, write_project

    if not force:
        refuse_existing(folder)  # before the questions, and before it listens at a broker
    presets = preset_names()
    host, port = _answer("--mqtt", mqtt, "MQTT broker (host or host:port)", "127.0.0.1", _host_and_port)
    url = _answer("--pulsar", pulsar, "Pulsar's service URL", "pulsar://127.0.0.1:6650", _service_url)
    kind = (
        _OTHER
        if filter is not None and devices is None
        else _answer(
            "--devices",
            devices,
            f"Devices: {', '.join(presets)}, {_DISCOVER} or {_OTHER}",
            _OTHER,
            _one_of(*presets, _DISCOVER, _OTHER),
        )
    )
    route = (
        _answer(
            "--filter",
            filter,
            "MQTT filter of the devices, +device for the level of the device (empty: all topics)",
            "",
            _filter,
        )
        if kind == _OTHER
        else None
    )
    # Devices of a preset have a firmware of others: they do not answer as Pulsebridge's protocol says, so it is no question.
    who = _answer(
        "--confirm",
        confirm or "broker" if kind in presets else confirm,
        "Who confirms a command: broker, or device if devices answer",
        "broker",
        _one_of("broker", "device"),
    )
    answers = Answers(mqtt_host=host, mqtt_port=port, pulsar_url=url, admin_url=_admin_url(url), confirm=who)
    if kind == _DISCOVER:
        answers = _discovered(answers, listen)
    elif kind == _OTHER:
        answers = replace(answers, filter=route)
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
    typer.echo(_next_steps(folder, answers.table, local="\nlocal:\n" in files[SETTINGS]))


def _next_steps(folder: Path, table: str, *, local: bool) -> str:
    where = "" if folder == Path() else f"cd {folder}\n  "
    up = "pulsebridge up\n  " if local else ""
    return (
        f"\nNext:\n  {where}{up}pulsebridge check\n  pulsebridge ingest        # in a terminal of its own\n"
        f"  pulsebridge stream --available-now\n\nThen read the table {table}: "
        f'python -c "import pulsebridge as pb; pb.connect().table({table!r}).show()"'
    )


def _answer(option: str, given: str | None, question: str, default: str, valid: Callable[[str], T]) -> T:
    """Return the option, else the answer of the user, else the default if there is no terminal.

    A wrong answer is asked again; a wrong option raises ConfigError.
    """

    def asked(text: str) -> T:
        try:
            return valid(text)
        except ConfigError as e:
            raise typer.BadParameter(f"{text}: {e}") from e

    if given is None and sys.stdin.isatty():
        return cast("T", typer.prompt(question, default=default, value_proc=asked))
    try:
        return valid(default if given is None else given)
    except ConfigError as e:
        raise ConfigError(f"{option} {given}: {e.what}", remedy=e.remedy) from e


def _one_of(*names: str) -> Callable[[str], str]:
    def valid(text: str) -> str:
        if text.lower() not in names:
            raise ConfigError(f"is not one of {', '.join(names)}")
        return text.lower()

    return valid


def _filter(text: str) -> str | None:
    from bridge.routing.templates import Filter

    if not text:
        return None
    try:
        names = Filter.of_settings(text).names
    except ValueError as e:
        raise ConfigError(str(e)) from e
    if "device" not in names:
        raise ConfigError("names no level +device", remedy="for example plant/+device/+metric")
    return text


def _service_url(text: str) -> str:
    from bridge.settings.pulsar import hosts_of

    try:
        if not text.startswith(("pulsar://", "pulsar+ssl://")):
            raise ConfigError(
                "does not begin with pulsar:// or pulsar+ssl://", remedy="for example pulsar://localhost:6650"
            )
        hosts_of(text)
    except ValueError as e:
        raise ConfigError(str(e), remedy="for example pulsar://localhost:6650") from e
    return text


def _host_and_port(broker: str) -> tuple[str, int]:
    if "://" in broker:
        raise ConfigError("is a URL", remedy="give host or host:port; mqtt.tls turns TLS on")
    found = urlsplit(f"//{broker}")
    try:
        host, port = found.hostname, found.port
    except ValueError as e:
        raise ConfigError("has an invalid port", remedy="give host or host:port") from e
    if not host or found.path or found.username:
        raise ConfigError("is not a host", remedy="give host or host:port")
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
    from pulsebridge.cli.options import seconds_of
    from pulsebridge.topics.listening import proposal

    # User, password and TLS of the broker may be in the environment.
    flags = {"mqtt.host": answers.mqtt_host, "mqtt.port": answers.mqtt_port}
    mqtt = load_with_origins(None, (), flags=flags).settings.mqtt
    found = proposal(mqtt, ["#"], seconds_of("--listen", listen))
    for note in found.notes:
        typer.echo(f"note: {note}", err=True)
    if not found.yaml():
        typer.echo(
            "no message arrived: the settings have no routes; repeat it with --force, and a longer --listen", err=True
        )
    return replace(answers, discovered=found.yaml(), tables=tuple(found.tables))
