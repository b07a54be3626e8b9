"""The command ``pulsebridge check``."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from bridge.display import printable
from bridge.errors import ConfigError
from pulsebridge.cli.options import ConfigOption, JsonOption, SetOption, settings_from

__all__ = ["register"]


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
) -> None:
    """Dial every endpoint, consume nothing, and print each failure with its remedy.

    Exit code 1 if an endpoint does not answer, or another distribution shadows a package of Pulsebridge.

    Examples:

        pulsebridge check

        pulsebridge check --set mqtt.host=broker.example --json

        pulsebridge check --tier ingest --set pulsar.provision=verify
    """
    from bridge.inspect.check import TIERS, check_endpoints, check_rights
    from pulsebridge.shadowing import shadowed_here

    if tier is not None and tier not in TIERS:
        raise ConfigError(f"--tier {tier}: unknown tier", remedy=f"give one of {', '.join(TIERS)}")
    settings = settings_from(config, sets)
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
