"""The command ``pulsebridge push``."""

from __future__ import annotations

from typing import Annotated

import typer

from bridge.errors import ConfigError
from pulsebridge.cli.commands import register as register_commands
from pulsebridge.cli.devices import register as register_devices
from pulsebridge.cli.options import ConfigOption, SetOption, settings_from
from pulsebridge.cli.resend import register as register_resend

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the tier's commands to ``app``: push, devices, commands and resend."""
    app.command("push", short_help="Push commands from Pulsar to the devices over MQTT.")(_push)
    register_devices(app)
    register_commands(app)
    register_resend(app)


def _push(
    config: ConfigOption = None,
    sets: SetOption = None,
    partitions: Annotated[
        str | None,
        typer.Option(
            "--partitions",
            metavar="0,1,…",
            help="Partitions that this process may own; default: all.",
            show_default=False,
        ),
    ] = None,
    trace: Annotated[
        str,
        typer.Option(
            metavar="ID|DEVICE|all",
            help="Log each step of a command, of a device's commands, or of all.",
            show_default=False,
        ),
    ] = "",
) -> None:
    """Push commands from Pulsar to the devices over MQTT, in order per device, with a receipt for each.

    Start several processes, on one machine or many: they share the partitions evenly by themselves. Each partition has
    one process; if that one dies, another takes over. SIGTERM or Ctrl-C stops it cleanly, a second one at once.

    --trace logs each step of a command in a line, with its time and the milliseconds since the step before. The steps
    are notified (an arrival), matched (to a device, which is live, parked or replaying), pulled (by its position),
    pushed; then puback, answered, cursor, receipt, acked.

    Examples:

        pulsebridge push --set mqtt.host=broker.example --set pulsar.service_url=pulsar://pulsar.example:6650

        pulsebridge push --trace press-7
    """
    import threading
    from contextlib import ExitStack

    from bridge.collector import reduce_arenas, reduce_collections
    from bridge.health import Health
    from bridge.metrics import serving
    from bridge.mqtt.connection_count import mop_collector
    from bridge.push.worker import PushWorker
    from bridge.stopping import CLOSE_S, stopping_on_signals

    settings = settings_from(config, sets)
    if trace and settings.log.level not in ("debug", "info"):
        raise ConfigError(
            f"--trace logs at level info, but log.level is {settings.log.level}", remedy="add --set log.level=info"
        )
    health = Health(settings.metrics.stuck_after)
    reduce_arenas()
    reduce_collections()
    stopping = threading.Event()
    with ExitStack() as stack:
        stack.enter_context(stopping_on_signals("push", stopping.set, settings.push.drain + CLOSE_S))
        shown = []
        if settings.metrics.mop_names:
            shown = [stack.enter_context(mop_collector(settings.links().values(), lambda: health.ending))]
        stack.enter_context(serving(settings.metrics, health, more=shown))
        PushWorker(settings, _numbers(partitions), health=health, stopping=stopping, trace=trace).run()


def _numbers(text: str | None) -> list[int]:
    try:
        return [int(part) for part in text.split(",")] if text else []
    except ValueError as e:
        raise ConfigError(f"--partitions {text}: not a list of numbers", remedy="for example --partitions 0,1") from e
