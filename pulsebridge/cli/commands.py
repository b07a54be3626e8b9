"""The commands ``pulsebridge commands send``, ``show`` and ``move``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from bridge.errors import ConfigError
from pulsebridge.cli.completion import complete_device
from pulsebridge.cli.move import move
from pulsebridge.cli.options import ConfigOption, JsonOption, SetOption, settings_from
from pulsebridge.cli.send import send
from pulsebridge.output.text import json_text, text_of

if TYPE_CHECKING:
    from bridge.dead_letters.history import Copy, Family
    from bridge.inspect.devices.reading import PushTopics
    from bridge.inspect.devices.search import Search
    from bridge.inspect.devices.view import PartitionView

__all__ = ["print_left_out", "register"]

_LEFT_OUT_SHOWN: Final = 3

_Device = Annotated[
    str,
    typer.Option(
        help="Device of the commands; required if several devices have the id. Only its partition is read.",
        show_default=False,
        autocompletion=complete_device,
    ),
]


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    commands = typer.Typer(help="Commands to devices: send, show, move them.", no_args_is_help=True)
    commands.command("send")(send)
    commands.command("show")(_show)
    commands.command("move")(move)
    app.add_typer(commands, name="commands")


def _show(
    command_id: Annotated[str, typer.Argument(metavar="ID", help="Id of a command.")],
    config: ConfigOption = None,
    sets: SetOption = None,
    device: _Device = "",
    as_json: JsonOption = False,
) -> None:
    """Show the history of a command and its copies: log, queue, receipts, dead letters.

    For a command to a group it shows whether push has expanded it to the members, and then its receipt. If several
    devices have a command of the id, it shows each of them. Without --device it reads the receipts and the log of all
    partitions.

    Examples:

      pulsebridge commands show overheat-7f3a

      pulsebridge commands show overheat-7f3a --device press-7
    """
    from bridge.inspect.devices.search import Search
    from pulsebridge.cli.devices import push_topics
    from pulsebridge.output.devices import families_json, families_text

    with push_topics(settings_from(config, sets)) as topics:
        search = Search(topics)
        found = search.by_id([command_id], device, letters=True)
        print_left_out(search)
        families = [one for one in found if one.newest.state != "unknown" or one.newest.in_group]
        if not families:
            raise ConfigError(
                f"Pulsar has no record of a command {command_id!r}" + f" of {device!r}" * bool(device),
                remedy="check the id; retention may have removed it",
            )
        shown = families_json(command_id, _families_shown(topics, families))
    typer.echo(json_text(shown, indent=2) if as_json else families_text(shown))


def print_left_out(search: Search) -> None:
    """Print the messages among the commands that could not be read, on stderr."""
    if search.left_out:
        shown = search.left_out[:_LEFT_OUT_SHOWN]
        more = len(search.left_out) - len(shown)
        lines = [f"not read, not a valid command: {one}" for one in shown]
        typer.echo(text_of(lines + [f"… and {more} more"] * bool(more)), err=True)


def _families_shown(topics: PushTopics, families: list[Family]) -> list[dict[str, Any]]:
    from pulsebridge.output.devices import copy_json

    views: dict[int, PartitionView] = {}
    shown = []
    for family in families:
        copies = [copy_json(one, _queue(topics, views, one), topics) for one in family.in_order]
        shown.append(
            {
                "id": family.root,
                "device": family.device,
                "group": family.group,
                "state": family.newest.state,
                "copies": copies,
            }
        )
    return shown


def _queue(topics: PushTopics, views: dict[int, PartitionView], copy: Copy) -> str | None:
    """Return the queue of a pending command: ``parked`` for an offline device, or ``waiting`` with the owner."""
    if copy.state != "pending" or copy.command is None:
        return None
    partition, _ = (copy.positions or copy.moved)[0]
    if partition not in views:
        views[partition] = topics.records(partition)
    parked = views[partition].parked(copy.command.device)
    if any(position in parked for _, position in copy.positions):
        return "parked"
    relocated = {position for _, position in copy.moved}
    if any(one.copy in relocated for one in parked):
        return "parked"
    return "waiting" if copy.positions else None  # a relocated copy alone does not prove that it still waits
