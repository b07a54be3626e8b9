"""The job that spark-submit runs: all queries in one driver, or some, until it is stopped or all is done.

``spark-submit --properties-file conf/spark-defaults.conf --jars DELTA_JARS streaming/job.py [--config PATH]``; on a
cluster with ``--py-files`` of a zip of the four packages. ``pulsebridge stream`` writes that line for this machine.
It decides what runs and how it ends: SIGTERM or SIGINT lets the running batches end (exit 0), a query that fails ends
the job with its error (exit 1), ``--available-now`` ends it when all that was there at the start is done.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if __name__ == "__main__":
    # Python puts a script's folder first: this package's modules would pass for top-level ones.
    sys.path[:] = [p for p in sys.path if Path(p or ".").resolve() != Path(__file__).resolve().parent]

import structlog

from bridge import errors, logs
from bridge.errors import ConfigError, PulsebridgeError, TerminalError, TransientError
from bridge.readings_topics import topics_to_read
from bridge.settings import Settings
from bridge.settings.loading import conf_path, load
from bridge.settings.streaming import QUERIES
from bridge.silver_metrics import SilverMetrics
from streaming import alerts, bronze, device_changes, gold, latest, silver
from streaming.alert_checkpoint import first_version
from streaming.batch_figures import observed
from streaming.checkpoints import Checkpoint, CheckpointLock
from streaming.decoders.settings import Decoder, check_rules, load_decoders
from streaming.decoders.unpacking import check_packages
from streaming.evolving import FieldNews
from streaming.holding import HoldWatch
from streaming.predicates import Suite, load_suite
from streaming.quality import QualityWatch
from streaming.quality_gate import BadShareGate
from streaming.rule_fields import RuleFields, rule_fields
from streaming.rules import AlertRule, load_rules
from streaming.small_files import put_count_right
from streaming.standing import batches_of
from streaming.stopping import StopRequest, stop_between_batches
from streaming.tables import Table, Tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

__all__ = ["Job", "Plan", "await_pulsar", "main", "plan_of", "topics_of"]

_PULSAR_WARN_S: Final = 20.0
_RESTARTS: Final = 5
"""How often a query is started again in the life of a driver before its failure ends the job."""
_LATE_WORKER: Final = "Python worker failed to connect back"
"""Spark waits ten seconds for a Python worker and no setting changes that; on a busy machine one takes longer."""
_LATE_WORKERS: Final = 60
"""How often a query is started again for that: ten minutes at least."""
_RECOMPUTED: Final = ("gold", "latest")
"""Queries whose tables a change of silver recomputes, which it can do only between two batches (``following``)."""
_SCHEMA_CHANGED: Final = "DELTA_SCHEMA_CHANGED"
"""Delta ends a stream so when its table gets a column, which silver may; nothing is wrong then."""
_log = structlog.get_logger("stream")


@dataclass(frozen=True)
class Plan:
    """What the files of the settings say, read and checked before Spark is started."""

    settings: Settings
    tables: Tables
    decoders: tuple[Decoder, ...]
    suite: Suite
    rules: tuple[AlertRule, ...]
    rule_fields: tuple[RuleFields, ...]

    @property
    def recipe(self) -> dict[str, Any]:
        """What decides where a row of silver goes, as ``silver.recipe_of`` makes it."""
        streaming = self.settings.streaming
        return silver.recipe_of(
            self.decoders, self.suite, streaming.clock_skew_s, self.rule_fields,
            streaming.schema_evolution, streaming.max_added_columns, self.settings.max_name_bytes,
        )  # fmt: skip


def plan_of(settings: Settings) -> Plan:
    """Read suite and rules. Raises ConfigError naming the file and what is wrong in it."""
    streaming = settings.streaming
    rules_file = streaming.rules or conf_path("rules.yaml")
    suite_file = streaming.expectations or conf_path("expectations/silver.json")
    decoders = load_decoders(rules_file)
    fields = rule_fields(settings.ingest.all_rules)
    check_rules(decoders, fields, str(rules_file))
    check_packages(decoders, str(rules_file))
    return Plan(
        settings, Tables.of(streaming), decoders, load_suite(suite_file), load_rules(rules_file), fields
    )


def topics_of(settings: Settings) -> list[str]:
    """Return the full names of the topics to read (see ``topics_to_read``). Raises ConfigError when there is none."""
    from bridge.pulsar_admin import PulsarAdmin

    pulsar = settings.pulsar
    with PulsarAdmin(pulsar) as admin:
        found = topics_to_read(settings, admin.topics)
    if not found:
        raise ConfigError(
            f"no topic in {', '.join(pulsar.readings_namespaces)}",
            remedy="start `pulsebridge ingest` first, or name the topics in streaming.topics",
        )
    return found


@dataclass
class Job:
    """The running queries and what they hold."""

    spark: SparkSession
    plan: Plan
    only: Sequence[str] = ()
    """The queries to run; those of the settings where it is empty."""
    available_now: bool = False
    after_silver_step: Callable[[str], None] = lambda step: None
    metrics: SilverMetrics | None = None
    written: Callable[[str, str, int], object] = lambda query, table, rows: None
    """Told how many rows a batch of a query has written to a table, where the query's sink does not say so itself."""
    queries: list[StreamingQuery] = field(default_factory=list)
    _locks: list[CheckpointLock] = field(default_factory=list)
    _quality: QualityWatch | None = None
    _restarts: dict[str, int] = field(default_factory=dict)
    _hold: HoldWatch | None = None
    _paused: list[str] = field(default_factory=list)
    _kept_waiting: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        # One for the life of the job: a query that is started again goes on with the same window.
        self._gate = BadShareGate(self.plan.settings.streaming, self.metrics)
        self._news = FieldNews(self.metrics)
        chosen = self.only or self.plan.settings.streaming.queries
        self.only = [name for name in QUERIES if name in chosen]

    def prepare(self) -> None:
        """Take the checkpoints: nobody else may run these queries on them."""
        if "silver" in self.only:
            _log.info("suite", **self.plan.suite.kinds)
        for name in self.only:
            lock = CheckpointLock(self.spark, self.plan.tables.checkpoint(name))
            lock.acquire()
            self._locks.append(lock)
        self._hold = HoldWatch(self.spark, self.plan.tables.root)
        streaming = self.plan.settings.streaming
        if "silver" in self.only and streaming.quality_interval_s > 0:
            self._quality = QualityWatch(
                self.spark,
                self.plan.tables,
                self.plan.suite,
                streaming.quality_interval_s,
                streaming.quality_rows,
            )

    def run(self, stop: StopRequest) -> None:
        """Run the queries to their end. Raises TerminalError when one failed.

        With ``available_now`` one runs after the other, so that each sees all that the one before wrote.
        """
        if self.available_now:
            for name in self.only:
                self._start(name)
                if not self._watch(stop):
                    break
            if self._quality is not None and not stop.asked:
                self._quality.once()
        else:
            for name in self.only:
                self._start(name)
            if self._quality is not None:
                self._quality.start()
            _log.info("running", queries=", ".join(self.only), root=self.plan.tables.root)
            self._watch(stop)
        self.close()

    def close(self) -> None:
        """Let the running batches end, then stop."""
        if self._quality is not None:
            self._quality.stop()
            self._quality = None
        stop_between_batches(self.queries)
        for lock in self._locks:
            lock.release()
        self._locks.clear()

    def _watch(self, stop: StopRequest) -> bool:
        """Return True when all queries have ended, False when somebody asked to stop."""
        while True:
            if self._held(stop):
                if stop.wait(0.2):
                    return False
                continue
            for query in list(self.queries):
                failure: Any = query.exception()
                if failure is not None:
                    self._again(query, _cause(failure))
            if not self._paused and not any(query.isActive for query in self.queries):
                return True
            if stop.wait(0.2):
                return False

    def _held(self, stop: StopRequest) -> bool:
        """Whether a change of tables wants the queries to pause: then they are stopped between two batches, however long
        these take, and started again when it is done.
        """
        hold = self._hold
        if hold is not None and hold.wanted():

            def enough() -> bool:
                return stop.asked or not hold.wanted()

            running = [q for q in self.queries if q.isActive]
            stop_between_batches(running, math.inf, enough=enough)
            for query in [q for q in running if not q.isActive]:
                self.queries.remove(query)
                self._paused.append(str(query.name))
                _log.info("paused for a change of tables", query=query.name)
                if query.name in _RECOMPUTED:
                    self._finish(str(query.name), enough)
            return True
        waiting, self._paused = self._paused, []
        for name in waiting:
            self._resume(name)
        return False

    def _finish(self, name: str, enough: Callable[[], bool]) -> None:
        """Run the batch that a paused query had begun when it was stopped, and no other. One that fails is left as it
        is: it fails again when the query goes on.
        """
        done, begun = batches_of(self.spark, self.plan.tables.checkpoint(name))
        if done == begun:
            return
        try:
            self._start(name, once=True)
        except TransientError as e:
            _log.info("the begun batch of a paused query cannot end yet", query=name, error=str(e))
            return
        query = self.queries.pop()
        while query.isActive and not enough():
            time.sleep(0.05)
        stop_between_batches([query])

    def _resume(self, name: str) -> None:
        """Start a query again; one that a server which is away keeps from it waits for the next turn."""
        try:
            self._start(name)
            self._kept_waiting.discard(name)
        except TransientError as e:
            if name not in self._kept_waiting:
                self._kept_waiting.add(name)
                _log.warning(
                    "query cannot start again yet, it is tried until it can", query=name, error=str(e)
                )
            self._paused.append(name)

    def _again(self, query: StreamingQuery, cause: Cause) -> None:
        """Start a failed query again from its checkpoint; raise TerminalError where that cannot help.

        A worker that did not come up in time on a busy machine, or a server that was away, is no reason to end.
        """
        name = str(query.name)
        changed = _SCHEMA_CHANGED in cause.text
        counted, allowed = name, _RESTARTS
        if changed:
            counted = f"{name}, new columns"
            allowed += self.plan.settings.streaming.max_added_columns
        elif _LATE_WORKER in cause.text:
            counted, allowed = f"{name}, late workers", _LATE_WORKERS
        self._restarts[counted] = self._restarts.get(counted, 0) + 1
        if cause.terminal or self._restarts[counted] > allowed:
            raise TerminalError(f"query {name} failed: {cause.text}")
        if changed:
            _log.info("query starts again, the table that it reads has new columns", query=name)
        else:
            _log.warning(
                "query failed and is started again; see the error if it repeats", query=name, error=cause.text
            )
        self.queries.remove(query)
        self._resume(name)

    def _start(self, name: str, *, once: bool = False) -> None:
        """Start a query; with ``once`` for one batch, which is the one that was begun before if there is one."""
        self._create_tables(name)
        for table in self._written_by(name):
            put_count_right(self.spark, table.path(self.spark))
        writer = self._writer(name)
        streaming = self.plan.settings.streaming
        slow = {"gold": streaming.gold_trigger_s, "latest": streaming.latest_trigger_s}
        seconds = slow.get(name, streaming.trigger_s)
        if once:
            writer = writer.trigger(once=True)
        elif self.available_now:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{seconds * 1000:.0f} milliseconds")
        bronze_table = self.plan.tables.bronze
        if name == "alerts":
            with alerts.empty_batches(self.spark, self.plan.rules):
                self.queries.append(writer.start())
        elif name != "bronze":
            self.queries.append(writer.start())
        elif bronze_table.by_name:
            self.queries.append(writer.toTable(bronze_table.sql))
        else:
            self.queries.append(writer.start(bronze_table.where))

    def _create_tables(self, name: str) -> None:
        """Create the tables that a query reads and writes, just before it: the query before it runs already."""
        if name in ("bronze", "silver"):
            bronze.create_tables(self.spark, self.plan.tables)
        if name != "bronze":
            silver.create_tables(self.spark, self.plan.tables)
        if name == "gold":
            gold.create_tables(self.spark, self.plan.tables)
        if name == "latest":
            latest.create_table(self.spark, self.plan.tables)

    def _written_by(self, name: str) -> tuple[Table, ...]:
        tables = self.plan.tables
        written = {
            "bronze": (tables.bronze,),
            "silver": (tables.silver, tables.quarantine),
            "gold": (tables.gold, tables.late),
            "latest": (tables.device_latest,),
        }
        return written.get(name, ())

    def _writer(self, name: str) -> DataStreamWriter:
        plan = self.plan
        if name == "bronze":
            messages = bronze.source(self.spark, plan.settings, topics_of(plan.settings))
            return bronze.query(messages, plan.tables)
        if name == "silver":
            checkpoint = Checkpoint(self.spark, plan.tables.checkpoint("silver"))
            batches = silver.SilverBatches(plan.tables, checkpoint, plan.recipe, self.after_silver_step)
            batches.written = partial(self.written, "silver")
            if self.metrics is not None:
                batches.suspects = self.metrics.suspects.inc
            batches.heard = self._news
            batches.admit = self._gate
            return silver.query(self.spark, plan.tables, batches)
        if name == "gold":
            return self._gold()
        if name == "latest":
            return self._latest()
        return self._alerts()

    def _alerts(self) -> DataStreamWriter:
        tables, streaming = self.plan.tables, self.plan.settings.streaming
        first = first_version(self.spark, tables.checkpoint("alerts"))
        found = alerts.commands(
            observed(silver.judged_by_the_query(self.spark, tables, first), "processed_at"),
            self.plan.rules,
            grace_s=streaming.silence_grace_s,
            forget_days=streaming.alert_state_days,
        )
        settings = self.plan.settings
        return alerts.query(found, tables, settings.pulsar, settings.max_name_bytes)

    def _gold(self) -> DataStreamWriter:
        streaming, tables = self.plan.settings.streaming, self.plan.tables
        checkpoint = Checkpoint(self.spark, tables.checkpoint("gold"))
        batches = gold.GoldBatches(
            tables, checkpoint, gold.recipe_of(streaming), written=partial(self.written, "gold")
        )
        return gold.query(self.spark, tables, streaming.gold_watermark_s, batches)

    def _latest(self) -> DataStreamWriter:
        tables = self.plan.tables
        checkpoint = Checkpoint(self.spark, tables.checkpoint("latest"))
        # What a rebuild brings may be the newest, too.
        readings = device_changes.of_silver(observed(tables.silver.read_stream(self.spark), "processed_at"))
        told = device_changes.of_topics(device_changes.topics(self.spark, self.plan.settings))
        batches = latest.LatestBatches(tables, checkpoint, written=partial(self.written, "latest"))
        return latest.query(readings.unionByName(told), tables, batches)


