"""Upkeep of the tables: rebuild, replay of quarantine, deletion of a device, optimise. The running job carries it out
between batches; if no job runs, the command does.

Requests, and who carries them out, stand in a log (``streaming.upkeep_log``).

A rebuild and a replay, with the flows of the table stopped:

1. *messages*: the messages concerned are stored. A flow reads a partition in order, so it has taken all messages up to
   the last one of which the table or quarantine has a row. No others are concerned.
2. *staged*: the log says so. No table is changed so far; from here on the request is completed, whoever completes it.
3. *table*: one commit replaces the rows of these messages in the table by what today's declaration and suite make of
   the messages in bronze.
4. *quarantine*: one commit replaces them in quarantine.
5. *newest*: tables that keep the newest rows of the table are made again.

Steps 3 to 5 give the same result however often they run. A job completes what is staged before it starts a flow. Views
follow the change data feed by themselves.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

import structlog

from bridge.contract import SOURCE_COLUMNS
from bridge.errors import ConfigError, PulsebridgeError, TerminalError, TransientError
from bridge.killpoints import reach
from streaming.pipelines import Flow
from streaming.reading import QUARANTINE, Reader
from streaming.sql import quoted, same
from streaming.tables import Table, configured
from streaming.upkeep_log import Log, Request, Standing
from streaming.views import newest
from streaming.writing import quarantined, validated

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from streaming.job import Job

__all__ = ["Upkeep", "selected"]

_LOG: Final = "_upkeep"
_MESSAGES: Final = "_upkeep_messages"
_BRONZE: Final = "bronze"
_PLACE: Final = {
    "__topic": "topic", "partition": "partition", "ledger_id": "ledger", "entry_id": "entry", "batch_index": "index",
}  # fmt: skip
"""Columns of bronze that name a message, with the fields of ``_position`` that have them."""
_WHOLE: Final = {"spark.databricks.delta.optimize.clustering.mergeStrategy.minCubeSize.threshold": str(100 << 30)}
"""Delta's own size up to which rows are clustered again: that of conf/spark-defaults.conf suits merges within a batch."""
_PATIENCE_S: Final = 60.0
_POLL_S: Final = 5.0
_log = structlog.get_logger("upkeep")


