"""The command ``pulsebridge check``."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Final

import typer

from bridge.display import printable
from bridge.errors import EXIT_FAILED, ConfigError
from pulsebridge.cli.options import ConfigOption, JsonOption, SetOption, settings_from
from pulsebridge.output.text import json_text

if TYPE_CHECKING:
    from bridge.settings import Settings

__all__ = ["register"]

_RESTART_S: Final = 600.0
"""How long --wait-for-restart waits, in seconds."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("check")(check)


def check(
    config: ConfigOption = None,
    sets: SetOption = None,
    as_json: JsonOption = False,
    tier: Annotated[
        str | None,
        typer.Option(
            "--tier",
            metavar="ingest|source|sink|push",
            help="Also try the topics, rights and subscriptions of this tier, without a write or an acknowledgement.",
            show_default=False,
        ),
    ] = None,
    broker: Annotated[
        bool, typer.Option("--broker", help="Instead try the MQTT broker of each link: what it does, what follows.")
    ] = False,
    wait_for_restart: Annotated[
        bool,
        typer.Option(
            "--wait-for-restart", help="With --broker: also wait for a restart of the broker, and report what survived."
        ),
    ] = False,
    messages: Annotated[
        int,
        typer.Option("--messages", min=1, max=100_000, help="With --broker: messages to queue for an offline session."),
    ] = 1500,
) -> None:
    """Dial every endpoint; print each failure with its remedy.

    Exit code 1 if an endpoint does not answer, or another distribution shadows a package of Pulsebridge. With --broker:
    if something that ingest or push needs does not work. Its client ids begin with pb-check-, its topics with
    pulsebridge-check/; it reads no topic of others, and deletes its sessions and retained messages.

    Examples:

        pulsebridge check

        pulsebridge check --set mqtt.host=broker.example --json

        pulsebridge check --tier ingest --set pulsar.provision=verify

        pulsebridge check --broker --wait-for-restart
    """
    from bridge.inspect.check import TIERS, check_endpoints, check_rights
    from pulsebridge.shadowing import shadowed_here

    if tier is not None and tier not in TIERS:
        raise ConfigError(f"--tier {tier}: unknown tier", remedy=f"give one of {', '.join(TIERS)}")
    settings = settings_from(config, sets)
    if broker:
        raise typer.Exit(_check_brokers(settings, wait_for_restart, messages, as_json=as_json))
    findings = check_endpoints(settings)
    if tier is not None and all(f.ok for f in findings):  # else the output would repeat a failure
        findings += check_rights(settings, tier)
    shadows = shadowed_here()
    ok = all(f.ok for f in findings) and not shadows
    if as_json:
        body = {"ok": ok, "endpoints": [asdict(f) for f in findings], "shadowed": shadows}
        typer.echo(json.dumps(body, indent=2))
    else:
        for f in findings:
            mark = "ok    " if f.ok else "failed"
            remedy = f" — {f.remedy}" if f.remedy else ""
            typer.echo(printable(f"{mark}  {f.name:<13} {f.address}  {f.detail}{remedy}"))
        for line in shadows:
            typer.echo(f"failed  packages      {line} — install pulsebridge into a separate environment")
        if not shadows:
            typer.echo("ok      packages      bridge, sources, sinks, streaming and pulsebridge: not shadowed")
    raise typer.Exit(0 if ok else 1)


def _check_brokers(settings: Settings, wait_for_restart: bool, messages: int, *, as_json: bool) -> int:
    from bridge.inspect.broker.check import check_broker
    from pulsebridge.output.broker_check import lines_of, report_json

    reports = []
    for name, mqtt in settings.links().items():
        found = check_broker(
            settings,
            name,
            mqtt,
            messages=messages,
            restart_s=_RESTART_S if wait_for_restart else 0.0,
            report=lambda line: typer.echo(printable(line), err=True),
        )
        reports.append(found)
        if not as_json:
            typer.echo("\n".join(lines_of(found)))
    ok = all(one.ok for one in reports)
    if as_json:
        typer.echo(json_text({"ok": ok, "brokers": [report_json(one) for one in reports]}, indent=2))
    return 0 if ok else EXIT_FAILED
