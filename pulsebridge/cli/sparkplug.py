"""The commands ``pulsebridge sparkplug``."""

from __future__ import annotations

from typing import Annotated

import typer

from pulsebridge.cli.options import ConfigOption, SetOption, settings_from

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the commands of Sparkplug to ``app``."""
    commands = typer.Typer(no_args_is_help=True, help="Sparkplug B.")
    app.add_typer(commands, name="sparkplug")
    commands.callback()(lambda: None)
    commands.command("host", short_help="Publish that the host application is online.")(_host)


def _host(
    host_id: Annotated[str, typer.Option("--id", help="Id of the host application, as edge nodes know it.")],
    config: ConfigOption = None,
    sets: SetOption = None,
) -> None:
    """Publish the STATE of the Sparkplug host application at each MQTT broker, until it is stopped.

    Edge nodes that wait for their primary host publish from then on, so start ingest and push first. Start several
    processes, on one machine or many: one is the host, and if it ends, another follows. SIGTERM or Ctrl-C stops it and
    publishes that the host is offline.

    Example:

        pulsebridge sparkplug host --id plant-host --set mqtt.host=broker.example
    """
    import threading

    from bridge.health import Health
    from bridge.metrics import serving
    from bridge.stopping import CLOSE_S, stopping_on_signals
    from sparkplug.host import Host

    settings = settings_from(config, sets)
    health = Health(settings.metrics.stuck_after)
    stopping = threading.Event()
    with stopping_on_signals("sparkplug host", stopping.set, CLOSE_S), serving(settings.metrics, health):
        Host(settings, host_id, stopping).run()
