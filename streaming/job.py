"""Runs all or some flows of a pipeline in one driver, until stopped or done.

``pulsebridge stream`` runs it on this machine, and ``spark-submit … streaming/job.py [--config PATH]`` on a cluster.
With SPARK_REMOTE it uses Spark Connect. SIGTERM and SIGINT stop it (exit code 0). A flow that fails for good stops it
with one line (exit code 1). With ``--available-now`` it ends when all data present at the start is processed.
"""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

if __name__ == "__main__":
    # Python puts a script's folder first, so this package's modules could be imported as top-level ones.
    sys.path[:] = [p for p in sys.path if Path(p or ".").resolve() != Path(__file__).resolve().parent]

import structlog

from bridge import logs
from bridge.errors import EXIT_FAILED, EXIT_USAGE, ConfigError, PulsebridgeError, TerminalError, TransientError
from bridge.settings import Settings, StreamingSettings
from bridge.settings.loading import load
from streaming.failures import Batches, Cause, cause_of
from streaming.loading import pipeline_of
from streaming.pipelines import Flow, Pipeline
from streaming.quality import RESULTS, QualityWatch
from streaming.reading import QUARANTINE, Reader
from streaming.session import submitted_session
from streaming.tables import Table, configured, create, resolve_root, struct_of
from streaming.upkeep import Upkeep
from streaming.views import NewestBatches, ViewBatches
from streaming.writing import QUARANTINE_SCHEMA, BadRows, TableBatches

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from streaming.suites import Suite, Suites

__all__ = ["Job", "main"]

Part = Literal["commands", "tables"]
_BACKOFF_S: Final = (1.0, 60.0)
_log = structlog.get_logger("stream")


