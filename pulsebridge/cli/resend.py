"""The command ``pulsebridge resend``: what failed goes again, dead letters to their topics, commands to their devices."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from bridge.contract import FAILURES
from bridge.display import printable
from bridge.errors import ConfigError
from pulsebridge.cli.dead_letters import DeviceOption, ReasonOption, SinceOption, TopicOption, selection_of
from pulsebridge.cli.options import ConfigOption, JsonOption, SetOption, settings_from
from pulsebridge.output.text import json_text, text_of

if TYPE_CHECKING:
    from bridge.dead_letters.records import Selection
    from bridge.settings import Settings

__all__ = ["register"]

_STATES: Final = "|".join(FAILURES)
_HOW: Final = (
    "for dead letters give --letter, --topic, --reason, --device or --since, or --all; for commands give ids, or "
    f"--device or --group with --state {_STATES}"
)


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command("resend", short_help="Resend dead letters, and failed commands.")(_resend)


def _resend(
    command_ids: Annotated[
        list[str] | None, typer.Argument(metavar="[ID]...", help="Ids of commands.", show_default=False)
    ] = None,
    config: ConfigOption = None,
    sets: SetOption = None,
    letters: Annotated[
        list[str] | None,
        typer.Option("--letter", metavar="ID", help="Id of a dead letter; may be repeated.", show_default=False),
    ] = None,
    topic: TopicOption = "",
    reason: ReasonOption = "",
    device: DeviceOption = "",
    since: SinceOption = "",
    every: Annotated[bool, typer.Option("--all", help="All dead letters, without a selection.")] = False,
    remap: Annotated[
        bool, typer.Option("--remap", help="Map dead letters by the current rules, not to their original topic.")
    ] = False,
    states: Annotated[
        list[str] | None,
        typer.Option(
            "--state",
            metavar=_STATES,
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
    expires_in: Annotated[
        str,
        typer.Option(
            metavar="AGE|never",
            help="New expiry of commands: 90s, 15m, 2h, 3d. Default: the old one.",
            show_default=False,
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
    """Resend what failed: dead letters to their original topics, or commands to their devices.

    Dead letters go in order, and their resend is recorded: none is resent a second time. After all dead letters of a
    topic, ingest resumes to write to it if ingest.on_blocked had blocked it. Only one such resend runs at a time. It
    refuses a command that push dead-lettered: give its id.

    A command goes to the end of its device's queue, with the same topic, payload and QoS. The new command has the id
    ID~2 (then ID~3, …) and names the old one (resend_of). Pending, delivered and answered commands are refused, and
    without --device an id that several devices have. A second run resends nothing.

    The exit code is 1 if something was refused.

    Examples:

      pulsebridge resend --topic plant --dry-run

      pulsebridge resend overheat-7f3a --expires-in 1h

      pulsebridge resend --device press-7 --state expired --expires-in 2h --dry-run
    """
    settings = settings_from(config, sets)
    if command_ids or states or group or expires_in or force:
        if letters or topic or reason or every or remap:
            raise ConfigError("dead letters and commands are selected at once", remedy=_HOW)
        refused = _resend_commands(
            settings,
            list(dict.fromkeys(command_ids or ())),
            states or [],
            device=device,
            group=group,
            since=since,
            expires_in=expires_in,
            limit=limit,
            force=force,
            dry_run=dry_run,
            as_json=as_json,
        )
    else:
        selection = selection_of(topic, reason, device, since, letters or [])
        if not every and selection == type(selection)():
            raise ConfigError("no dead letter is selected, and no command", remedy=_HOW)
        refused = _resend_letters(settings, selection, remap=remap, dry_run=dry_run, as_json=as_json)
    if refused:
        raise typer.Exit(1)


def _resend_letters(settings: Settings, selection: Selection, *, remap: bool, dry_run: bool, as_json: bool) -> bool:
    """Resend dead letters and print the report. Returns whether one was refused."""
    from bridge.dead_letters.replay import Replayer
    from bridge.pulsar.admin import PulsarAdmin
    from bridge.pulsar.client import PulsarClient
    from bridge.routing.mapper import Mapper
    from pulsebridge.output.dead_letters import report_json, report_text

    with PulsarClient(settings.pulsar) as client, PulsarAdmin(settings.pulsar, timeout_s=30) as admin:
        mapper = None
        if remap:
            from bridge.intake.provisioning import known_topics

            mapper = Mapper(settings, known_topics(admin))
        report = Replayer(
            client,
            admin,
            selection,
            mapper=mapper,
            dry_run=dry_run,
            report_line=lambda line: typer.echo(printable(line), err=True),
        ).run()
    typer.echo(
        json_text(report_json(report, dry_run=dry_run), indent=2) if as_json else report_text(report, dry_run=dry_run)
    )
    return bool(report.refused)


def _resend_commands(
    settings: Settings,
    ids: list[str],
    states: list[str],
    *,
    device: str,
    group: str,
    since: str,
    expires_in: str,
    limit: int,
    force: bool,
    dry_run: bool,
    as_json: bool,
) -> bool:
    """Resend commands and print the result. Returns whether one was refused."""
    from bridge.dead_letters.history import next_copy, of_one_device
    from bridge.inspect.devices.search import Search
    from bridge.settings.units import since_us
    from pulsebridge.cli.commands import print_left_out
    from pulsebridge.cli.devices import push_topics
    from pulsebridge.resending import resend

    target, narrowed = device or group, group or since
    unknown = [state for state in states if state not in FAILURES]
    if unknown:
        raise ConfigError(f"--state {unknown[0]}: is not one of {', '.join(FAILURES)}")
    if states and not target:
        raise ConfigError(f"--state {states[0]}: also needs --device or --group")
    if target and not states and not ids:
        raise ConfigError(f"--{'device' if device else 'group'} {target}: also needs --state", remedy=_HOW)
    if bool(ids) == bool(states) or (ids and narrowed):
        raise ConfigError("no command, or an ambiguous set of commands, is selected", remedy=_HOW)
    now_us = time.time_ns() // 1000
    expires_at_ms = _expiry(expires_in, now_us)
    from_us = since_us(since, now_us) if since else 0
    with push_topics(settings) as topics:
        search = Search(topics)
        if ids:
            found = search.by_id(ids, device)
        else:
            found = search.by_state(device, states, group=group, since_us=from_us)[:limit]
        families, refused = of_one_device(found)
        resent = resend(
            topics,
            families,
            lambda one: next_copy(one, now_us=now_us, force=force, expires_at_ms=expires_at_ms),
            dry_run=dry_run,
        )
    resent.refused = [*refused, *resent.refused]
    print_left_out(search)
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
    return bool(resent.refused)


def _expiry(text: str, now_us: int) -> int | None:
    from bridge.settings.units import Duration

    if text in ("", "never"):
        return 0 if text else None
    with suppress(ValueError):
        if found := Duration(text):
            return now_us // 1000 + int(found * 1000)
    raise ConfigError(f"--expires-in {text}: not a duration", remedy="give 90s, 15m, 2h, 3d or never")
