"""The command ``pulsebridge commands move``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pulsebridge.cli.options import ConfigOption, SetOption, settings_from

__all__ = ["move"]


def move(
    to: Annotated[Path, typer.Option("--to", metavar="PATH", help="YAML file of the new settings.")],
    config: ConfigOption = None,
    sets: SetOption = None,
) -> None:
    """Move all commands to another Pulsar cluster, or to another number of partitions: the page "Move to another cluster" says how.

    The new settings have a greater pulsar.command_generation, and another cluster or pulsar.command_partitions. The
    stored commands are copied in their order, with what push knows of each device: what it had, what waits for it, and
    the positions that it may resume from. Push must not run on either side. Pulsar refuses commands to the former topic
    from then on. If it was interrupted, repeat it.

    Example: pulsebridge commands move --config old.yaml --to new.yaml
    """
    from pulsebridge.moving import move as move_commands

    moved = move_commands(settings_from(config, sets).pulsar, settings_from(to).pulsar)
    for number, one in enumerate(moved):
        lost = f", {one.lost} parked commands are not in Pulsar any more" if one.lost else ""
        typer.echo(f"partition {number}: {one.copied} commands copied, {one.devices} devices{lost}")
    typer.echo(f"{'' if moved else 'all was '}moved{'' if moved else ' before'}: start push with the new settings")