@dataclass
class Job:
    """The running queries of a pipeline."""

    spark: SparkSession
    settings: Settings
    pipeline: Pipeline
    only: Sequence[str] = ()
    """Names of the flows to run; empty: all."""
    counted: Callable[[str, int, int], object] | None = None
    """Called with a table's name and the numbers of good and bad rows of each batch."""
    part: Part | None = None
    """Run only the flows that write commands, or those that write tables; None: both."""
    queries: dict[str, list[StreamingQuery]] = field(default_factory=dict)
    _failures: dict[str, deque[tuple[float, bool]]] = field(default_factory=dict)
    """By flow: the times of its failures, and whether each counts against the budget."""
    _due: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.only = chosen(self.pipeline, self.only, self.part)
        self.reader = Reader(self.spark, self.settings, self.pipeline)
        self._suites: Suites | None = None
        self._upkeep = Upkeep(self)
        self._stop = threading.Event()

    def prepare(self) -> None:
        """Check the suites and create the tables. Raises ConfigError in one line for an invalid declaration."""
        from pyspark.errors import AnalysisException

        streaming, into_tables = self.settings.streaming, self._into_tables()
        if not into_tables:
            return
        if streaming.schema_name:
            self.spark.sql(f"CREATE SCHEMA IF NOT EXISTS {Table(streaming.schema_name, True).sql}")
        create(
            self.spark,
            self.reader.table(QUARANTINE),
            struct_of(QUARANTINE_SCHEMA),
            comment="Rows that failed a rule of their table, with the payload and the reason",
            cluster_by=("table", "validated_at"),
        )
        for flow in into_tables:
            try:
                self.reader.ensure(flow.target)
            except AnalysisException as e:
                raise ConfigError(
                    f"table {flow.target!r}: {str(e).strip().splitlines()[0]}",
                    remedy="correct its declaration",
                ) from e
            declared = self.pipeline.tables[flow.target]
            if declared.suite is not None:
                suite = self.suites.suite(declared.suite)
                schema = self.reader.table(flow.target).read(self.spark).schema
                suite.check({f.name: f.dataType.simpleString() for f in schema.fields}, self.spark)
                if suite.unsplit:
                    _log.info("verdict only", suite=suite.name, expectations=", ".join(suite.unsplit))

    def run(self, stop: threading.Event, *, available_now: bool = False) -> None:
        """Run the flows to their end. Raises TerminalError if one failed for good.

        With ``available_now`` they run in sequence, each after the tables that it reads. Requested upkeep runs first.
        """
        self._stop = stop
        with self._upkeep.entered(self.only, stop) if self._into_tables() else nullcontext():
            quality = self._quality()
            try:
                flows = [] if stop.is_set() else self._in_order()
                for flow in flows:
                    self._start(flow, available_now=available_now)
                    if available_now and not self._watch(stop):
                        return
                if flows:
                    if quality is not None:
                        (quality.once if available_now else quality.start)()
                    state = "done" if available_now else "running"
                    _log.info(state, flows=", ".join(self.only), root=resolve_root(self.settings.streaming.root))
                if not available_now:
                    self._watch(stop)
            finally:
                if quality is not None:
                    quality.stop()
                self.close()

    @contextmanager
    def paused(self, names: Iterable[str]) -> Iterator[None]:
        """Pause flows within the block. Afterwards a cut batch is repeated."""
        stopped = [name for name in names if name in self.queries or name in self._due]
        for name in stopped:
            self._due.pop(name, None)
            for query in self.queries.pop(name, ()):
                query.stop()
        kept = self._available_now
        try:
            yield
        finally:
            self._available_now = kept
            self._due.update(dict.fromkeys(stopped, 0.0))

    def drain(self) -> None:
        """Let all paused flows process the present data. Raises TransientError if the job must stop."""
        for flow in self._in_order():
            self._start(flow, available_now=True)
            if not self._watch(self._stop):
                raise TransientError("the job was stopped", remedy="repeat the command")
        self.queries.clear()

    @property
    def suites(self) -> Suites:
        """The suites of the tables, loaded once."""
        if self._suites is None:
            from streaming.suites import Suites

            self._suites = Suites(self.settings.streaming.suites)
        return self._suites

    def _quality(self) -> QualityWatch | None:
        """Return the watch that validates the tables with a suite, None without such tables."""
        streaming = self.settings.streaming
        tables = {}
        for name in {flow.target for flow in self._into_tables()}:
            suite = self.pipeline.tables[name].suite
            if suite is not None:
                tables[name] = (self.reader.table(name), self.suites.suite(suite))
        if not tables or streaming.suites is None or not streaming.quality.interval:
            return None
        return QualityWatch(
            self.spark,
            streaming.suites,
            tables,
            self.reader.table(QUARANTINE),
            self.reader.table(RESULTS),
            streaming.quality.interval,
            streaming.quality.max_rows,
        )

    def close(self) -> None:
        """Stop the queries. The next start repeats a cut batch."""
        for query in [q for of in self.queries.values() for q in of]:
            query.stop()
        self.queries.clear()

    def names(self) -> list[str]:
        """Return the names of the queries. A view has one for each table that it reads."""
        return [name for flow in self._chosen() for name, _, _ in self._queries_of(flow)]

    def _chosen(self) -> list[Flow]:
        return [self.pipeline.flows[name] for name in self.only]

    def _into_tables(self) -> list[Flow]:
        return [flow for flow in self._chosen() if flow.kind != "commands"]

    def _in_order(self) -> list[Flow]:
        """Return the flows, each after the flows of the tables that it reads."""
        reads: dict[str, set[str]] = {}
        for flow in self._chosen():
            self.reader.seen.clear()
            self.reader.frame(flow)
            reads[flow.name] = set(self.reader.seen)
        found: list[Flow] = []
        left = self._chosen()
        while left:
            waiting = {flow.target for flow in left}
            ready = [f for f in left if not (reads[f.name] & (waiting - {f.target}))] or left[:1]
            found += ready
            left = [f for f in left if f not in ready]
        return found

    def _watch(self, stop: threading.Event) -> bool:
        """Return True if all queries have ended, False if a stop was requested."""
        while not stop.wait(0.2):
            running = False
            for name, queries in list(self.queries.items()):
                for query in queries:
                    # Checked once: a query that ends in between is handled in the next pass.
                    if query.isActive:
                        running = True
                    elif (failure := query.exception()) is not None:
                        self._failed(name, cause_of(failure, query.lastProgress))
                        break
            if not self._available_now:
                self._upkeep.poll()
            for name, at in list(self._due.items()):
                if time.monotonic() >= at:
                    del self._due[name]
                    self._restart(name)
                    running = True
            if not self._due and not running:
                return True
        return False

    def _failed(self, name: str, cause: Cause) -> None:
        """Schedule the restart of a failed flow. Raises TerminalError if a restart cannot help, or if the failures
        exceed ``streaming.restart_budget``. Transient causes do not count, except with ``available_now``.
        """
        for query in self.queries.pop(name, ()):
            query.stop()
        streaming = self.settings.streaming
        now = time.monotonic()
        failures = self._failures.setdefault(name, deque())
        while failures and now - failures[0][0] > streaming.restart_window:
            failures.popleft()
        if not cause.free:
            failures.append((now, not cause.transient or self._available_now))
        if cause.terminal or sum(counts for _, counts in failures) > streaming.restart_budget:
            target = self.pipeline.flows[name].target
            into = "" if target == name else f" (table {target})"
            raise TerminalError(
                f"{name}{into} failed{cause.where}: {cause.text}",
                remedy=cause.remedy
                or f"correct the cause and restart the job, nothing is lost; see also {streaming.spark.log}",
            )
        wait = min(_BACKOFF_S[0] * 2 ** max(0, len(failures) - 1), _BACKOFF_S[1])
        self._due[name] = now + wait
        log_failure = _log.info if cause.free else _log.warning
        log_failure(
            f"a flow failed{cause.where} and is restarted. Action: check the error if it repeats",
            flow=name,
            error=cause.text,
            after_s=wait,
        )

    def _restart(self, name: str) -> None:
        try:
            self._start(self.pipeline.flows[name], available_now=self._available_now)
        except TransientError as e:
            self._failed(name, Cause(str(e), terminal=False, transient=True))

    _available_now: bool = False

    def _start(self, flow: Flow, *, available_now: bool = False) -> None:
        from pyspark.errors import AnalysisException, PySparkException

        self._available_now = available_now
        queries = self.queries[flow.name] = []
        for name, rows, batches in self._queries_of(flow):
            try:
                queries.append(self._started(flow, name, rows, batches, available_now))
            except PySparkException as e:  # a Spark Connect server started a Python worker too slowly
                self._failed(flow.name, replace(cause_of(e), terminal=isinstance(e, AnalysisException)))
                return

    def _started(self, flow: Flow, name: str, rows: DataFrame, batches: Any, available_now: bool) -> StreamingQuery:
        streaming = self.settings.streaming
        default_s = streaming.trigger.commands_interval if flow.kind == "commands" else streaming.trigger.interval
        seconds = default_s if flow.trigger_s is None else flow.trigger_s
        writer = rows.writeStream.queryName(name).option("checkpointLocation", self._checkpoint(name))
        if flow.kind == "commands":
            from sinks.options import sink_options
            from streaming.pulsar_readiness import provision_alerts

            pulsar = self.settings.pulsar
            if "alert" in rows.columns:
                provision_alerts(pulsar, streaming.subscription_of("alerts"))
            writer = writer.format("pulsebridge_commands").options(**sink_options(pulsar, self.settings.max_name_bytes))
        else:
            writer = writer.foreachBatch(Batches(batches))
        if available_now:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{seconds * 1000:.0f} milliseconds")
        with configured(self.spark, flow.spark_conf):
            return writer.start()

    def _queries_of(self, flow: Flow) -> list[tuple[str, DataFrame, Any]]:
        """Return name, frame and writer of each query of a flow. A view has one for each table that it reads."""
        self.reader.seen.clear()
        rows = self.reader.frame(flow)
        if flow.kind == "commands":
            return [(flow.name, rows, None)]
        table = self.reader.ensure(flow.target)
        if flow.kind == "cdc":
            return [(flow.name, rows, NewestBatches(table, flow.keys, flow.sequence_by or ""))]
        if flow.kind == "view":
            read = list(dict.fromkeys(self.reader.seen))
            return [
                (
                    flow.name if len(read) == 1 else f"{flow.name}-{source}",
                    self.reader.table(source).changes(self.spark),
                    self._view(flow, source, table),
                )
                for source in read
            ]
        return [(flow.name, rows, self.batches(flow, self.reader))]

    def _view(self, flow: Flow, source: str, table: Table) -> ViewBatches:
        reader = Reader(self.spark, self.settings, self.pipeline)
        return ViewBatches(reader, flow, source, table, self._suite_of(flow), self.reader.table(QUARANTINE))

    def _suite_of(self, flow: Flow) -> Suite | None:
        name = self.pipeline.tables[flow.target].suite
        return None if name is None else self.suites.suite(name)

    def batches(self, flow: Flow, reader: Reader) -> TableBatches:
        """Return the batch writer of a flow, which also validates its rows."""
        declared, streaming = self.pipeline.tables[flow.target], self.settings.streaming
        counted, quality = self.counted, streaming.quality
        return TableBatches(
            declared,
            flow.name,
            reader.table(flow.target),
            reader.table(QUARANTINE),
            self._checkpoint(flow.name),
            self._suite_of(flow),
            BadRows(quality.max_bad_share, quality.min_batch_rows, quality.on_bad_share == "stop"),
            streaming.max_added_columns,
            None if counted is None else lambda good, bad: counted(flow.target, good, bad),
        )

    def _checkpoint(self, name: str) -> str:
        return f"{resolve_root(self.settings.streaming.root)}/checkpoints/{name}"


