"""The commands ``pulsebridge subscriptions`` and ``pulsebridge offsets``: what a query left in Pulsar and on disk."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bridge.display import json_text, printable, text_of
from bridge.options import ConfigOption, JsonOption, SetOption, settings_from

if TYPE_CHECKING:
    from bridge.pulsar_admin import PulsarAdmin
    from bridge.settings import Settings
    from sources.spark_internals import CheckpointState
    from sources.subscriptions import HeldTopic

__all__ = ["register"]

_Topics = Annotated[
    list[str] | None,
    typer.Option(
        "--topic",
        help="Only this topic, with its tenant and namespace; may be repeated. Default: all of pulsar.namespaces.",
        show_default=False,
    ),
]
_Folder = Annotated[
    str,
    typer.Argument(metavar="CHECKPOINT", help="The query's checkpointLocation: a folder, or s3://, hdfs:// …"),
]


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    subscriptions = typer.Typer(help="What streaming queries hold in Pulsar: list, delete.", no_args_is_help=True)
    subscriptions.command("list")(_list)
    subscriptions.command("delete")(_delete)
    app.add_typer(subscriptions, name="subscriptions")
    offsets = typer.Typer(help="What a query's checkpoint holds: show, plan.", no_args_is_help=True)
    offsets.command("show")(_show)
    offsets.command("plan")(_plan)
    app.add_typer(offsets, name="offsets")


def _list(
    config: ConfigOption = None, sets: SetOption = None, topics: _Topics = None, as_json: JsonOption = False
) -> None:
    """List the subscriptions that streaming queries left or use, with what each keeps from being deleted.

    Example: pulsebridge subscriptions list
    """
    from bridge.pulsar_admin import PulsarAdmin
    from sources.subscriptions import held_topics

    settings = settings_from(config, sets)
    with PulsarAdmin(settings.pulsar, timeout_s=30) as admin:
        found = held_topics(admin, _topics(admin, settings, topics))
    if as_json:
        typer.echo(json_text([of.as_json() for of in found], indent=2))
        return
    for of in found:
        typer.echo(_line(of))
    if not found:
        typer.echo("no subscription of a query")


def _delete(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The query's predefinedSubscription.")],
    config: ConfigOption = None,
    sets: SetOption = None,
    topics: _Topics = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Delete a query's subscription: what only it kept may then go. One in use is refused.

    The query's checkpoint can be continued afterwards only as far back as Pulsar's retention reaches.

    Example: pulsebridge subscriptions delete my-first-query
    """
    from bridge.pulsar_admin import PulsarAdmin
    from sources.subscriptions import delete, held_topics

    settings = settings_from(config, sets)
    with PulsarAdmin(settings.pulsar, timeout_s=30) as admin:
        found = held_topics(admin, _topics(admin, settings, topics), name)
        for of in found:
            typer.echo(_line(of))
        if found and not yes:
            typer.confirm("delete?", abort=True)
        delete(admin, found)
    typer.echo(f"deleted {printable(name)} on {len(found)} topics")


def _line(of: HeldTopic) -> str:
    use = "in use" if of.in_use else "not in use"
    begun = "has committed batches" if of.committed else "no batch committed yet"
    return printable(
        f"{of.subscription}  {of.topic}  {len(of.partitions)} partitions, {use}, {begun}, "
        f"keeps {of.entries} messages, {of.size} bytes"
    )


def _topics(admin: PulsarAdmin, settings: Settings, given: Iterable[str] | None) -> list[str]:
    from bridge.contract import full_name

    if given:
        return [full_name(name) for name in given]
    return [topic for namespace in settings.pulsar.readings_namespaces for topic in admin.topics(namespace)]


def _show(folder: _Folder, as_json: JsonOption = False) -> None:
    """Show what a checkpoint holds: the last batch, whether it is committed, and the place in each partition.

    Nothing is dialled, nothing is changed.

    Example: pulsebridge offsets show build/my-first-query/checkpoint
    """
    from sources.spark_internals import read_checkpoint

    state = read_checkpoint(folder)
    if as_json:
        typer.echo(json_text(_state_json(state), indent=2))
        return
    if state.unfinished:
        typer.echo(f"batch {state.planned} is planned and not committed: it runs again at the next start")
    else:
        typer.echo(f"batch {state.planned} is committed")
    for offset in state.offsets:
        lines = [f"cluster {offset.cluster}"]
        lines += [f"topic {topic}  mark {mark or 'none'}" for topic, mark in sorted(offset.incarnations.items())]
        lines += [
            f"  {name}  next entry {place.ledger}:{place.entry}" for name, place in sorted(offset.positions.items())
        ]
        typer.echo(text_of(lines))


def _state_json(state: CheckpointState) -> dict[str, Any]:
    return {
        "committed": state.committed,
        "planned": state.planned,
        "begin": [offset.to_json() for offset in state.begin],
        "end": [offset.to_json() for offset in state.offsets],
    }


def _plan(
    folder: _Folder,
    at: Annotated[
        str,
        typer.Option(
            "--at",
            metavar="TIME",
            help="Publish time to go on from: ISO, an age like 2h, or ms since the epoch.",
        ),
    ],
    config: ConfigOption = None,
    sets: SetOption = None,
) -> None:
    """Print the startingOffsets that go on from a time, for the topics of a checkpoint.

    Give them to a new query with a new checkpoint. A checkpoint of another cluster, or of a topic that was made anew
    since, is refused.

    Example: pulsebridge offsets plan --at 2026-01-31T12:00:00Z build/my-first-query/checkpoint
    """
    import time

    from bridge.pulsar_admin import PulsarAdmin
    from sources.replanning import places_at, time_ms
    from sources.spark_internals import read_checkpoint

    settings = settings_from(config, sets)
    wanted = time_ms(at, time.time_ns() // 1_000_000)
    state = read_checkpoint(folder)
    found = places_at(PulsarAdmin(settings.pulsar, timeout_s=30), state.offsets, wanted)
    for line in found.notes:
        typer.echo(printable(line), err=True)
    typer.echo(json_text({name: list(place) for name, place in sorted(found.places.items())}))
