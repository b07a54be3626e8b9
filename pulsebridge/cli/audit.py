"""The command ``pulsebridge audit``."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from bridge.errors import ConfigError
from pulsebridge.cli.options import ConfigOption, JsonOption, SetOption, seconds_of, settings_from
from pulsebridge.cli.tables import moment
from pulsebridge.output.text import json_text, text_of

if TYPE_CHECKING:
    from bridge.settings import Settings
    from pulsebridge.audit.live.findings import Report
    from pulsebridge.audit.live.on_disk import Store

__all__ = ["audit"]

_DAY_US: Final = 86_400_000_000


def audit(
    run_dir: Annotated[Path | None, typer.Argument(help="Folder of a run of the demo, to audit that one.")] = None,
    config: ConfigOption = None,
    sets: SetOption = None,
    as_json: JsonOption = False,
    since: Annotated[
        str, typer.Option(metavar="TIME", help="Begin, ISO 8601, UTC; default: a day before --until.")
    ] = "",
    until: Annotated[str, typer.Option(metavar="TIME", help="End, ISO 8601, UTC; default: now less --settle.")] = "",
    settle: Annotated[
        str, typer.Option(metavar="DURATION", help="Time for messages under way to arrive in the tables.")
    ] = "5m",
    strict: Annotated[bool, typer.Option("--strict", help="Report redelivered copies as findings.")] = False,
    spark: Annotated[bool, typer.Option("--spark", help="Read the tables with Spark.")] = False,
    metrics: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the result for node_exporter's textfile collector.")
    ] = None,
    most: Annotated[int, typer.Option("--most", min=1, help="How many findings to name; all are counted.")] = 1000,
    live: Annotated[bool, typer.Option("--live", help="Of a run: read Pulsar instead of the run's dump.")] = False,
) -> None:
    """Compare what a running deployment has stored, hop by hop.

    Exit code 1 if a message is missing, repeated, altered or out of order.

    Examples:

        pulsebridge audit

        pulsebridge audit --since 2026-01-01T00:00 --until 2026-01-02T00:00 --json

        pulsebridge audit build/demo
    """
    if run_dir is not None:
        raise typer.Exit(_audit_run(run_dir, live=live, as_json=as_json))
    from pulsebridge.audit.live import run
    from pulsebridge.audit.live.metrics import write_metrics

    settings = settings_from(config, sets)
    now = time.time_ns() // 1000
    until_us = _us(until) if until else now - round(seconds_of("--settle", settle, zero=True) * 1e6)
    since_us = _us(since) if since else until_us - _DAY_US
    if since_us >= until_us:
        raise ConfigError("the audit's begin is not before its end", remedy="check --since, --until and --settle")
    with _store(settings, spark) as store:
        report = run.audit(settings, store, since_us, until_us, strict=strict, most=most)
    if metrics is not None:
        write_metrics(metrics, report, now / 1e6)
    typer.echo(json_text(report.as_dict(), indent=2) if as_json else text_of(_lines(report)))
    raise typer.Exit(0 if report.clean else 1)


def _audit_run(folder: Path, *, live: bool, as_json: bool) -> int:
    """Compare the records of a run of the demo, with the journals of its devices. Returns the exit code."""
    from rich.console import Console

    from bridge.settings.loading import load
    from pulsebridge.audit.show import show
    from pulsebridge.demo.run_folder import RunFolder

    run = RunFolder(folder)
    run.manifest()  # raises at once if the folder is not that of a run
    verdict = run.audit(load(run.settings_file).pulsar if live else None)
    if as_json:
        typer.echo(json_text(verdict.as_dict(), indent=2))
    else:
        show(verdict, Console())
    return 0 if verdict.passed else 1


def _us(text: str) -> int:
    return round(datetime.fromisoformat(moment(text)).timestamp() * 1e6)


@contextmanager
def _store(settings: Settings, spark: bool) -> Iterator[Store]:
    streaming = settings.streaming
    if spark:
        from pulsebridge.audit.live.on_spark import OnSpark
        from pulsebridge.spark_session import job_session
        from streaming.tables import table_of

        session = job_session(settings)
        try:
            yield OnSpark(session, lambda name: table_of(name, streaming).sql)
        finally:
            session.stop()
    elif streaming.schema_name:
        raise ConfigError("the tables have a schema, which only Spark can look up", remedy="add --spark")
    else:
        from pulsebridge.audit.live.on_disk import OnDisk

        with tempfile.TemporaryDirectory(prefix="pulsebridge-audit-") as folder:
            yield OnDisk(streaming.root, Path(folder))


def _lines(report: Report) -> list[str]:
    from pulsebridge.audit.live.findings import when

    lines = [f"{when(report.since_us)} to {when(report.until_us)}"]
    lines += [f"  {count:>12,}  {name}" for name, count in report.read.items()]
    lines += [f"  not compared: {what}" for what in report.unseen]
    lines += [f"  {count:,} redelivered copies: {hop}" for hop, count in report.copies.items() if count]
    for f in report.found:
        lines.append(f"{f.kind:<10}  {f.hop}  {f.device or '-'}  {when(f.at_us)}  {f.message}  {f.detail}".rstrip())
    total = sum(report.counts.values())
    if total > len(report.found):
        lines.append(f"and {total - len(report.found):,} more (--most)")
    return [*lines, f"{total:,} findings" if total else "clean: no message is missing, repeated or reordered"]
