"""The commands ``pulsebridge devices list`` and ``show``."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from pulsebridge.cli.completion import complete_device
from pulsebridge.cli.options import ConfigOption, JsonOption, SetOption, settings_from
from pulsebridge.output.text import json_text

if TYPE_CHECKING:
    from bridge.inspect.devices.reading import PushTopics
    from bridge.settings import Settings

__all__ = ["push_topics", "register"]

_Backlog = Annotated[
    int,
    typer.Option(min=0, help="Most unacknowledged messages to read, over all partitions."),
]


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    devices = typer.Typer(help="Waiting commands of the devices.", no_args_is_help=True)
    devices.command("list")(_list)
    devices.command("show")(_show)
    app.add_typer(devices, name="devices")


@contextmanager
def push_topics(settings: Settings) -> Iterator[PushTopics]:
    """Yield push's topics, with separate readers and with progress on a terminal."""
    from bridge.inspect.devices.reading import PushTopics
    from bridge.pulsar.admin import PulsarAdmin
    from bridge.pulsar.client import PulsarClient
    from pulsebridge.output.devices import reading_shown

    with (
        PulsarAdmin(settings.pulsar, timeout_s=30) as admin,
        PulsarClient(settings.pulsar) as client,
        reading_shown() as progress,
    ):
        yield PushTopics(client, admin, progress)


def _list(
    config: ConfigOption = None,
    sets: SetOption = None,
    absent: Annotated[
        bool,
        typer.Option("--absent", help="Devices with parked commands, or silent for push.presence.silence."),
    ] = False,
    pending: Annotated[bool, typer.Option("--pending", help="Devices with waiting commands.")] = False,
    limit: Annotated[int, typer.Option(min=0, help="How many to show, the most pending first; 0: all.")] = 50,
    backlog: _Backlog = 100_000,
    as_json: JsonOption = False,
) -> None:
    """Show presence, number and age of waiting commands, and last delivery of each device.

    The data comes from Pulsar, whether or not push runs. The command reads all compacted cursors and presence records
    and the unacknowledged commands (--backlog). It also reads the oldest waiting command of each shown device (of 1,000
    at most).

    Examples:

      pulsebridge devices list --absent --pending

      pulsebridge devices list --limit 0 --json
    """
    from bridge.inspect.devices.reading import Budget
    from pulsebridge.output.devices import backlog_json, overview_json, overview_text
    from pulsebridge.output.overview import Overview, Selection

    settings = settings_from(config, sets)
    now_us = time.time_ns() // 1000
    overview = Overview(Selection.of(settings, absent=absent, pending=pending), limit, now_us)
    budget = Budget(backlog)
    with push_topics(settings) as topics:
        overview.read(topics, budget)
    read = {"partitions": topics.partitions} | backlog_json(budget)
    if as_json:
        typer.echo(json_text(overview_json(overview, now_us, read), indent=2))
    else:
        typer.echo(overview_text(overview, now_us, read))


def _show(
    device: Annotated[
        str,
        typer.Argument(metavar="DEVICE", help="Name of the device, as in the rules.", autocompletion=complete_device),
    ],
    config: ConfigOption = None,
    sets: SetOption = None,
    limit: Annotated[int, typer.Option(min=0, help="How many waiting commands to show; 0: all.")] = 100,
    receipts: Annotated[int, typer.Option(min=0, help="How many of its last receipts to show.")] = 10,
    backlog: _Backlog = 100_000,
    as_json: JsonOption = False,
) -> None:
    """Show the waiting commands of a device in order, its cursor, last receipts and push process.

    A parked command is marked "maybe seen" if push stored that the device may have received it. The search for receipts
    covers the last 100,000 entries of their partition.

    Example: pulsebridge devices show press-7
    """
    from bridge.inspect.devices.reading import Budget
    from pulsebridge.output.devices import device_text, read_device

    settings = settings_from(config, sets)
    with push_topics(settings) as topics:
        shown = read_device(
            topics,
            settings,
            device,
            now_us=time.time_ns() // 1000,
            budget=Budget(backlog),
            limit=limit or None,
            receipts=receipts,
        )
    typer.echo(json_text(shown, indent=2) if as_json else device_text(shown))
