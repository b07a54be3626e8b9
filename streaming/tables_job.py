"""The job that ``pulsebridge tables`` submits: rebuilds a span, or deletes a device, beside the running jobs.

``spark-submit --properties-file conf/spark-defaults.conf --jars DELTA_JARS streaming/tables_job.py rebuild|forget …``.
It decides which of the two is done and what is printed; exit 0 when it is done, 1 when it is not, with the remedy.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

if __name__ == "__main__":
    # Python puts a script's folder first: this package's modules would pass for top-level ones.
    sys.path[:] = [p for p in sys.path if Path(p or ".").resolve() != Path(__file__).resolve().parent]

import structlog

from bridge import logs
from bridge.display import printable
from bridge.errors import PulsebridgeError, TerminalError
from bridge.settings import Settings
from bridge.settings.loading import load
from streaming import remains
from streaming.care import REBUILD, alone
from streaming.following import Following
from streaming.forgetting import Forgetting, Forgotten
from streaming.rebuild import Rebuild, Span
from streaming.tables import Tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["forget", "main", "rebuild", "rebuild_gold"]

_log = structlog.get_logger("tables")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job; return the exit code."""
    given = _parser().parse_args(argv)
    try:
        settings = load(given.config, given.set)
        logs.configure(settings.log)
        if given.what == "rebuild":
            span = Span.parse(given.begin, given.end)
            work = rebuild if given.table == "silver" else rebuild_gold
            return _with_session(settings, lambda s: work(s, settings, span, given.dry_run))
        return _with_session(settings, lambda s: forget(s, settings, given.device, given.dry_run, given.wait))
    except PulsebridgeError as e:
        _log.error(str(e))
        return 1


def rebuild(spark: SparkSession, settings: Settings, span: Span, dry_run: bool) -> int:
    """Rebuild silver and quarantine of a span, and print what changes. Returns the exit code."""
    from streaming import silver
    from streaming.job import plan_of

    plan = plan_of(settings)
    silver.create_tables(spark, plan.tables)
    job = Rebuild(spark, plan.tables, plan.recipe, span)
    changes = job.run(dry_run=dry_run)
    _print(
        f"{'would be rebuilt' if dry_run else 'rebuilt'}: arrival from {span.begin} until before {span.end}"
    )
    for name, change in changes.items():
        _print(f"  {name}: {change.text}")
    if dry_run and job.followed.days:
        _print(f"  gold, device_latest: would be recomputed for {len(job.followed.days)} days of event time")
    for line in job.followed.lines:
        _print(f"  {line}")
    return 0


def rebuild_gold(spark: SparkSession, settings: Settings, span: Span, dry_run: bool) -> int:
    """Recompute gold and device_latest of a span of event time from silver, and print it. Returns the exit code."""
    tables = Tables.of(settings.streaming)
    days = span.days
    if dry_run:
        _print(f"gold, device_latest: would be recomputed from {days[0]} to {days[-1]}, whole days")
        return 0
    with alone(spark, tables.root, REBUILD):
        following = Following(spark, tables)
        following.owe(days)
        done = following.pay()
    for line in done.lines or ["neither gold nor device_latest is there"]:
        _print(line)
    return 0


def forget(spark: SparkSession, settings: Settings, device: str, dry_run: bool, wait_s: float) -> int:
    """Delete a device, and print what was deleted and what is left where. Returns the exit code."""
    from bridge.pulsar_admin import PulsarAdmin

    job = Forgetting(spark, Tables.of(settings.streaming), device, wait_s)
    done = job.count() if dry_run else job.run()
    for name, rows in done.deleted.items():
        _print(f"{name}: {rows} rows {'to delete' if dry_run else 'deleted'}")
    _print("what is left:")
    with PulsarAdmin(settings.pulsar) as admin:
        left = remains.in_pulsar(
            settings.pulsar, settings.streaming.subscription, admin, datetime.now(timezone.utc)
        )
    for line in (*remains.in_lakehouse(done), *left):
        _print(f"  {line}")
    return _ended(done)


def _ended(done: Forgotten) -> int:
    if done.complete:
        return 0
    raise TerminalError(
        f"{', '.join(done.behind)}: not yet past the deletion, and may bring rows of {done.device} again",
        remedy="let `pulsebridge stream` catch up, then run this again",
    )


def _with_session(settings: Settings, run: Callable[[SparkSession], int]) -> int:
    from streaming.session import job_session

    spark = job_session(Tables.of(settings.streaming).root)
    try:
        return run(spark)
    finally:
        spark.stop()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tables_job.py", description="Care of the tables of Pulsebridge.")
    whats = parser.add_subparsers(dest="what", required=True)
    one, other = whats.add_parser("rebuild"), whats.add_parser("forget")
    for sub in (one, other):
        sub.add_argument("--config", "-c", type=Path, help="YAML file of the settings")
        sub.add_argument("--set", action="append", default=[], metavar="PATH=VALUE", help="set one value")
        sub.add_argument("--dry-run", action="store_true", help="print the counts, change nothing")
    one.add_argument("table", choices=("silver", "gold"))
    one.add_argument("--from", dest="begin", required=True, help="begin of the span, ISO 8601")
    one.add_argument("--to", dest="end", required=True, help="its end, which is not included, ISO 8601")
    other.add_argument("device")
    other.add_argument("--wait", type=float, default=60.0, help="how long to wait for queries, in seconds")
    return parser


def _print(line: str) -> None:
    sys.stdout.write(f"{printable(line)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
