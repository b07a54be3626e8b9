"""The commands ``pulsebridge config show|schema|default|export|metrics``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bridge.errors import ConfigError
from pulsebridge.cli.options import ConfigOption, JsonOption, SetOption
from pulsebridge.output.text import json_text, text_of

if TYPE_CHECKING:
    from bridge.settings.loading import Loaded

__all__ = ["register"]

config = typer.Typer(no_args_is_help=True, help="The settings and their origins.")


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(config, name="config")


@config.command("show")
def show(
    config: ConfigOption = None,
    sets: SetOption = None,
    origin: Annotated[bool, typer.Option("--origin", help="Show the origin of each value.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show the settings in force; secrets are masked.

    Examples:

        pulsebridge config show --origin

        PULSEBRIDGE_MQTT__PORT=8883 pulsebridge config show --json
    """
    from bridge.settings.loading import load_with_origins

    loaded = load_with_origins(config, sets or ())
    values = loaded.settings.model_dump(mode="json")
    if as_json:
        body: dict[str, Any] = {"settings": values, "origins": _all_origins(loaded)} if origin else values
        typer.echo(json_text(body, indent=2))
    else:
        typer.echo(_lines(loaded, values, origin))


@config.command("schema")
def schema() -> None:
    """Print the JSON Schema of the settings file, for editors.

    Example:

        pulsebridge config schema > pulsebridge.schema.json
    """
    from bridge.settings import Settings

    typer.echo(json_text(Settings.model_json_schema(), indent=2))


@config.command("default")
def default(
    common: Annotated[bool, typer.Option("--common", help="Only the settings that most installations set.")] = False,
) -> None:
    """Print the complete settings file with every default and its description.

    Examples:

        pulsebridge config default --common

        pulsebridge config default > pulsebridge.yaml
    """
    from pulsebridge.cli.default_file import default_yaml

    typer.echo(default_yaml(common=common), nl=False)


@config.command("export")
def export(
    name: Annotated[
        str | None, typer.Argument(help="A file or a folder of the list.", show_default="print the list")
    ] = None,
    folder: Annotated[Path, typer.Option("--to", metavar="FOLDER", help="Where to write.")] = Path(),
    force: Annotated[bool, typer.Option("--force", help="Replace existing files.")] = False,
) -> None:
    """Write files that are installed with Pulsebridge: alert rules, access lists, dashboards, units, Spark's settings.

    Examples:

        pulsebridge config export

        pulsebridge config export prometheus/alerts.yaml --to /etc/prometheus
    """
    from bridge.settings.loading import conf_path

    root = conf_path("default.yaml").parent
    files = sorted(path.relative_to(root) for path in root.rglob("*") if path.is_file() and path.suffix != ".py")
    if name is None:
        typer.echo(text_of([path.as_posix() for path in files]))
        return
    chosen = [path for path in files if path == Path(name) or Path(name) in path.parents]
    if not chosen:
        raise ConfigError(f"{name}: is not a file of the list", remedy="`pulsebridge config export` prints the list")
    targets = {path: folder / (path.name if path == Path(name) else path.relative_to(name)) for path in chosen}
    existing = [target for target in targets.values() if target.exists()]
    if existing and not force:
        raise ConfigError(
            f"{existing[0]} exists already", remedy="give another folder by --to, or --force to replace it"
        )
    try:
        for path, target in targets.items():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes((root / path).read_bytes())
            typer.echo(text_of([f"wrote {target}"]))
    except OSError as e:
        raise ConfigError(
            f"--to {folder}: {e.strerror}", remedy="choose a folder with room in which you may write"
        ) from e


@config.command("metrics")
def metrics() -> None:
    """Print the metrics of ingest, push and the Spark jobs on metrics.port, as a Markdown table.

    Example:

        pulsebridge config metrics
    """
    from pulsebridge.cli.metrics_catalogue import catalogue, table

    typer.echo(table(catalogue()), nl=False)


def _all_origins(loaded: Loaded) -> dict[str, str]:
    from bridge.settings import Settings
    from bridge.settings.fields import leaves

    return {".".join(p): loaded.origins.get(".".join(p), "default") for p, _ in leaves(Settings)}


def _lines(loaded: Loaded, values: dict[str, Any], origin: bool) -> str:
    """Return the settings as YAML, one line each, on request with their origins."""
    from pulsebridge.cli.default_file import yaml_value

    origins = _all_origins(loaded)
    lines: list[str] = []
    above: list[str] = []
    for path, source in origins.items():
        *sections, name = path.split(".")
        for depth, section in enumerate(sections):
            if above[: depth + 1] != sections[: depth + 1]:
                lines.append(f"{'  ' * depth}{section}:")
                above = sections[: depth + 1]
        value: Any = values
        for part in (*sections, name):
            value = value[part]
        line = f"{'  ' * len(sections)}{name}: {yaml_value(value)}"
        lines.append(f"{line:<60}  # {source}" if origin else line)
    return text_of(lines)
