"""The commands ``pulsebridge subscriptions`` and ``pulsebridge offsets``: state of queries in Pulsar and on disk."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bridge.display import printable
from pulsebridge.cli.options import ConfigOption, JsonOption, SetOption, settings_from
from pulsebridge.output.text import json_text, text_of

if TYPE_CHECKING:
    from bridge.pulsar.admin import PulsarAdmin
    from bridge.settings import Settings
    from sources.spark_internals import CheckpointState
    from sources.subscriptions import RetainedTopic

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
    subscriptions = typer.Typer(help="Retention subscriptions of queries: list, delete.", no_args_is_help=True)
    subscriptions.command("list")(_list)
    subscriptions.command("delete")(_delete)
    app.add_typer(subscriptions, name="subscriptions")
    offsets = typer.Typer(help="Offsets in the checkpoint of a query: show, plan.", no_args_is_help=True)
    offsets.command("show")(_show)
    offsets.command("plan")(_plan)
    app.add_typer(offsets, name="offsets")


def _list(
    config: ConfigOption = None, sets: SetOption = None, topics: _Topics = None, as_json: JsonOption = False
) -> None:
    """List the retention subscriptions of streaming queries with the messages that each one retains.

    Example: pulsebridge subscriptions list
    """
    from bridge.pulsar.admin import PulsarAdmin
    from sources.subscriptions import retained_topics

    settings = settings_from(config, sets)
    with PulsarAdmin(settings.pulsar, timeout_s=30) as admin:
        found = retained_topics(admin, _topics(admin, settings, topics))
    if as_json:
        typer.echo(json_text([one.as_json() for one in found], indent=2))
        return
    for one in found:
        typer.echo(_line(one))
    if not found:
        typer.echo("no query has a subscription")


def _delete(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The query's predefinedSubscription.")],
    config: ConfigOption = None,
    sets: SetOption = None,
    topics: _Topics = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Delete a query's subscription, so that Pulsar may delete the messages that only it retained; refuse one in use.

    Afterwards the query can continue from its checkpoint only if Pulsar's retention still covers its offsets.

    Example: pulsebridge subscriptions delete my-first-query
    """
    from bridge.pulsar.admin import PulsarAdmin
    from sources.subscriptions import delete, retained_topics

    settings = settings_from(config, sets)
    with PulsarAdmin(settings.pulsar, timeout_s=30) as admin:
        found = retained_topics(admin, _topics(admin, settings, topics), name)
        for one in found:
            typer.echo(_line(one))
        if found and not yes:
            typer.confirm("delete?", abort=True)
        delete(admin, found)
    typer.echo(f"deleted {printable(name)} on {len(found)} topics")


def _line(found: RetainedTopic) -> str:
    use = "in use" if found.in_use else "not in use"
    committed = "has committed batches" if found.committed else "no batch committed yet"
    return printable(
        f"{found.subscription}  {found.topic}  {len(found.partitions)} partitions, {use}, {committed}, "
        f"keeps {found.entries} messages, {found.size} bytes"
    )


def _topics(admin: PulsarAdmin, settings: Settings, given: Iterable[str] | None) -> list[str]:
    from bridge.contract import full_name

    if given:
        return [full_name(name) for name in given]
    return [topic for namespace in settings.pulsar.readings_namespaces for topic in admin.topics(namespace)]


def _show(folder: _Folder, as_json: JsonOption = False) -> None:
    """Show the last batch of a checkpoint, its state, and the offset in each partition.

    The command connects to no server and changes nothing.

    Example: pulsebridge offsets show build/my-first-query/checkpoint
    """
    from sources.spark_internals import read_checkpoint

    state = read_checkpoint(folder)
    if as_json:
        typer.echo(json_text(_state_json(state), indent=2))
        return
    if state.unfinished:
        typer.echo(f"batch {state.planned} is planned and not committed: Spark reruns it at the next start")
    else:
        typer.echo(f"batch {state.planned} is committed")
    for offset in state.offsets:
        lines = [f"cluster {offset.cluster}"]
        lines += [f"topic {topic}  mark {mark or 'none'}" for topic, mark in sorted(offset.incarnations.items())]
        lines += [
            f"  {name}  next entry {position.ledger}:{position.entry}"
            for name, position in sorted(offset.positions.items())
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
            help="Publish time to continue from: ISO, an age like 2h, or ms since the epoch.",
        ),
    ],
    config: ConfigOption = None,
    sets: SetOption = None,
) -> None:
    """Print the startingOffsets of a time, for the topics of a checkpoint.

    Give them to a new query with a new checkpoint. The command refuses a checkpoint of another cluster, or of a topic
    that was re-created since.

    Example: pulsebridge offsets plan --at 2026-01-31T12:00:00Z build/my-first-query/checkpoint
    """
    import time

    from bridge.pulsar.admin import PulsarAdmin
    from sources.replanning import positions_at, time_ms
    from sources.spark_internals import read_checkpoint

    settings = settings_from(config, sets)
    wanted = time_ms(at, time.time_ns() // 1_000_000)
    state = read_checkpoint(folder)
    found = positions_at(PulsarAdmin(settings.pulsar, timeout_s=30), state.offsets, wanted)
    for line in found.notes:
        typer.echo(printable(line), err=True)
    typer.echo(json_text({name: list(offset) for name, offset in sorted(found.places.items())}))
