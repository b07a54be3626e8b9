"""Upkeep of the tables: rebuild, replay of quarantine, deletion of a device, optimise.

The running job executes it between batches. Without a job, the command executes it. Requests and the processes that
execute them are in a log (``streaming.upkeep_log``).

A rebuild and a replay have these steps, with the flows of the table stopped:

1. *messages*: the messages concerned are stored. A flow reads a partition in order. So it has read all messages up to
   the last one with a row in the table or in quarantine. No others are concerned.
2. *staged*: the log records this step. No table is changed yet. After it, some process must complete the request.
3. *table*: one commit replaces the rows of these messages in the table. The current declaration and suite compute the
   new rows from the messages in bronze.
4. *quarantine*: one commit replaces them in quarantine.
5. *newest*: tables with the newest rows of the table are recomputed.

Steps 3 to 5 are idempotent. A job completes staged requests before it starts a flow. Views follow the change data feed.
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
from streaming.failures import cause_of
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
_MESSAGE_KEY: Final = {
    "__topic": "topic", "partition": "partition", "ledger_id": "ledger", "entry_id": "entry", "batch_index": "index",
}  # fmt: skip
"""Columns of bronze that identify a message, with the corresponding fields of ``_position``."""
_WHOLE: Final = {"spark.databricks.delta.optimize.clustering.mergeStrategy.minCubeSize.threshold": str(100 << 30)}
"""Delta's default size up to which rows are re-clustered. conf/spark-defaults.conf has a size for merges in a batch."""
_PATIENCE_S: Final = 60.0
_POLL_S: Final = 5.0
_log = structlog.get_logger("upkeep")


