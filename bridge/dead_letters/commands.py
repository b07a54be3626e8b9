"""The commands ``pulsebridge dead-letters list``, ``show`` and ``replay``."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bridge.display import json_text, printable, text_of
from bridge.errors import ConfigError
from bridge.options import ConfigOption, JsonOption, SetOption, settings_from

if TYPE_CHECKING:
    from bridge.dead_letters.records import DeadLetter, Selection
    from bridge.pulsar_client import PulsarClient
    from bridge.settings import Settings

__all__ = ["register"]

_Topic = Annotated[
    str,
    typer.Option(help="Pulsar topic that they were meant for, or an MQTT filter of their topics.", show_default=False),
]
_Reason = Annotated[str, typer.Option(help="Text that the reason contains.", show_default=False)]
_Device = Annotated[str, typer.Option(help="Device that they come from or are for.", show_default=False)]
_Since = Annotated[str, typer.Option(metavar="AGE|TIME", help="90s, 15m, 2h, 3d, or an ISO time.", show_default=False)]


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    commands = typer.Typer(help="What could not be written: list, show, replay.", no_args_is_help=True)
    commands.command("list")(_list)
    commands.command("show")(_show)
    commands.command("replay")(_replay)
    app.add_typer(commands, name="dead-letters")


def _list(
    config: ConfigOption = None,
    sets: SetOption = None,
    topic: _Topic = "",
    reason: _Reason = "",
    device: _Device = "",
    since: _Since = "",
    limit: Annotated[int, typer.Option(min=0, help="How many of the newest are listed one by one.")] = 20,
    waiting: Annotated[bool, typer.Option("--waiting", help="Leave out what was replayed.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Count dead letters by reason and topic, and list the newest.

    Example: pulsebridge dead-letters list --topic 'plant/+/press' --since 2h
    """
    from bridge.dead_letters.log import DeadLetterLog
    from bridge.dead_letters.records import Note
    from bridge.dead_letters.showing import Summary

    settings = settings_from(config, sets)
    selection = _selection(topic, reason, device, since)
    summary = Summary(limit)
    with _client(settings) as client:
        log = DeadLetterLog(client)
        for partition in range(len(log.partitions)):
            done = log.replayed(partition)
            for record in log.scan(partition):
                if isinstance(record, Note) or not selection.means(record):
                    continue
                if not (waiting and record.id.place in done):
                    summary.add(record, replayed=record.id.place in done)
    typer.echo(json_text(summary.as_json(), indent=2) if as_json else summary.as_text())


def _show(
    letter: Annotated[str, typer.Argument(metavar="ID", help="Id as list prints it, for example 0:123:4.")],
    config: ConfigOption = None,
    sets: SetOption = None,
    limit: Annotated[int, typer.Option("--bytes", min=0, help="How much of the payload is shown.")] = 512,
    out: Annotated[Path | None, typer.Option(help="Write the payload to this file.", show_default=False)] = None,
    as_json: JsonOption = False,
) -> None:
    """Show one dead letter: why, its properties and the head of its payload.

    Example: pulsebridge dead-letters show 0:123:4 --out payload.bin
    """
    from bridge.dead_letters.records import LetterId
    from bridge.dead_letters.showing import body_of, iso

    wanted = LetterId.parse(letter)
    with _client(settings_from(config, sets)) as client:
        found = _find(client, wanted)
    if out is not None:
        out.write_bytes(found.payload)
    told = {
        "id": str(found.id),
        "at": iso(found.at_us),
        "why": found.reason,
        "meant_for": found.target,
        "key": found.target_key,
        "bytes": len(found.payload),
        "lost_bytes": found.lost_bytes,
        "properties": dict(sorted(found.told.items())),
    }
    if as_json:
        typer.echo(json_text(told | {"head_hex": found.payload[:limit].hex()}, indent=2))
        return
    properties = told.pop("properties")
    assert isinstance(properties, dict)
    lines = [f"{name.replace('_', ' '):<12} {value}" for name, value in told.items()]
    lines += ["", "properties"] + [f"  {name:<24} {value}" for name, value in properties.items()]
    typer.echo(text_of([*lines, "", "payload", *body_of(found.payload, limit)]))


