"""The commands ``pulsebridge commands resend`` and ``show``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from bridge.display import json_text, text_of
from bridge.errors import ConfigError
from bridge.settings.loading import settings_from
from pulsebridge.cli.options import ConfigOption, JsonOption, SetOption

if TYPE_CHECKING:
    from bridge.inspect.devices.history import Copy, Family
    from bridge.inspect.devices.reading import PushTopics
    from bridge.inspect.devices.search import Search
    from bridge.inspect.devices.view import PartitionView

__all__ = ["register"]

_LEFT_OUT_SHOWN: Final = 3

_Device = Annotated[
    str,
    typer.Option(
        help="Device of the commands; required if several devices have the id. Only its partition is read.",
        show_default=False,
    ),
]


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    commands = typer.Typer(help="History of commands, and resend of failed ones.", no_args_is_help=True)
    commands.command("show")(_show)
    commands.command("resend")(_resend)
    app.add_typer(commands, name="commands")


def _resend(
    command_ids: Annotated[
        list[str] | None, typer.Argument(metavar="[ID]...", help="Ids of commands.", show_default=False)
    ] = None,
    config: ConfigOption = None,
    sets: SetOption = None,
    device: _Device = "",
    states: Annotated[
        list[str] | None,
        typer.Option(
            "--state",
            metavar="rejected|overflowed|expired",
            help="With --device or --group: all commands that ended in this state; may be repeated.",
            show_default=False,
        ),
    ] = None,
    group: Annotated[
        str,
        typer.Option(
            help="With --state: commands to members of this group; with --device only to that member.",
            show_default=False,
        ),
    ] = "",
    since: Annotated[
        str,
        typer.Option(
            metavar="AGE|TIME",
            help="With --state: commands emitted since: 90s, 15m, 2h, 3d, or an ISO time.",
            show_default=False,
        ),
    ] = "",
    expires_in: Annotated[
        str,
        typer.Option(
            metavar="AGE|never", help="New expiry: 90s, 15m, 2h, 3d. Default: the old one.", show_default=False
        ),
    ] = "",
    limit: Annotated[
        int, typer.Option(min=1, help="With --state: how many to resend at most, the oldest first.")
    ] = 1000,
    force: Annotated[
        bool, typer.Option("--force", help="Also resend delivered, answered or pending commands.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the resend, write nothing.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Resend failed commands to the end of each device's queue, with the same topic, payload and QoS.

    The new command has the id ID~2 (then ID~3, …) and names the old one (resend_of). It refuses pending, delivered and
    answered commands, and without --device an id that several devices have. A second run resends nothing. The exit code
    is 1 if a command was refused.

    Examples:

      pulsebridge commands resend overheat-7f3a --expires-in 1h

      pulsebridge commands resend --device press-7 --state expired --expires-in 2h --dry-run

      pulsebridge commands resend --group presses --state expired --since 1d --expires-in 2h
    """
    from bridge.dead_letters.showing import since_us
    from bridge.inspect.devices.history import FAILED, next_copy, of_one_device
    from bridge.inspect.devices.resending import resend
    from bridge.inspect.devices.search import Search
    from pulsebridge.cli.devices import push_topics

    ids = list(dict.fromkeys(command_ids or ()))
    wanted = states or []
    target, narrowed = device or group, group or since
    if bool(ids) == bool(wanted) or (not target if wanted else narrowed) or not set(wanted) <= set(FAILED):
        raise ConfigError(
            "no command, or an ambiguous set of commands, is selected",
            remedy=f"give ids, or --device or --group with --state {'|'.join(FAILED)}",
        )
    now_us = time.time_ns() // 1000
    expires_at_ms = _expiry(expires_in, now_us)
    from_us = since_us(since, now_us) if since else 0
    with push_topics(settings_from(config, sets)) as topics:
        search = Search(topics)
        if ids:
            found = search.by_id(ids, device)
        else:
            found = search.by_state(device, wanted, group=group, since_us=from_us)[:limit]
        families, refused = of_one_device(found)
        resent = resend(
            topics,
            families,
            lambda one: next_copy(one, now_us=now_us, force=force, expires_at_ms=expires_at_ms),
            dry_run=dry_run,
        )
    resent.refused = [*refused, *resent.refused]
    _print_skipped(search)
    if as_json:
        body: dict[str, Any] = {
            "dry_run": dry_run,
            "resent": [
                {"id": one.command_id, "resend_of": one.resend_of, "device": one.device} for one in resent.written
            ],
            "refused": [{"id": one.command_id, "why": str(one)} for one in resent.refused],
        }
        typer.echo(json_text(body, indent=2))
    else:
        verb = "would be resent" if dry_run else "is resent"
        lines = [f"{one.resend_of} {verb} to {one.device} as {one.command_id}" for one in resent.written]
        typer.echo(text_of([*lines, *(f"refused {one}" for one in resent.refused)]) or "no matching command")
    if resent.refused:
        raise typer.Exit(1)


def _expiry(text: str, now_us: int) -> int | None:
    from bridge.dead_letters.showing import seconds_of

    if text in ("", "never"):
        return 0 if text else None
    seconds = seconds_of(text)
    if not seconds:
        raise ConfigError(f"--expires-in {text}: not a duration", remedy="give 90s, 15m, 2h, 3d or never")
    return now_us // 1000 + seconds * 1000


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
    from bridge.inspect.devices.showing import families_json, families_text
    from pulsebridge.cli.devices import push_topics

    with push_topics(settings_from(config, sets)) as topics:
        search = Search(topics)
        found = search.by_id([command_id], device, letters=True)
        _print_skipped(search)
        families = [one for one in found if one.newest.state != "unknown" or one.newest.in_group]
        if not families:
            raise ConfigError(
                f"Pulsar has no record of a command {command_id!r}" + f" of {device!r}" * bool(device),
                remedy="check the id; retention may have removed it",
            )
        shown = families_json(command_id, _families_shown(topics, families))
    typer.echo(json_text(shown, indent=2) if as_json else families_text(shown))


def _print_skipped(search: Search) -> None:
    if search.left_out:
        shown = search.left_out[:_LEFT_OUT_SHOWN]
        more = len(search.left_out) - len(shown)
        lines = [f"not read, not a valid command: {one}" for one in shown]
        typer.echo(text_of(lines + [f"… and {more} more"] * bool(more)), err=True)


def _families_shown(topics: PushTopics, families: list[Family]) -> list[dict[str, Any]]:
    from bridge.inspect.devices.showing import copy_json

    views: dict[int, PartitionView] = {}
    shown = []
    for family in families:
        copies = [copy_json(one, _queue(topics, views, one)) for one in family.in_order]
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
