"""The command ``pulsebridge ui``."""

from __future__ import annotations

from typing import Annotated

import typer

from pulsebridge.cli.options import ConfigOption, JsonOption, SetOption, settings_from
from pulsebridge.output.text import json_text

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command("ui", short_help="Serve the live view: pages in a browser.")(_ui)


def _ui(
    config: ConfigOption = None,
    sets: SetOption = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on (ui.host).", show_default="127.0.0.1")] = None,
    port: Annotated[int | None, typer.Option(help="TCP port; 0: any free one (ui.port).", show_default="8095")] = None,
    as_json: JsonOption = False,
) -> None:
    """Serve the live view: links, devices, alerts, quality, dead letters and Spark queries, as pages in a browser.

    The data comes from Pulsar, the Delta tables and the metrics endpoints, without Spark. Without ui.token the pages only
    read. With it, a user who logs in may send commands and replay dead letters. SIGTERM or Ctrl-C stops it.

    Examples:

      pulsebridge ui

      pulsebridge ui --port 8080 --set ui.token_file=/etc/pulsebridge/ui.token
    """
    from pulsebridge.ui.server import serve

    settings = settings_from(config, sets, {"ui.host": host, "ui.port": port})

    def listening(url: str) -> None:
        typer.echo(json_text({"url": url}) if as_json else f"The live view is at {url} (Ctrl-C stops it)")

    serve(settings, listening)
