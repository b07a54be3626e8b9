"""The commands of the ingest tier: ``pulsebridge ingest``, ``topics explain|discover`` and ``dead-letters``."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from bridge.errors import ConfigError
from pulsebridge.cli import dead_letters as dead_letter_commands
from pulsebridge.cli.options import ConfigOption, JsonOption, SetOption, seconds_of, settings_from
from pulsebridge.output.text import json_text

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    app.command("ingest")(_ingest)
    topics = typer.Typer(help="How MQTT topics become Pulsar topics.", no_args_is_help=True)
    topics.command("explain")(_explain)
    topics.command("discover")(_discover)
    app.add_typer(topics, name="topics")
    dead_letter_commands.register(app)


def _ingest(
    config: ConfigOption = None,
    sets: SetOption = None,
    shard: Annotated[
        str | None,
        typer.Option(
            metavar="I/N|auto",
            help="Run worker I of N, from 0; host/N takes I from the end of the host's name, as in a StatefulSet; auto: share "
            "the work with all others that run with auto.",
            show_default=False,
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Run this many workers on this machine and supervise them.", show_default=False),
    ] = None,
    owned: Annotated[bool, typer.Option("--owned", hidden=True)] = False,
) -> None:
    """Write the messages of MQTT brokers to Pulsar.

    Ingest acknowledges a message to the broker only after Pulsar has stored it. The first SIGTERM or Ctrl-C drains it,
    the second kills it. With --shard or --workers, several workers share the filters so that each device has one
    worker.

    Examples:

        pulsebridge ingest --set mqtt.host=broker.example --set pulsar.service_url=pulsar://pulsar:6650

        pulsebridge ingest --config pulsebridge.yaml --workers 4
    """
    if shard is not None and workers is not None:
        raise ConfigError("--shard and --workers exclude each other", remedy="give --workers N alone")
    if workers is not None:
        from pulsebridge.workers.supervisor import run_workers

        sys.exit(run_workers(config, list(sets or ()), workers))
    from bridge.ingest.service import run

    if owned:
        from pulsebridge.workers.supervisor import end_with_owner

        end_with_owner()
    clean = run(settings_from(config, sets, {"ingest.shard": shard}), shares_ports=owned)
    if not clean:
        # Pulsar is unreachable, but threads of its client still run: a normal exit would abort in them.
        sys.stdout.flush()
        os._exit(0)


def _explain(
    topic: Annotated[str, typer.Argument(help="An MQTT topic, for example plant/7/press/temperature.")],
    payload: Annotated[
        str | None, typer.Option(help="A payload, if a rule reads the device from it.", show_default=False)
    ] = None,
    user: Annotated[
        list[str] | None,
        typer.Option("--user", metavar="NAME=VALUE", help="A user property; may be repeated.", show_default=False),
    ] = None,
    config: ConfigOption = None,
    sets: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the rule and route of an MQTT topic, or the reason against one. It connects to no server.

    Examples:

        pulsebridge topics explain wearables/w-17/glucose

        pulsebridge topics explain gateway/7/up --payload '{"device": {"id": "w-17"}}'
    """
    from pulsebridge.topics.explaining import explanation_of, explanation_text

    if not topic:
        raise ConfigError("the topic is empty", remedy="give an MQTT topic, for example plant/7/press/temperature")
    properties = [(name, value) for name, _, value in (text.partition("=") for text in user or ())]
    body = None if payload is None else payload.encode("utf-8", "surrogateescape")
    explanation = explanation_of(settings_from(config, sets), topic, body, properties)
    typer.echo(json_text(explanation, indent=2) if as_json else explanation_text(explanation))
    if explanation["outcome"] == "not received":
        raise typer.Exit(1)


def _discover(
    duration: Annotated[
        str, typer.Option("--for", metavar="DURATION", help="How long to listen: 60s, 5m, 1h.")
    ] = "60s",
    filters: Annotated[
        list[str] | None,
        typer.Option("--filter", metavar="FILTER", help="MQTT filter; may be repeated. Default: #", show_default=False),
    ] = None,
    config: ConfigOption = None,
    sets: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Listen at the MQTT broker, show its topics, and propose rules for them.

    It uses a separate client id and a clean session, so it does not affect other clients. It does not need Pulsar.
    Ctrl-C stops it early.

    Examples:

        pulsebridge topics discover --for 60s --set mqtt.host=broker.example

        pulsebridge topics discover --for 10m --filter 'plant/#' --json
    """
    from pulsebridge.topics.listening import discover
    from pulsebridge.topics.showing import discovery_text

    seconds = seconds_of("--for", duration)
    found = discover(settings_from(config, sets).mqtt, filters or ["#"], seconds)
    typer.echo(json_text(found, indent=2) if as_json else discovery_text(found))