class Upkeep:
    """Writes the log and carries out requests, for the running job or for a command."""

    def __init__(self, job: Job, patience_s: float = _PATIENCE_S) -> None:
        self._job = job
        self._spark = job.spark
        self._reader = Reader(job.spark, job.settings, job.pipeline)
        self.log = Log(job.spark, self._reader.table(_LOG), patience_s)
        self._owner = uuid.uuid4().hex
        self._wanted = False

    # --- the job ----------------------------------------------------------------------------------------------

    @contextmanager
    def entered(self, flows: Sequence[str], stop: threading.Event) -> Iterator[None]:
        """Be in the log as the job that runs these flows within the block, and carry out first what waits.

        While another process carries out a request, this waits, but no longer than until ``stop`` is set.
        """

        def alone(log: Standing) -> bool:  # what a killed job with one of these flows left is ours
            return not [r for r in log.busy if not set(log.jobs.get(r.owner, ())) & set(flows)]

        while not self.log.add("began", alone, owner=self._owner, arguments=json.dumps(flows)) and not stop.is_set():
            self.log.remove_if_dead(self.log.read())
        self._wanted = True
        try:
            with self._answering():
                if not stop.is_set():
                    self.poll()
                yield
        finally:
            self.log.add("removed", lambda log: self._owner in log.jobs, arguments=json.dumps([self._owner]))

    def poll(self) -> None:
        """Carry out what was asked for; called by the job again and again, on its own thread.

        Raises TerminalError if a command has removed this job, or if a request must be completed by the next start.
        """
        while self._wanted:
            log = self.log.read()
            if self._owner not in log.jobs:
                raise TerminalError(
                    "a command got no answer from this job and has taken over its tables",
                    remedy="start the job again when the command has ended",
                )
            self._wanted = (request := log.next) is not None
            if request is None:
                continue
            if set(log.jobs) != {self._owner}:
                why = "several jobs run flows: stop them"
                self.log.add("failed", self._has("", request), id=request.id, message=why)
            elif self._taken(request):
                try:
                    _log.info(f"upkeep: {self._carry_out(request)}", kind=request.kind)
                except TransientError as e:
                    _log.warning("upkeep failed. Action: see the command", kind=request.kind, why=e.what)

    # --- a command --------------------------------------------------------------------------------------------

    def ask(self, kind: str, table: str = "", **arguments: Any) -> str:
        """Put a request into the log; return its id."""
        found = uuid.uuid4().hex
        self.log.add("asked", id=found, kind=kind, table=table, arguments=json.dumps(arguments))
        return found

    def settle(self, id: str) -> str:
        """Wait until the job has carried the request out, or do it here if no job runs. Returns what was done.

        Raises TransientError or TerminalError if it failed.
        """
        with self._answering():
            while (log := self.log.read()).requests[id].open:
                request = log.next  # what another process left comes first: it may have changed tables
                if request is None or not log.free_for(self._owner):
                    self.log.remove_if_dead(log)
                elif self._taken(request):
                    with suppress(TransientError):  # the log says so
                        self._carry_out(request)
        if log.requests[id].state == "failed":
            raise TransientError(log.requests[id].message, remedy="correct the cause and run the command again")
        return log.requests[id].message

    # --- carrying out -----------------------------------------------------------------------------------------

    def _has(self, owner: str, request: Request) -> Callable[[Standing], bool]:
        return lambda log: log.requests[request.id].owner == owner and log.requests[request.id].open

    def _taken(self, request: Request) -> bool:
        free = self._has("", request)
        return self.log.add(
            "taken", lambda log: free(log) and log.free_for(self._owner), id=request.id, owner=self._owner
        )

    def _check(self, request: Request) -> None:
        """Raise TerminalError if another process has taken the request over."""
        if not self._has(self._owner, request)(self.log.read()):
            raise TerminalError("another process has taken the request over", remedy="wait for it")

    def _carry_out(self, request: Request) -> str:
        """Carry out a request that this process has taken. Raises TransientError if it failed and left nothing half
        done; TerminalError if tables were changed: then it must be completed before a flow starts.
        """
        passes = {"rebuild": self._rebuild, "forget": self._forget, "optimise": self._optimise}
        reach("upkeep.taken")
        try:
            done = passes.get(request.kind, self._rebuild)(request)
        except Exception as e:
            what = e.what if isinstance(e, PulsebridgeError) else str(e).partition("\n")[0]
            if self.log.read().requests[request.id].state == "staged":
                remedy = "start `pulsebridge stream` or run the command again: it is completed first"
                raise TerminalError(f"{request.kind} of {request.table} was cut: {what}", remedy=remedy) from e
            self.log.add("failed", self._has(self._owner, request), id=request.id, message=what)
            raise TransientError(what, remedy="correct the cause and run the command again") from e
        self.log.add("done", self._has(self._owner, request), id=request.id, message=done)
        reach("upkeep.done")
        self.log.forget_arguments()
        return done

    @contextmanager
    def _answering(self) -> Iterator[None]:
        """Look at the log now and then, on a thread: note that ``poll`` is wanted, and give a sign of life while a
        process may wait for one.
        """
        over = threading.Event()

        def look() -> None:
            while not over.wait(_POLL_S):
                try:
                    log = self.log.read()
                    self._wanted = self._wanted or log.next is not None or self._owner not in log.jobs
                    if (log.next is not None and self._owner in log.jobs) or self._owner in [r.owner for r in log.busy]:
                        self.log.add("alive", owner=self._owner)
                except Exception as e:  # noqa: BLE001 whatever it is, the next look may succeed
                    _log.info("no look at the log of requests", why=str(e).partition("\n")[0])

        thread = threading.Thread(target=look, name="upkeep-log", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    # --- rebuild and replay -----------------------------------------------------------------------------------

    def _rebuild(self, request: Request) -> str:
        pipeline, name = self._job.pipeline, request.table
        flows = pipeline.flows_of(name)
        if not flows or not self._reader.table(name).exists(self._spark):
            raise ConfigError(f"there is no table {name!r}", remedy=f"there are {', '.join(pipeline.tables)}")
        if flows[0].kind != "append":
            if request.arguments:
                raise ConfigError(
                    f"{name} follows other tables and is recomputed as a whole",
                    remedy="leave the options out",
                )
            with self._job.paused([flow.name for flow in flows]):
                self._whole(flows[0])
            reach("upkeep.whole")
            return f"{name}: recomputed"
        newest = [f for f in pipeline.flows.values() if f.kind == "cdc" and name in self._batch(f, None)[1].seen]
        with self._job.paused([flow.name for flow in (*flows, *newest)]):
            if request.state != "staged":
                self._store_messages(request, single=len(flows) == 1)
            rows = self._rows(request, flows).persist()
            try:
                done = self._replace_all(request, flows, rows)
            finally:
                rows.unpersist()
            self._check(request)
            for flow in newest:
                self._whole(flow)
            reach("upkeep.newest")
        self._spark.sql(f"DELETE FROM {self._reader.table(_MESSAGES).sql}").collect()
        return f"{name}: {done}"

    def _store_messages(self, request: Request, *, single: bool) -> None:
        """Store which messages are concerned. Raises ConfigError for a table that cannot be rebuilt."""
        from pyspark.sql import functions as F

        if not self._reader.table(_BRONZE).exists(self._spark):
            raise ConfigError("there is no table bronze", remedy="name it in streaming.built_in and run the job")
        if "_position" not in self._read(request.table).columns:
            raise ConfigError(
                f"{request.table} has no column _position and cannot be rebuilt",
                remedy="select it in the table's function; bronze needs no rebuild",
            )
        chosen = self._chosen(request, single=single)
        self._reader.table(_MESSAGES).overwrite(chosen.select(F.lit(request.id).alias("request"), *_PLACE))
        reach("upkeep.messages")

    def _rows(self, request: Request, flows: Sequence[Flow]) -> DataFrame:
        """Return the rows that the messages give now, validated, with the name of their flow."""
        from pyspark.sql import functions as F

        stored = self._read(_BRONZE).join(self._messages(request), list(_PLACE), "left_semi")
        parts = []
        for flow in flows:
            rows, reader = self._batch(flow, stored)
            if not reader.read_messages or rows.isStreaming:
                raise ConfigError(
                    f"flow {flow.name!r} does not read messages", remedy="rebuild the table that it reads"
                )
            batches = self._job.batches(flow, reader)
            parts.append(validated(rows, batches.declared, batches.suite).withColumn("_flow", F.lit(flow.name)))
        return reduce(lambda a, b: a.unionByName(b, allowMissingColumns=True), parts)

    def _chosen(self, request: Request, *, single: bool) -> DataFrame:
        """Return the messages of bronze that are meant, of those that the flow has taken."""
        from pyspark.sql import functions as F

        given, place = request.arguments, list(_PLACE)
        rows, there = self._read(request.table), self._read(_BRONZE).select(*_PLACE, "device", "arrival_time")
        held = self._read(QUARANTINE).where(F.col("table") == request.table)
        if request.kind == "replay":
            return there.join(_places(held.where(selected(given))), place, "left_semi")
        traces = _places(rows).unionByName(_places(held))
        if single:
            after = F.struct("ledger_id", "entry_id", "batch_index")
            last = traces.groupBy("__topic", "partition").agg(F.max(after).alias("last"))
            there = there.join(last, ["__topic", "partition"]).where(after <= F.col("last"))
        else:  # which of the flows has read how far, the table does not say
            there = there.join(traces, place, "left_semi")
        if given.get("since"):
            there = there.where(F.col("arrival_time") >= F.lit(given["since"]).cast("timestamp"))
        if given.get("until"):
            there = there.where(F.col("arrival_time") < F.lit(given["until"]).cast("timestamp"))
        if given.get("device"):
            column = self._job.pipeline.tables[request.table].device_column
            its = _places(held.where(F.col("device") == given["device"]))
            if column in rows.columns:
                its = its.unionByName(_places(rows.where(F.col(quoted(column)) == given["device"])))
            named = there.where(F.col("device") == given["device"])
            there = named.unionByName(there.join(its, place, "left_semi"))
        return there.select(*_PLACE).distinct()

    def _replace_all(self, request: Request, flows: Sequence[Flow], rows: DataFrame) -> str:
        """Replace the rows of the messages in the table and in quarantine; a second time changes nothing."""
        from pyspark.sql import functions as F

        each = _places(rows, "_flow").groupBy(*_PLACE).agg(F.countDistinct("_flow").alias("n"))
        if len(flows) > 1 and not each.where("n > 1").isEmpty():
            raise ConfigError(
                f"flows into {request.table} share a message, and no column says which of them have taken it",
                remedy="make one flow of them",
            )
        batches, messages = self._job.batches(flows[0], self._reader), self._messages(request)
        rows = rows.drop("_flow")
        batches.evolve(rows)
        if request.state != "staged":
            self.log.add("staged", self._has(self._owner, request), id=request.id)
            reach("upkeep.staged")
        if "_failed_rules" not in rows.columns:
            rows = rows.withColumn("_failed_rules", F.array().cast("array<string>"))
        bad = quarantined(rows.where("size(_failed_rules) > 0"), batches.declared)
        good = batches.first_of_keys(batches.as_table(rows.where("size(_failed_rules) = 0")))
        if batches.declared.keys:
            of = F.expr(" AND ".join(f"t._position.{name} = m.{column}" for column, name in _PLACE.items()))
            others = self._read(request.table).alias("t").join(messages.alias("m"), of, "left_anti")
            good = good.alias("s").join(others.alias("t"), F.expr(same(batches.declared.keys)), "left_anti")
        for table, new, name, step in (
            (batches.table, good, "true", "upkeep.table"),
            (batches.quarantine, bad, f"t.`table` = '{request.table}'", "upkeep.quarantine"),
        ):
            self._check(request)
            self._replace(table, new, messages, name)
            reach(step)
        return f"{messages.count()} messages give {good.count()} rows, and {bad.count()} in quarantine"

    def _replace(self, target: Table, rows: DataFrame, messages: DataFrame, meant: str) -> None:
        """Replace the rows of messages in one commit."""
        from pyspark.sql import functions as F

        gone = messages.select(*(F.col(c).alias(f"_at_{c}") for c in _PLACE), F.lit(True).alias("_gone"))
        source = gone.unionByName(rows.withColumn("_gone", F.lit(False)), allowMissingColumns=True)
        here = " AND ".join(f"t._position.{name} = s._at_{column}" for column, name in _PLACE.items())
        ends = messages.agg(F.min("ledger_id"), F.max("ledger_id")).first()
        if ends is not None and ends[0] is not None:  # literals let Delta skip files
            meant += f" AND t._position.ledger BETWEEN {ends[0]} AND {ends[1]}"
        names = [quoted(name) for name in rows.columns]
        self._spark.sql(
            f"MERGE INTO {target.sql} t USING {{source}} s ON s._gone AND {meant} AND {here} WHEN MATCHED THEN DELETE "
            f"WHEN NOT MATCHED AND NOT s._gone THEN INSERT ({', '.join(names)}) "
            f"VALUES ({', '.join('s.' + name for name in names)})",
            source=source,
        ).collect()

    def _whole(self, flow: Flow) -> None:
        """Make all rows of a view, or of a table that keeps the newest rows, again, in one commit."""
        rows, table = self._batch(flow, None)[0], self._reader.table(flow.target)
        if flow.kind == "cdc":
            rows = newest(rows, flow.keys, flow.sequence_by or "")
        names = [quoted(name) for name in table.read(self._spark).columns if name in rows.columns]
        table.merge(rows.select(*names), flow.keys, complete=True)

    def _batch(self, flow: Flow, stored: DataFrame | None) -> tuple[DataFrame, Reader]:
        """Return what a flow gives of stored messages and of tables, as a batch, and what it read that by."""
        reader = Reader(self._spark, self._job.settings, self._job.pipeline)
        none = ", ".join(f"{name} {kind}" for name, kind in SOURCE_COLUMNS)
        reader.stored = self._spark.createDataFrame([], none) if stored is None else stored
        return reader.frame(flow), reader

    def _read(self, name: str) -> DataFrame:
        return self._reader.table(name).read(self._spark)

    def _messages(self, request: Request) -> DataFrame:
        """Return the messages that are stored for this request."""
        return self._read(_MESSAGES).where(f"request = '{request.id}'").drop("request")

    # --- deletion of a device, optimise -----------------------------------------------------------------------

    def _forget(self, request: Request) -> str:
        """Delete a device in every table. First all flows process what is there: then none has a batch that was cut, or
        rows of a table that it has not read, and brings the device back.
        """
        with self._job.paused(self._job.only):
            self._job.drain()
            reach("upkeep.drained")
            self._check(request)
            deleted = self._delete(str(request.arguments["device"]))
            if request.arguments.get("vacuum"):
                self._job.drain()  # views have read the deletions: the files may go
                for name, table in self._tables(_MESSAGES).items():
                    if name != _LOG:  # others read it now
                        self._vacuum(table, " RETAIN 0 HOURS")
                        reach("upkeep.vacuumed")
        return "rows deleted: " + (", ".join(f"{name} {rows}" for name, rows in deleted.items() if rows) or "none")

    def _delete(self, device: str) -> dict[str, int]:
        from pyspark.sql import functions as F

        columns = {name: t.device_column or "" for name, t in self._job.pipeline.tables.items()} | {
            QUARANTINE: "device"
        }
        found = {name: (table, self._read(name)) for name, table in self._tables().items()}
        its = {name: (table, rows.where(F.col(quoted(columns[name])) == device))
               for name, (table, rows) in found.items() if columns.get(name) in rows.columns}  # fmt: skip
        # A message may name the device in its payload alone: first go the messages that gave rows of it.
        for target, condition in ((_BRONZE, "true"), (QUARANTINE, "t.device IS NULL")):
            gave = [_places(rows) for name, (_, rows) in its.items() if name != target and "_position" in rows.columns]
            if target in its and gave:
                fields = {c: c if target == _BRONZE else f"_position.{name}" for c, name in _PLACE.items()}
                here = " AND ".join(f"t.{at} = s.{column}" for column, at in fields.items())
                self._spark.sql(
                    f"MERGE INTO {its[target][0].sql} t USING {{s}} s ON {here} AND {condition} WHEN MATCHED THEN DELETE",
                    s=reduce(lambda a, b: a.unionByName(b), gave).distinct(),
                ).collect()
                reach("upkeep.deleted")
        deleted = {}
        for name, (table, _) in its.items():
            statement = f"DELETE FROM {table.sql} WHERE {quoted(columns[name])} = {{device}}"
            deleted[name] = int(self._spark.sql(statement, device=device).collect()[0][0])
            # A deletion vector alone leaves the rows in files that the table still needs.
            self._spark.sql(f"REORG TABLE {table.sql} APPLY (PURGE)").collect()
            reach("upkeep.deleted")
        return deleted

    def _optimise(self, request: Request) -> str:
        found = self._tables()
        if request.table and request.table not in found:
            raise ConfigError(f"there is no table {request.table!r}", remedy=f"there are {', '.join(found)}")
        chosen = [request.table] if request.table else list(found)
        for name in chosen:
            self._check(request)
            with self._job.paused([flow.name for flow in self._job.pipeline.flows_of(name)]):
                with configured(self._spark, _WHOLE):
                    self._spark.sql(f"OPTIMIZE {found[name].sql}").collect()
                self._vacuum(found[name])
        return f"optimised: {', '.join(chosen)}"

    def _vacuum(self, table: Table, retain: str = "") -> None:
        with configured(
            self._spark, {"spark.databricks.delta.retentionDurationCheck.enabled": "false"} if retain else {}
        ):
            self._spark.sql(f"VACUUM {table.sql}{retain}").collect()

    def _tables(self, *more: str) -> dict[str, Table]:
        """Return the tables that are there: those of the pipeline, quarantine and the log."""
        found = {n: self._reader.table(n) for n in (*self._job.pipeline.tables, QUARANTINE, _LOG, *more)}
        return {name: table for name, table in found.items() if table.exists(self._spark)}


def selected(given: Mapping[str, Any]) -> Column:
    """Return the condition on rows of quarantine: ``table``, ``rule``, ``device``, ``since`` (validated at that time or
    later, ISO 8601). What is not given restricts nothing.
    """
    from pyspark.sql import functions as F

    meant = F.lit(True)
    for name in ("table", "device"):
        if given.get(name):
            meant &= F.col(name) == given[name]
    if given.get("rule"):
        meant &= F.array_contains("failed_rules", given["rule"])
    if given.get("since"):
        meant &= F.col("validated_at") >= F.lit(given["since"]).cast("timestamp")
    return meant


def _places(rows: DataFrame, *more: str) -> DataFrame:
    """Return the messages that rows come from, by the columns of bronze."""
    from pyspark.sql import functions as F

    at = (F.col(f"_position.{name}").alias(column) for column, name in _PLACE.items())
    return rows.where("_position IS NOT NULL").select(*at, *more)
