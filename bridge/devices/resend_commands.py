"""The commands ``pulsebridge commands resend`` and ``show``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from bridge.display import json_text, text_of
from bridge.errors import ConfigError
from bridge.options import ConfigOption, JsonOption, SetOption, settings_from

if TYPE_CHECKING:
    from bridge.devices.history import Copy, Family
    from bridge.devices.reading import PushTopics
    from bridge.devices.search import Search
    from bridge.devices.view import PartitionView

__all__ = ["register"]

_LEFT_OUT_SHOWN: Final = 3

_Device = Annotated[
    str,
    typer.Option(
        help="Whose commands they are; needed where several devices have one of that id. Only its partition is read.",
        show_default=False,
    ),
]


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    commands = typer.Typer(help="What became of a command; failed ones again.", no_args_is_help=True)
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
            help="With --device or --group: all of their commands that ended so; may be repeated.",
            show_default=False,
        ),
    ] = None,
    group: Annotated[
        str,
        typer.Option(
            help="With --state: what members of this group got as such; with --device of that one alone.",
            show_default=False,
        ),
    ] = "",
    since: Annotated[
        str,
        typer.Option(
            metavar="AGE|TIME",
            help="With --state: emitted since then: 90s, 15m, 2h, 3d, or an ISO time.",
            show_default=False,
        ),
    ] = "",
    expires_in: Annotated[
        str,
        typer.Option(metavar="AGE|never", help="A new expiry: 90s, 15m, 2h, 3d; else the old one.", show_default=False),
    ] = "",
    limit: Annotated[
        int, typer.Option(min=1, help="With --state: how many are sent at most, the oldest first.")
    ] = 1000,
    force: Annotated[bool, typer.Option("--force", help="Also what was delivered or answered, or is pending.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, write nothing.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Send failed commands again: each to its own device, at the end of its queue, with topic, payload and QoS as before.

    The new command is called ID~2 (then ID~3, …) and names the old one (resend_of). What is pending, or was delivered or
    answered, is refused, and an id that several devices have a command of, without --device. Run twice, it sends once.
    The exit code is 1 when one was refused.

    Examples:

      pulsebridge commands resend overheat-7f3a --expires-in 1h

      pulsebridge commands resend --device press-7 --state expired --expires-in 2h --dry-run

      pulsebridge commands resend --group presses --state expired --since 1d --expires-in 2h
    """
    from bridge.dead_letters.showing import since_us
    from bridge.devices.commands import push_topics
    from bridge.devices.history import FAILED, again, of_one_device
    from bridge.devices.resending import resend
    from bridge.devices.search import Search

    ids = list(dict.fromkeys(command_ids or ()))
    wanted = states or []
    whose, narrowed = device or group, group or since
    if bool(ids) == bool(wanted) or (not whose if wanted else narrowed) or not set(wanted) <= set(FAILED):
        raise ConfigError(
            "nothing, or too much, is selected",
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
        done = resend(
            topics,
            families,
            lambda one: again(one, now_us=now_us, force=force, expires_at_ms=expires_at_ms),
            dry_run=dry_run,
        )
    done.refused = [*refused, *done.refused]
    _say_what_is_left_out(search)
    if as_json:
        body: dict[str, Any] = {
            "dry_run": dry_run,
            "resent": [
                {"id": one.command_id, "resend_of": one.resend_of, "device": one.device} for one in done.written
            ],
            "refused": [{"id": one.command_id, "why": str(one)} for one in done.refused],
        }
        typer.echo(json_text(body, indent=2))
    else:
        verb = "would be sent" if dry_run else "is sent"
        lines = [f"{one.resend_of} {verb} again to {one.device} as {one.command_id}" for one in done.written]
        typer.echo(text_of([*lines, *(f"refused {one}" for one in done.refused)]) or "no such command")
    if done.refused:
        raise typer.Exit(1)


def _expiry(text: str, now_us: int) -> int | None:
    from bridge.dead_letters.showing import seconds_of

    if text in ("", "never"):
        return 0 if text else None
    seconds = seconds_of(text)
    if not seconds:
        raise ConfigError(f"--expires-in {text}: not a time to come", remedy="write 90s, 15m, 2h, 3d or never")
    return now_us // 1000 + seconds * 1000


def _show(
    command_id: Annotated[str, typer.Argument(metavar="ID", help="Id of a command.")],
    config: ConfigOption = None,
    sets: SetOption = None,
    device: _Device = "",
    as_json: JsonOption = False,
) -> None:
    """Show where a command is and what became of it and of its copies: log, queue, receipts, dead letters.

    Of a command to a group: whether it waits to be given to the members, and its receipt behind that. An id that several devices have a command of is shown for each of them. Without --device the receipts and the log of
    all partitions are read.

    Examples:

      pulsebridge commands show overheat-7f3a

      pulsebridge commands show overheat-7f3a --device press-7
    """
    from bridge.devices.commands import push_topics
    from bridge.devices.search import Search
    from bridge.devices.showing import families_json, families_text

    with push_topics(settings_from(config, sets)) as topics:
        search = Search(topics)
        found = search.by_id([command_id], device, letters=True)
        _say_what_is_left_out(search)
        families = [one for one in found if one.newest.state != "unknown" or one.newest.in_group]
        if not families:
            raise ConfigError(
                f"nothing in Pulsar tells of a command {command_id!r}" + f" of {device!r}" * bool(device),
                remedy="see that the id is right; retention may have removed it",
            )
        told = families_json(command_id, _told(topics, families))
    typer.echo(json_text(told, indent=2) if as_json else families_text(told))


def _say_what_is_left_out(search: Search) -> None:
    if search.left_out:
        shown = search.left_out[:_LEFT_OUT_SHOWN]
        more = len(search.left_out) - len(shown)
        lines = [f"not read, it is no command: {one}" for one in shown]
        typer.echo(text_of(lines + [f"… and {more} more"] * bool(more)), err=True)


def _told(topics: PushTopics, families: list[Family]) -> list[dict[str, Any]]:
    from bridge.devices.showing import copy_json

    views: dict[int, PartitionView] = {}
    told = []
    for family in families:
        copies = [copy_json(one, _queue(topics, views, one)) for one in family.in_order]
        told.append(
            {
                "id": family.root,
                "device": family.device,
                "group": family.group,
                "state": family.newest.state,
                "copies": copies,
            }
        )
    return told


def _queue(topics: PushTopics, views: dict[int, PartitionView], copy: Copy) -> str | None:
    """Return where a command that is pending waits: parked for a device that is away, or with the owner."""
    if copy.state != "pending" or copy.command is None:
        return None
    partition, _ = (copy.positions or copy.moved)[0]
    if partition not in views:
        views[partition] = topics.records(partition)
    parked = views[partition].parked(copy.command.device)
    if any(place in parked for _, place in copy.positions):
        return "parked"
    places = {place for _, place in copy.moved}
    if any(one.place in places for one in parked):
        return "parked"
    return "waiting" if copy.positions else None  # a copy of its message alone does not tell that it still waits