class Upkeep:
    """Writes the log and executes requests, for the running job or for a command."""

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
        """Be in the log as these flows' job within the block. Execute waiting requests first.

        If another process executes a request, this call waits for it, or until ``stop`` is set.
        """

        def no_other(log: Standing) -> bool:  # a request of a killed job with one of these flows is ours
            return not [r for r in log.busy if not set(log.jobs.get(r.owner, ())) & set(flows)]

        while not self.log.add("began", no_other, owner=self._owner, arguments=json.dumps(flows)) and not stop.is_set():
            self.log.remove_if_dead(self.log.read())
        self._wanted = True
        try:
            with self._heartbeat():
                if not stop.is_set():
                    self.poll()
                yield
        finally:
            self.log.add("removed", lambda log: self._owner in log.jobs, arguments=json.dumps([self._owner]))

    def poll(self) -> None:
        """Execute requests. The job calls it regularly, on its own thread.

        Raises TerminalError if a command has removed this job, or if a request must be completed by the next start.
        """
        while self._wanted:
            log = self.log.read()
            if self._owner not in log.jobs:
                raise TerminalError(
                    "this job did not answer a command, so the command now owns its tables",
                    remedy="restart the job when the command has ended",
                )
            self._wanted = (request := log.next) is not None
            if request is None:
                continue
            if set(log.jobs) != {self._owner}:
                why = "several jobs run flows: stop them"
                self.log.add("failed", self._has("", request), id=request.id, message=why)
            elif self._claim(request):
                try:
                    _log.info(f"upkeep: {self._execute(request)}", kind=request.kind)
                except TransientError as e:
                    _log.warning("upkeep failed. Action: read the command's error", kind=request.kind, why=e.what)

    # --- a command --------------------------------------------------------------------------------------------

    def ask(self, kind: str, table: str = "", **arguments: Any) -> str:
        """Append a request to the log; return its id."""
        found = uuid.uuid4().hex
        self.log.add("asked", id=found, kind=kind, table=table, arguments=json.dumps(arguments))
        return found

    def settle(self, id: str) -> str:
        """Wait until the job has executed the request, or execute it here without a job. Returns its result.

        Raises TransientError or TerminalError if it failed.
        """
        with self._heartbeat():
            while (log := self.log.read()).requests[id].open:
                request = log.next  # another process's unfinished request comes first: it may have changed tables
                if request is None or not log.free_for(self._owner):
                    self.log.remove_if_dead(log)
                elif self._claim(request):
                    with suppress(TransientError):  # the log has the error
                        self._execute(request)
        if log.requests[id].state == "failed":
            raise TransientError(log.requests[id].message, remedy="correct the cause and repeat the command")
        return log.requests[id].message

    # --- carrying out -----------------------------------------------------------------------------------------

    def _has(self, owner: str, request: Request) -> Callable[[Standing], bool]:
        return lambda log: log.requests[request.id].owner == owner and log.requests[request.id].open

    def _claim(self, request: Request) -> bool:
        free = self._has("", request)
        return self.log.add(
            "taken", lambda log: free(log) and log.free_for(self._owner), id=request.id, owner=self._owner
        )

    def _check(self, request: Request) -> None:
        """Raise TerminalError if another process now owns the request."""
        if not self._has(self._owner, request)(self.log.read()):
            raise TerminalError("another process now owns the request", remedy="wait for it")

    def _execute(self, request: Request) -> str:
        """Execute a request that this process has claimed. Raises TransientError if it failed without changing tables,
        TerminalError if tables were changed: then it must be completed before a flow starts.
        """
        passes = {"rebuild": self._rebuild, "forget": self._forget, "optimise": self._optimise}
        reach("upkeep.taken")
        try:
            done = passes.get(request.kind, self._rebuild)(request)
        except Exception as e:
            what = e.what if isinstance(e, PulsebridgeError) else cause_of(e).text
            if self.log.read().requests[request.id].state == "staged":
                remedy = "start `pulsebridge stream` or repeat the command: both complete the request first"
                raise TerminalError(f"{request.kind} of {request.table} was interrupted: {what}", remedy=remedy) from e
            self.log.add("failed", self._has(self._owner, request), id=request.id, message=what)
            raise TransientError(what, remedy="correct the cause and repeat the command") from e
        self.log.add("done", self._has(self._owner, request), id=request.id, message=done)
        reach("upkeep.done")
        self.log.forget_arguments()
        return done

    @contextmanager
    def _heartbeat(self) -> Iterator[None]:
        """Read the log at intervals, on a thread. Request ``poll`` if it is needed, and send a sign of life while a
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
                except Exception as e:  # noqa: BLE001 the next read may succeed
                    _log.info("the log of requests was not read", why=cause_of(e).text)

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
            raise ConfigError(f"table {name!r} does not exist", remedy=f"existing tables: {', '.join(pipeline.tables)}")
        if flows[0].kind != "append":
            if request.arguments:
                raise ConfigError(
                    f"{name} follows other tables and is recomputed as a whole",
                    remedy="omit the options",
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
        """Store the messages concerned. Raises ConfigError for a table that cannot be rebuilt."""
        from pyspark.sql import functions as F

        if not self._reader.table(_BRONZE).exists(self._spark):
            raise ConfigError("table bronze does not exist", remedy="add it to streaming.built_in and run the job")
        if "_position" not in self._read(request.table).columns:
            raise ConfigError(
                f"{request.table} has no column _position and cannot be rebuilt",
                remedy="select it in the table's function; bronze needs no rebuild",
            )
        chosen = self._chosen(request, single=single)
        self._reader.table(_MESSAGES).overwrite(chosen.select(F.lit(request.id).alias("request"), *_MESSAGE_KEY))
        reach("upkeep.messages")

    def _rows(self, request: Request, flows: Sequence[Flow]) -> DataFrame:
        """Return the current rows of the messages, validated, with the name of their flow."""
        from pyspark.sql import functions as F

        stored = self._read(_BRONZE).join(self._messages(request), list(_MESSAGE_KEY), "left_semi")
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
        """Return the requested messages of bronze, limited to those that the flow has read."""
        from pyspark.sql import functions as F

        given, key = request.arguments, list(_MESSAGE_KEY)
        rows, stored = self._read(request.table), self._read(_BRONZE).select(*_MESSAGE_KEY, "device", "arrival_time")
        failed = self._read(QUARANTINE).where(F.col("table") == request.table)
        if request.kind == "replay":
            return stored.join(_messages_of(failed.where(selected(given))), key, "left_semi")
        traces = _messages_of(rows).unionByName(_messages_of(failed))
        if single:
            after = F.struct("ledger_id", "entry_id", "batch_index")
            last = traces.groupBy("__topic", "partition").agg(F.max(after).alias("last"))
            stored = stored.join(last, ["__topic", "partition"]).where(after <= F.col("last"))
        else:  # the table does not show the position of each flow
            stored = stored.join(traces, key, "left_semi")
        if given.get("since"):
            stored = stored.where(F.col("arrival_time") >= F.lit(given["since"]).cast("timestamp"))
        if given.get("until"):
            stored = stored.where(F.col("arrival_time") < F.lit(given["until"]).cast("timestamp"))
        if given.get("device"):
            column = self._job.pipeline.tables[request.table].device_column
            its = _messages_of(failed.where(F.col("device") == given["device"]))
            if column in rows.columns:
                its = its.unionByName(_messages_of(rows.where(F.col(quoted(column)) == given["device"])))
            named = stored.where(F.col("device") == given["device"])
            stored = named.unionByName(stored.join(its, key, "left_semi"))
        return stored.select(*_MESSAGE_KEY).distinct()

    def _replace_all(self, request: Request, flows: Sequence[Flow], rows: DataFrame) -> str:
        """Replace the messages' rows in the table and in quarantine. A repetition changes nothing."""
        from pyspark.sql import functions as F

        each = _messages_of(rows, "_flow").groupBy(*_MESSAGE_KEY).agg(F.countDistinct("_flow").alias("n"))
        if len(flows) > 1 and not each.where("n > 1").isEmpty():
            raise ConfigError(
                f"flows into {request.table} share a message, and no column shows which of them have read it",
                remedy="merge them into one flow",
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
            of = F.expr(" AND ".join(f"t._position.{name} = m.{column}" for column, name in _MESSAGE_KEY.items()))
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

    def _replace(self, target: Table, rows: DataFrame, messages: DataFrame, condition: str) -> None:
        """Replace the rows of messages in one commit."""
        from pyspark.sql import functions as F

        gone = messages.select(*(F.col(c).alias(f"_at_{c}") for c in _MESSAGE_KEY), F.lit(True).alias("_gone"))
        source = gone.unionByName(rows.withColumn("_gone", F.lit(False)), allowMissingColumns=True)
        on = " AND ".join(f"t._position.{name} = s._at_{column}" for column, name in _MESSAGE_KEY.items())
        ledgers = messages.agg(F.min("ledger_id"), F.max("ledger_id")).first()
        if ledgers is not None and ledgers[0] is not None:  # literals let Delta skip files
            condition += f" AND t._position.ledger BETWEEN {ledgers[0]} AND {ledgers[1]}"
        names = [quoted(name) for name in rows.columns]
        target.change(
            self._spark,
            f"MERGE INTO {target.sql} t USING {{source}} s ON s._gone AND {condition} AND {on} WHEN MATCHED THEN DELETE "
            f"WHEN NOT MATCHED AND NOT s._gone THEN INSERT ({', '.join(names)}) "
            f"VALUES ({', '.join('s.' + name for name in names)})",
            source=source,
        )

    def _whole(self, flow: Flow) -> None:
        """Recompute all rows of a view, or of a newest-rows table, in one commit."""
        rows, table = self._batch(flow, None)[0], self._reader.table(flow.target)
        if flow.kind == "cdc":
            rows = newest(rows, flow.keys, flow.sequence_by or "")
        names = [quoted(name) for name in table.read(self._spark).columns if name in rows.columns]
        table.merge(rows.select(*names), flow.keys, complete=True)

    def _batch(self, flow: Flow, stored: DataFrame | None) -> tuple[DataFrame, Reader]:
        """Return a flow's result for stored messages and tables, as a batch, and its reader."""
        reader = Reader(self._spark, self._job.settings, self._job.pipeline)
        none = ", ".join(f"{name} {kind}" for name, kind in SOURCE_COLUMNS)
        reader.stored = self._spark.createDataFrame([], none) if stored is None else stored
        return reader.frame(flow), reader

    def _read(self, name: str) -> DataFrame:
        return self._reader.table(name).read(self._spark)

    def _messages(self, request: Request) -> DataFrame:
        """Return the stored messages of this request."""
        return self._read(_MESSAGES).where(f"request = '{request.id}'").drop("request")

    # --- deletion of a device, optimise -----------------------------------------------------------------------

    def _forget(self, request: Request) -> str:
        """Delete a device in every table. First all flows process the present data. Then no flow has a cut batch or
        unread rows of a table, from which it would write the device's rows later.
        """
        with self._job.paused(self._job.only):
            self._job.drain()
            reach("upkeep.drained")
            self._check(request)
            deleted = self._delete(str(request.arguments["device"]))
            if request.arguments.get("vacuum"):
                self._job.drain()  # views have read the deletions, so the files may be deleted
                for name, table in self._tables(_MESSAGES).items():
                    if name != _LOG:  # other processes read it now
                        self._vacuum(table, " RETAIN 0 HOURS")
                        reach("upkeep.vacuumed")
        return "rows deleted: " + (", ".join(f"{name} {rows}" for name, rows in deleted.items() if rows) or "none")

    def _delete(self, device: str) -> dict[str, int]:
        from pyspark.sql import functions as F

        columns = {name: t.device_column or "" for name, t in self._job.pipeline.tables.items()}
        columns[QUARANTINE] = "device"
        found = {name: (table, self._read(name)) for name, table in self._tables().items()}
        its = {name: (table, rows.where(F.col(quoted(columns[name])) == device))
               for name, (table, rows) in found.items() if columns.get(name) in rows.columns}  # fmt: skip
        # Only the payload may name the device: first delete the messages of its rows.
        for target, condition in ((_BRONZE, "true"), (QUARANTINE, "t.device IS NULL")):
            gave = [
                _messages_of(rows) for name, (_, rows) in its.items() if name != target and "_position" in rows.columns
            ]
            if target in its and gave:
                fields = {c: c if target == _BRONZE else f"_position.{name}" for c, name in _MESSAGE_KEY.items()}
                on = " AND ".join(f"t.{at} = s.{column}" for column, at in fields.items())
                its[target][0].change(
                    self._spark,
                    f"MERGE INTO {its[target][0].sql} t USING {{s}} s ON {on} AND {condition} WHEN MATCHED THEN DELETE",
                    s=reduce(lambda a, b: a.unionByName(b), gave).distinct(),
                )
                reach("upkeep.deleted")
        deleted = {}
        for name, (table, _) in its.items():
            statement = f"DELETE FROM {table.sql} WHERE {quoted(columns[name])} = {{device}}"
            deleted[name] = int(table.change(self._spark, statement, device=device)[0][0])
            # A deletion vector alone leaves the rows in files that the table still needs.
            self._spark.sql(f"REORG TABLE {table.sql} APPLY (PURGE)").collect()
            reach("upkeep.deleted")
        return deleted

    def _optimise(self, request: Request) -> str:
        found = self._tables()
        if request.table and request.table not in found:
            raise ConfigError(f"table {request.table!r} does not exist", remedy=f"existing tables: {', '.join(found)}")
        chosen = [request.table] if request.table else list(found)
        for name in chosen:
            self._check(request)
            with self._job.paused([flow.name for flow in self._job.pipeline.flows_of(name)]):
                with configured(self._spark, _WHOLE):
                    self._spark.sql(f"OPTIMIZE {found[name].sql}").collect()
                self._vacuum(found[name])
        return f"optimised: {', '.join(chosen)}"

    def _vacuum(self, table: Table, retain: str = "") -> None:
        unchecked = {"spark.databricks.delta.retentionDurationCheck.enabled": "false"} if retain else {}
        with configured(self._spark, unchecked):
            self._spark.sql(f"VACUUM {table.sql}{retain}").collect()

    def _tables(self, *more: str) -> dict[str, Table]:
        """Return the existing tables: those of the pipeline, quarantine and the log."""
        found = {n: self._reader.table(n) for n in (*self._job.pipeline.tables, QUARANTINE, _LOG, *more)}
        return {name: table for name, table in found.items() if table.exists(self._spark)}


def selected(given: Mapping[str, Any]) -> Column:
    """Return the condition on rows of quarantine by ``table``, ``rule``, ``device``, ``since``. The rows were validated
    at ``since`` (ISO 8601) or later. Omitted arguments do not restrict the rows.
    """
    from pyspark.sql import functions as F

    condition = F.lit(True)
    for name in ("table", "device"):
        if given.get(name):
            condition &= F.col(name) == given[name]
    if given.get("rule"):
        condition &= F.array_contains("failed_rules", given["rule"])
    if given.get("since"):
        condition &= F.col("validated_at") >= F.lit(given["since"]).cast("timestamp")
    return condition


def _messages_of(rows: DataFrame, *more: str) -> DataFrame:
    """Return the messages of rows, by the columns of bronze."""
    from pyspark.sql import functions as F

    at = (F.col(f"_position.{name}").alias(column) for column, name in _MESSAGE_KEY.items())
    return rows.where("_position IS NOT NULL").select(*at, *more)
