"""Common options of the commands: ``config: ConfigOption = None, sets: SetOption = None``, for ``settings_from``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["ConfigOption", "JsonOption", "SetOption"]

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
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