def chosen(pipeline: Pipeline, only: Sequence[str] = (), part: Part | None = None) -> list[str]:
    """Return the names of the flows to run. Raises ConfigError for an unknown name, or if ``part`` has none."""
    unknown = [name for name in only if name not in pipeline.flows]
    if unknown:
        raise ConfigError(f"no flow is named {unknown[0]!r}", remedy=f"flows: {', '.join(pipeline.flows)}")
    names = [
        name
        for name, flow in pipeline.flows.items()
        if (not only or name in only) and part in (None, "commands" if flow.kind == "commands" else "tables")
    ]
    if part and not names:
        raise ConfigError(f"no flow writes {part}", remedy="leave --part out, or name such flows with --only")
    return names


def main(
    argv: Sequence[str] | None = None, session: Callable[[Settings], SparkSession] = lambda _: submitted_session()
) -> int:
    """Run the job; return the exit code. ``session`` makes Spark's session, by default that of spark-submit."""
    parser = argparse.ArgumentParser(prog="job.py", description="The pipeline of Pulsebridge.")
    parser.add_argument("--config", "-c", type=Path, help="YAML file of the settings")
    parser.add_argument("--set", action="append", default=[], metavar="PATH=VALUE", help="set one value")
    parser.add_argument("--only", action="append", default=[], help="run this flow only; may be repeated")
    parser.add_argument("--part", choices=get_args(Part), help="run the flows of commands only, or those into tables")
    parser.add_argument("--available-now", action="store_true", help="process the present data, then end")
    given = parser.parse_args(argv)
    try:
        settings = load(given.config, given.set)
        logs.configure(settings.log)
        if given.part:  # two drivers may run in one folder
            settings = settings.model_copy(update={"streaming": _of_part(settings.streaming, given.part)})
        # py4j logs a batch's exception with its traceback. The job logs it in one line, and Spark's log has the rest.
        logging.getLogger("py4j").setLevel(logging.CRITICAL)
        return _run(settings, pipeline_of(settings), given, session)
    except PulsebridgeError as e:
        _log.error(str(e))
        return EXIT_USAGE if isinstance(e, ConfigError) else EXIT_FAILED