def _replay(
    config: ConfigOption = None,
    sets: SetOption = None,
    letters: Annotated[
        list[str] | None,
        typer.Option("--id", metavar="ID", help="One of them; may be repeated.", show_default=False),
    ] = None,
    topic: _Topic = "",
    reason: _Reason = "",
    device: _Device = "",
    since: _Since = "",
    every: Annotated[bool, typer.Option("--all", help="All of them: no selection is needed then.")] = False,
    remap: Annotated[
        bool, typer.Option("--remap", help="Map them anew by the present rules instead of their old topic.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, write nothing.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write dead letters to where they were meant to go, in their order, and note that it was done.

    What was replayed is not replayed again. A command that push gave up is refused, also one that its device was to have
    as a member of a group: pulsebridge commands resend sends it again, to that device alone, under an id that it has not
    had. A command to a group that nobody was given, because the group was unknown, goes to the group. A topic that ingest.on_blocked has blocked is written to again once all
    its dead letters are replayed. One replay runs at a time: a second one is refused. The exit code is 1 then, and
    when some were refused.

    Example: pulsebridge dead-letters replay --topic plant --dry-run
    """
    from bridge.dead_letters.replay import Replayer
    from bridge.dead_letters.showing import report_json, report_text
    from bridge.mapping import Mapper
    from bridge.pulsar_admin import PulsarAdmin

    settings = settings_from(config, sets)
    selection = _selection(topic, reason, device, since, letters or [])
    if not every and selection == type(selection)():
        raise ConfigError("nothing is selected", remedy="give --id, --topic, --reason, --device or --since, or --all")
    with _client(settings) as client, PulsarAdmin(settings.pulsar, timeout_s=30) as admin:
        mapper = None
        if remap:
            from bridge.ingest.provisioning import known_topics

            mapper = Mapper(
                settings.ingest,
                pulsar=settings.pulsar,
                known=known_topics(admin),
                answers=settings.push.resumed_topic,
                max_name_bytes=settings.max_name_bytes,
            )
        replayer = Replayer(
            client,
            admin,
            selection,
            mapper=mapper,
            dry_run=dry_run,
            say=lambda line: typer.echo(printable(line), err=True),
        )
        report = replayer.run()
    typer.echo(
        json_text(report_json(report, dry_run=dry_run), indent=2) if as_json else report_text(report, dry_run=dry_run)
    )
    if report.refused:
        raise typer.Exit(1)


def _selection(topic: str, reason: str, device: str, since: str, letters: list[str] | None = None) -> Selection:
    from bridge.dead_letters.records import LetterId, Selection
    from bridge.dead_letters.showing import since_us

    return Selection(
        ids=frozenset(LetterId.parse(one) for one in letters or ()),
        topic=topic,
        reason=reason,
        device=device,
        since_us=since_us(since, time.time_ns() // 1000) if since else 0,
    )


def _find(client: PulsarClient, wanted: object) -> DeadLetter:
    from bridge.dead_letters.log import DeadLetterLog
    from bridge.dead_letters.records import LetterId, Note

    assert isinstance(wanted, LetterId)
    log = DeadLetterLog(client)
    if 0 <= wanted.partition < len(log.partitions):
        for record in log.scan(wanted.partition):
            if not isinstance(record, Note) and record.id == wanted:
                return record
    raise ConfigError(
        f"there is no dead letter {wanted} in {log.topic}",
        remedy="see pulsebridge dead-letters list; retention may have removed it",
    )


@contextmanager
def _client(settings: Settings) -> Iterator[PulsarClient]:
    from bridge.pulsar_client import PulsarClient

    with PulsarClient(settings.pulsar) as client:
        yield client
