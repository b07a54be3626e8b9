"""The commands ``pulsebridge dead-letters list`` and ``show``."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bridge.errors import ConfigError
from pulsebridge.cli.completion import complete_device
from pulsebridge.cli.options import ConfigOption, JsonOption, SetOption, settings_from
from pulsebridge.output.text import iso, json_text, text_of

if TYPE_CHECKING:
    from bridge.dead_letters.records import DeadLetter, Selection
    from bridge.pulsar.client import PulsarClient
    from bridge.settings import Settings

__all__ = ["DeviceOption", "ReasonOption", "SinceOption", "TopicOption", "register", "selection_of"]

TopicOption = Annotated[
    str,
    typer.Option(help="Original Pulsar topic, or an MQTT filter of the original MQTT topics.", show_default=False),
]
ReasonOption = Annotated[str, typer.Option(help="Text that the reason contains.", show_default=False)]
DeviceOption = Annotated[
    str,
    typer.Option(
        help="Device that sent or should receive the message.", show_default=False, autocompletion=complete_device
    ),
]
SinceOption = Annotated[
    str, typer.Option(metavar="AGE|TIME", help="90s, 15m, 2h, 3d, or an ISO time.", show_default=False)
]


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    commands = typer.Typer(help="Messages that could not be written: list, show.", no_args_is_help=True)
    commands.command("list")(_list)
    commands.command("show")(_show)
    app.add_typer(commands, name="dead-letters")


def _list(
    config: ConfigOption = None,
    sets: SetOption = None,
    topic: TopicOption = "",
    reason: ReasonOption = "",
    device: DeviceOption = "",
    since: SinceOption = "",
    limit: Annotated[int, typer.Option(min=0, help="How many of the newest to list.")] = 20,
    waiting: Annotated[bool, typer.Option("--waiting", help="Leave out replayed ones.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Count dead letters by reason and topic, and list the newest.

    Example: pulsebridge dead-letters list --topic 'plant/+/press' --since 2h
    """
    from bridge.dead_letters.log import DeadLetterLog
    from bridge.dead_letters.records import Note
    from pulsebridge.output.dead_letters import Summary

    settings = settings_from(config, sets)
    selection = selection_of(topic, reason, device, since)
    summary = Summary(limit)
    with _client(settings) as client:
        log = DeadLetterLog(client)
        for partition in range(len(log.partitions)):
            done = log.replayed(partition)
            for record in log.scan(partition):
                if isinstance(record, Note) or not selection.means(record):
                    continue
                if not (waiting and record.id.position in done):
                    summary.add(record, replayed=record.id.position in done)
    typer.echo(json_text(summary.as_json(), indent=2) if as_json else summary.as_text())


def _show(
    letter: Annotated[str, typer.Argument(metavar="ID", help="Id as list prints it, for example 0:123:4.")],
    config: ConfigOption = None,
    sets: SetOption = None,
    limit: Annotated[int, typer.Option("--bytes", min=0, help="How much of the payload to show.")] = 512,
    out: Annotated[Path | None, typer.Option(help="Write the payload to this file.", show_default=False)] = None,
    as_json: JsonOption = False,
) -> None:
    """Show one dead letter: its reason, its properties and the head of its payload.

    Example: pulsebridge dead-letters show 0:123:4 --out payload.bin
    """
    from bridge.dead_letters.records import LetterId
    from pulsebridge.output.dead_letters import body_of

    wanted = LetterId.parse(letter)
    with _client(settings_from(config, sets)) as client:
        found = _find(client, wanted)
    if out is not None:
        out.write_bytes(found.payload)
    shown = {
        "id": str(found.id),
        "at": iso(found.at_us),
        "why": found.reason,
        "meant_for": found.target,
        "key": found.target_key,
        "bytes": len(found.payload),
        "lost_bytes": found.lost_bytes,
        "properties": dict(sorted(found.properties.items())),
    }
    if as_json:
        typer.echo(json_text(shown | {"head_hex": found.payload[:limit].hex()}, indent=2))
        return
    properties = shown.pop("properties")
    assert isinstance(properties, dict)
    lines = [f"{name.replace('_', ' '):<12} {value}" for name, value in shown.items()]
    lines += ["", "properties"] + [f"  {name:<24} {value}" for name, value in properties.items()]
    typer.echo(text_of([*lines, "", "payload", *body_of(found.payload, limit)]))


def selection_of(topic: str, reason: str, device: str, since: str, letters: list[str] | None = None) -> Selection:
    """Return the selection of these options. Raises ConfigError if one is not valid."""
    from bridge.dead_letters.records import LetterId, Selection
    from bridge.settings.units import since_us

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
        f"the dead letter {wanted} is not in {log.topic}",
        remedy="check the id with pulsebridge dead-letters list; retention may have removed it",
    )


@contextmanager
def _client(settings: Settings) -> Iterator[PulsarClient]:
    from bridge.pulsar.client import PulsarClient

    with PulsarClient(settings.pulsar) as client:
        yield client