def _of_part(streaming: StreamingSettings, part: Part) -> StreamingSettings:
    log = streaming.spark.log
    profile = "commands" if part == "commands" and streaming.spark.profile == "latency" else streaming.spark.profile
    spark = streaming.spark.model_copy(update={"log": log.with_stem(f"{log.stem}-{part}"), "profile": profile})
    return streaming.model_copy(update={"spark": spark})


def _run(
    settings: Settings, pipeline: Pipeline, given: argparse.Namespace, session: Callable[[Settings], SparkSession]
) -> int:
    from bridge.health import Health
    from bridge.metrics import serving
    from sources.progress import SourceProgress
    from sources.query_progress import QueryProgress
    from sources.stream_metrics import StreamMetrics
    from streaming.pulsar_readiness import await_pulsar

    flows = chosen(pipeline, given.only, given.part)  # a wrong name is known before Spark starts
    _log.info("the job starts Spark, and then its flows", flows=", ".join(flows))
    stop = threading.Event()

    def ask(*_: object) -> None:
        # A service manager signals all processes of a service. If Spark's JVM ends first, pyspark and py4j report
        # errors.
        sys.stderr = StringIO()
        logging.disable()
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, ask)
    spark = session(settings)
    metrics = StreamMetrics()
    health = Health(settings.metrics.stuck_after)
    prepared = health.part("pipeline")
    job = Job(spark, settings, pipeline, given.only, metrics.validated, given.part)
    spark.streams.addListener(SourceProgress())
    try:
        with serving(settings.metrics, health):
            await_pulsar(settings.pulsar, stop)
            if not stop.is_set():
                job.prepare()
                spark.streams.addListener(QueryProgress(metrics, health, job.names()))
                prepared.ready()
                job.run(stop, available_now=given.available_now)
    except Exception as e:
        if isinstance(e, PulsebridgeError) or not stop.is_set():
            raise  # else the JVM ended first, and the next start continues as after a kill
    finally:
        with suppress(Exception) if stop.is_set() else nullcontext():
            spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
