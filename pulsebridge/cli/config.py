"""The commands ``pulsebridge config show|schema|default|metrics``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

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
