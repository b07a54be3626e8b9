"""The command ``pulsebridge commands move``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pulsebridge.cli.options import ConfigOption, SetOption, settings_from

if TYPE_CHECKING:
    from pulsebridge.moving import MovedPartition

__all__ = ["move"]


def move(
    to: Annotated[Path, typer.Option("--to", metavar="PATH", help="YAML file of the new settings.")],
    config: ConfigOption = None,
    sets: SetOption = None,
) -> None:
    """Move all commands to another Pulsar cluster, or to another number of partitions: MOVING.md says how.

    The two settings differ by the cluster, or by pulsar.command_generation and pulsar.command_partitions, or both. The
    stored commands are copied in their order, with what push knows of each device: what it had, what waits for it, and
    the positions that it may resume from. Push must not run on either side. Pulsar refuses commands to the former topic
    from then on. If it was interrupted, repeat it.

    Example: pulsebridge commands move --config old.yaml --to new.yaml
    """
    from pulsebridge.moving import move as moved_partitions

    for moved in moved_partitions(settings_from(config, sets).pulsar, settings_from(to).pulsar):
        typer.echo(_line(moved))
    typer.echo("moved: start push with the new settings")


def _line(moved: MovedPartition) -> str:
    if moved.done_before:
        return f"partition {moved.partition}: was moved before"
    lost = f", {moved.lost} parked commands are not in Pulsar any more" if moved.lost else ""
    return f"partition {moved.partition}: {moved.copied} commands copied, {moved.devices} devices{lost}"
