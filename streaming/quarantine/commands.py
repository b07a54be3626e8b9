"""The commands ``pulsebridge quarantine list`` and ``replay``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from bridge.display import json_text, printable
from bridge.errors import ConfigError
from bridge.options import ConfigOption, JsonOption, SetOption, settings_from

if TYPE_CHECKING:
    from streaming.quarantine.selection import Selection

__all__ = ["register"]

_Rule = Annotated[
    list[str] | None,
    typer.Option("--rule", help="Rows that failed this rule; may be repeated.", show_default=False),
]
_Topic = Annotated[
    str, typer.Option(help="Pulsar topic of the readings, or an MQTT filter.", show_default=False)
]
_Device = Annotated[str, typer.Option(help="Device that they come from.", show_default=False)]
_Since = Annotated[
    str,
    typer.Option(
        metavar="AGE|TIME", help="Judged since: 90s, 15m, 2h, 3d, or an ISO time.", show_default=False
    ),
]


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    commands = typer.Typer(help="What silver held back: list, replay.", no_args_is_help=True)
    commands.command("list")(_list)
    commands.command("replay")(_replay)
    app.add_typer(commands, name="quarantine")


def _list(
    config: ConfigOption = None,
    sets: SetOption = None,
    rules: _Rule = None,
    topic: _Topic = "",
    device: _Device = "",
    since: _Since = "",
    limit: Annotated[int, typer.Option(min=0, help="How many of the newest are shown one by one.")] = 10,
    as_json: JsonOption = False,
) -> None:
    """Count what is held by rule and topic, and show the newest with reason and payload.

    Example: pulsebridge quarantine list --rule glucose_range --topic 'wearables/+/glucose' --since 2h
    """
    from streaming.local_run import local_tables
    from streaming.quarantine.listing import Summary, count_held

    settings = settings_from(config, sets)
    selection = _selection(rules, topic, device, since)
    with local_tables(settings) as (spark, tables):
        held = tables.quarantine
        found = count_held(held.read(spark), selection, limit) if held.exists(spark) else Summary()
    typer.echo(json_text(found.as_json(), indent=2) if as_json else found.as_text())


def _replay(
    config: ConfigOption = None,
    sets: SetOption = None,
    rules: _Rule = None,
    topic: _Topic = "",
    device: _Device = "",
    since: _Since = "",
    every: Annotated[bool, typer.Option("--all", help="All of them: no selection is needed then.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say how many would pass, write nothing.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Judge again what is held, by the decoders and the suite as they are now: what passes goes to silver.

    The messages are read from bronze. A reading that silver has comes to it no second time; rows that still fail stay,
    with the rules that they fail now. `pulsebridge stream` may run meanwhile; restart it first where rules were edited,
    since it keeps those that it began with. A replay that was killed is finished by the next. Readings that come to
    silver this way are old news, marked in rebuilt_at: no command comes of them, and gold and
    device_latest are recomputed for their days.

    Example: pulsebridge quarantine replay --rule glucose_range --dry-run
    """
    from streaming import silver
    from streaming.job import plan_of
    from streaming.local_run import local_tables
    from streaming.quarantine.listing import outcome_json, outcome_text
    from streaming.quarantine.replay import Outcome, Replay

    settings = settings_from(config, sets)
    selection = _selection(rules, topic, device, since)
    if not every and selection == type(selection)():
        raise ConfigError("nothing is selected", remedy="give --rule, --topic, --device or --since, or --all")
    plan = plan_of(settings)
    streaming = plan.settings.streaming
    recipe = silver.recipe_of(
        plan.decoders, plan.suite, streaming.clock_skew_s, plan.rule_fields,
        streaming.schema_evolution, streaming.max_added_columns, plan.settings.max_name_bytes,
    )  # fmt: skip
    with local_tables(settings) as (spark, tables):
        outcomes, more = [Outcome()], []
        if tables.quarantine.exists(spark):
            replay = Replay(spark, tables, recipe)
            outcomes = [replay.look(selection)] if dry_run else replay.run(selection)
            more = replay.followed.lines
    typer.echo(
        json_text([outcome_json(one, dry_run) for one in outcomes], indent=2)
        if as_json
        else "\n".join([*(outcome_text(one, dry_run) for one in outcomes), *map(printable, more)])
    )


def _selection(rules: list[str] | None, topic: str, device: str, since: str) -> Selection:
    from bridge.dead_letters.showing import since_us
    from streaming.quarantine.selection import Selection

    at = since_us(since, time.time_ns() // 1000) if since else 0
    return Selection(tuple(rules or ()), topic, device, at)