class Cause(NamedTuple):
    """Why a query failed: in one line, and whether trying again cannot help."""

    text: str
    terminal: bool


def _cause(failure: Any) -> Cause:
    """Read the cause from Spark's error: our own error where one is named in the worker's traceback."""
    lines = [line.strip() for line in str(failure).splitlines() if line.strip()]
    for line in reversed(lines):
        kind, mark, text = line.removeprefix("bridge.errors.").partition(": ")
        known = getattr(errors, kind, None) if line.startswith("bridge.errors.") and mark else None
        if known is not None:
            return Cause(text, issubclass(known, TerminalError))
    return Cause(lines[0] if lines else "no message", False)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job; return the exit code."""
    parser = argparse.ArgumentParser(prog="job.py", description="The Spark jobs of Pulsebridge.")
    parser.add_argument("--config", "-c", type=Path, help="YAML file of the settings")
    parser.add_argument("--set", action="append", default=[], metavar="PATH=VALUE", help="set one value")
    parser.add_argument(
        "--only", choices=QUERIES, action="append", help="run this query only; may be repeated"
    )
    parser.add_argument("--available-now", action="store_true", help="process what is there, then end")
    given = parser.parse_args(argv)
    try:
        settings = load(given.config, given.set)
        logs.configure(settings.log)
        plan = plan_of(settings)
        return _run(plan, given.only or (), given.available_now)
    except PulsebridgeError as e:
        _log.error(str(e))
        return 1


def await_pulsar(settings: Settings, stop: StopRequest) -> None:
    """Wait until Pulsar's admin answers: it may be started after the job.

    Returns early when somebody asked to stop. Raises RefusedError when the admin does not let us look.
    """
    from bridge.pulsar_admin import PulsarAdmin

    began, told = time.monotonic(), False
    with PulsarAdmin(settings.pulsar) as admin:
        while not stop.wait(0.0):
            try:
                admin.cluster()
                return
            except TransientError as e:
                if not told and time.monotonic() - began > _PULSAR_WARN_S:
                    told = True
                    _log.warning("Pulsar does not answer yet, waiting: start it", why=e.what)
            stop.wait(0.25)


def _run(plan: Plan, only: Sequence[str], available_now: bool) -> int:
    from bridge.health import Health
    from bridge.metrics import serving
    from bridge.stream_metrics import StreamMetrics
    from sources.progress import SourceProgress
    from streaming.query_progress import QueryProgress
    from streaming.session import job_session

    spark = job_session(plan.tables.root)
    metrics = StreamMetrics()
    health = Health(plan.settings.metrics.stuck_s)
    stop = StopRequest()
    stop.listen(spark)
    job = Job(spark, plan, only, available_now, metrics=SilverMetrics(), written=metrics.written)
    spark.streams.addListener(SourceProgress())
    spark.streams.addListener(QueryProgress(metrics, health, job.only))
    try:
        job.prepare()
        with serving(plan.settings.metrics, health):
            if {"bronze", "latest"} & set(job.only):
                await_pulsar(plan.settings, stop)
            job.run(stop)
    finally:
        job.close()
        spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
