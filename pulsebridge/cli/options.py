"""Common options of the commands: ``config: ConfigOption = None, sets: SetOption = None``, for ``settings_from``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from bridge.errors import ConfigError
from pulsebridge.cli.completion import complete_setting

if TYPE_CHECKING:
    from bridge.settings import Settings

__all__ = ["ConfigOption", "JsonOption", "SetOption", "seconds_of", "settings_from"]

_WEEK_S: Final = 7 * 86_400

ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        metavar="PATH",
        help="YAML file of the settings; else $PULSEBRIDGE_CONFIG, else ./pulsebridge.yaml if it exists.",
        show_default=False,
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="PATH=VALUE",
        help="Set one value, for example --set mqtt.host=broker.example; may be repeated.",
        show_default=False,
        autocompletion=complete_setting,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


def settings_from(
    config: Path | None = None, sets: Sequence[str] | None = None, flags: Mapping[str, object] | None = None
) -> Settings:
    """Load the settings for a command and configure the log with them.

    ``flags`` are the command's own options by their path (``{"mqtt.host": host}``); None means not given.
    Raises ConfigError with all problems.
    """
    from bridge import logs
    from bridge.settings.loading import load_with_origins

    settings = load_with_origins(config, sets or (), flags=flags).settings
    logs.configure(settings.log)
    return settings


def seconds_of(option: str, duration: str, *, zero: bool = False) -> float:
    """Return the seconds of an option such as 60s, 5m or 1h; a number alone is in seconds.

    Raises ConfigError for any other text, for more than a week, and for zero unless that is allowed.
    """
    from bridge.settings.units import Duration

    with suppress(ValueError):
        seconds = Duration(duration, bare="s")
        if 0 < seconds <= _WEEK_S or (zero and not seconds):
            return seconds
    raise ConfigError(f"{option} {duration}: not a duration", remedy="give seconds, minutes or hours: 60s, 5m, 1h")
