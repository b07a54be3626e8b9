"""Alerts: the rows of tables, read from their source as they come, through the rules, to commands and the table ``alerts``.

Rules that know one row alone (kind ``sql``, ``every: message``) need no state. Two flows read for them: one writes commands
as soon as it can, the other the table.

All other rules share one flow with state for each device, by Spark's ``transformWithState``. Spark keeps that state
versioned by batch; the offsets and the watermark of a batch are fixed before it runs. So a batch that is run again sees
the same rows, the same state and the same time, and gives the same commands (H19). All rows of a device are handled in
one task, one after the other, so its commands leave in order (H22). The watermark is of arrival, and no row is dropped
by it: it serves the timers alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bridge.contract import COMMAND_COLUMNS
from bridge.errors import ConfigError
from bridge.killpoints import reach
from streaming import pipelines as dp
from streaming.rules import FIELD, READINGS, AlertRule, Sql, load_rules
from streaming.tables import Table, quoted
from streaming.writing import POSITION, judged

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from bridge.settings import Settings

__all__ = ["ALERTS", "ALERTS_SCHEMA", "AlertBatches", "declare_alerts"]

ALERTS: Final = "alerts"
ALERTS_SCHEMA: Final = (
    "rule string COMMENT 'name in the rules file', "
    "state string COMMENT 'raised or cleared', "
    "device string COMMENT 'device that the alert is about', "
    "`table` string COMMENT 'table whose rows the rule looks at', "
    "event_time timestamp COMMENT 'time of the row', "
    "value double COMMENT 'value that the rule looked at, if it is one', "
    "message string COMMENT 'text for people', "
    "payload binary COMMENT 'payload of the command', "
    "to_device string COMMENT 'device that a command was written for; null: no command', "
    "command_topic string COMMENT 'MQTT topic of the command', "
    "command_id string COMMENT 'identity of alert and command: the same whenever the same row fires the same rule', "
    "reading_id string COMMENT 'identity of the row', "
    "created_at timestamp COMMENT 'start of the micro-batch', "
    "expires_at timestamp COMMENT 'when the command expires', "
    f"_position {POSITION} COMMENT 'where the message is in Pulsar'"
)
_DAY_US: Final = 86_400_000_000
_STATE: Final = {
    "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}
"""transformWithState needs this store; with its log of changes a batch writes no more than what it changed."""
_EMPTY: Final = {"spark.sql.streaming.noDataMicroBatches.enabled": "true"}
"""A batch that moved the clock is followed by one without data: else timers would wait for the next row of any device."""


def declare_alerts(settings: Settings) -> None:
    """Declare the table and the flows of alerts, unless there is no rule. Raises ConfigError for rules that will not do."""
    path = settings.streaming.rules
    rules = () if path is None else load_rules(path)
    if path is None or not rules:
        return
    pipeline = dp._pipeline()
    found = _Rules(settings, path, rules, pipeline)
    found.check_tables()
    dp.create_streaming_table(
        ALERTS,
        comment="What the rules found, whether or not a device gets a command",
        schema=ALERTS_SCHEMA,
        cluster_by=["device", "created_at"],
    )
    if any(not rule.stateful for rule in rules):
        pipeline.add_flow(dp.Flow("alerts_sql", ALERTS, found.of_rows, batches=AlertBatches))
        if any(not rule.stateful and rule.to != "none" for rule in rules):
            dp.commands(found.commands_of_rows, name="alerts_sql_commands")
    if any(rule.stateful for rule in rules):
        from sinks.options import sink_options

        conf = _STATE | (_EMPTY if any(rule.kind == "silence" for rule in rules) else {})
        options = sink_options(settings.pulsar, settings.max_name_bytes)

        def batches(table: Table, app: str) -> AlertBatches:
            return AlertBatches(table, app, options)

        pipeline.add_flow(
            dp.Flow(ALERTS, ALERTS, found.of_devices, spark_conf=conf, trigger_s=0.0, batches=batches)
        )


@dataclass
class AlertBatches:
    """Writes micro-batches of alerts: first their commands, where there are options for that, then the table.

    A device gets a command once, as its id stays the same when the batch is run again; the table takes a batch once.
    A batch without alerts writes nothing.
    """

    table: Table
    app: str
    commands: Mapping[str, str] | None = None

    def __call__(self, batch: DataFrame, number: int) -> None:
        """Write one micro-batch. What it raises stops the query, and the batch is run again at the next start."""
        from pyspark.sql import functions as F

        batch = batch.persist()  # its state must be computed once
        try:
            counts = batch.agg(F.count("*"), F.count("to_device")).first()
            assert counts is not None
            reach("alerts.found")
            if self.commands is not None and counts[1]:
                rows = _as_commands(batch)
                rows.write.format("pulsebridge_commands").mode("append").options(**self.commands).save()
            reach("alerts.commands")
            if counts[0]:
                self.table.append(batch, (self.app, number))
            reach("alerts.table")
        finally:
            batch.unpersist()


@dataclass(frozen=True)
class _Rules:
    """The rules of a file, over the tables of a pipeline."""

    settings: Settings
    path: Path
    rules: tuple[AlertRule, ...]
    pipeline: dp.Pipeline

    def check_tables(self) -> None:
        """Raise ConfigError for a rule on a table that the pipeline has not, or that messages do not fill."""
        there = [name for name in self.pipeline.tables if self._flows(name)]
        for rule in self.rules:
            if rule.table not in there:
                what = (
                    "messages do not fill it"
                    if rule.table in self.pipeline.tables
                    else "there is no such table"
                )
                raise self._wrong(
                    rule, "table", f"{rule.table!r}: {what}", f"there is {', '.join(there) or 'none'}"
                )

    def of_rows(self) -> DataFrame:
        """Return the alerts of the rules that know one row alone."""
        from pyspark.sql import functions as F

        parts = []
        for table, rules in self._by_table(stateful=False).items():
            rows, facts = self._rows(table, rules)
            found = F.array(*(self._of_row(rule, rows, facts) for rule in rules))
            parts.append(rows.select(F.explode(F.array_compact(found)).alias("a")).select("a.*"))
        return _finished(reduce(lambda a, b: a.unionByName(b), parts))

    def commands_of_rows(self) -> DataFrame:
        """Return the commands of the rules that know one row alone."""
        return _as_commands(self.of_rows())

    def of_devices(self) -> DataFrame:
        """Return the alerts of the rules that have state."""
        from pyspark.sql import functions as F

        _check_state()
        from streaming.alert_processor import OUTPUT, AlertProcessor

        streaming = self.settings.streaming
        rows = reduce(
            lambda a, b: a.unionByName(b),
            [self._watched(table, rules) for table, rules in self._by_table(stateful=True).items()],
        )
        grace_ms = round(streaming.silence_grace_s * 1000)
        wanted = F.size("values") > 0
        # With the watermark's column in it Spark leaves the condition behind the watermark: all rows move the clock.
        rows = rows.withWatermark("clock", f"{grace_ms} milliseconds").where(wanted | F.col("clock").isNull())
        # As a number it is not the watermark's column any more, so that Spark takes no row for late.
        rows = rows.withColumn("arrived_us", F.unix_micros("clock")).drop("clock")
        found = rows.groupBy("device").transformWithState(
            AlertProcessor(
                tuple(rule for rule in self.rules if rule.stateful),
                round(streaming.alert_state_days * _DAY_US),
            ),
            outputStructType=", ".join(f"`{name}` {kind}" for name, kind in OUTPUT),
            outputMode="append",
            timeMode="eventTime",
        )
        return _finished(found)

    def _by_table(self, *, stateful: bool) -> dict[str, list[AlertRule]]:
        found: dict[str, list[AlertRule]] = {}
        for rule in self.rules:
            if rule.stateful == stateful:
                found.setdefault(rule.table, []).append(rule)
        return found

    def _flows(self, table: str) -> list[dp.Flow]:
        return [flow for flow in self.pipeline.flows_of(table) if flow.kind == "append"]

    def _rows(self, table: str, rules: list[AlertRule]) -> tuple[DataFrame, dict[str, Column]]:
        """Return the rows that go into a table, and what rules must know of each."""
        from pyspark.sql import functions as F

        from streaming.suites import Suites

        declared = self.pipeline.tables[table]
        rows = reduce(
            lambda a, b: a.unionByName(b, allowMissingColumns=True),
            [flow.query() for flow in self._flows(table)],
        )
        suite = declared.suite and Suites(self.settings.streaming.expectations).suite(declared.suite)
        rows = judged(rows, declared, suite or None)
        if "_failed_rules" in rows.columns:
            rows = rows.where(F.size("_failed_rules") == 0)
        there = set(rows.columns)
        nothing = F.lit(None).cast("string")
        position = nothing
        if "_position" in there:
            position = F.to_json("_position")
        elif "batch_index" in there:  # the messages as they are
            names = {
                "topic": "__topic",
                "partition": "partition",
                "ledger": "ledger_id",
                "entry": "entry_id",
                "index": "batch_index",
            }
            position = F.to_json(F.struct(*(F.col(name).alias(alias) for alias, name in names.items())))
        ids = [F.col(name).cast("string") for name in ("reading_id", "_id") if name in there]
        if position is not nothing:
            ids.append(position)
        device = declared.device_column
        if device not in there or device is None or not ids:
            lacks = (
                "column of its own that names the device"
                if device not in there
                else "_position and no reading_id"
            )
            raise self._wrong(
                rules[0], "table", f"{table!r} has no {lacks}", "add it to what its function returns"
            )
        now = F.current_timestamp()
        # A clock of ingest that is ahead must not make the whole fleet late (H20).
        arrived = F.least("arrival_time", now) if "arrival_time" in there else now
        at = F.col("event_time").cast("timestamp") if "event_time" in there else arrived
        facts = {
            "device": F.col(quoted(device)).cast("string"),
            "reading_id": F.coalesce(*ids),
            "event_us": F.unix_micros(at),
            "clock": arrived,
            "position": position,
            "metric": F.col("metric") if "metric" in there else nothing,
            "value": F.col("value").cast("double")
            if {"metric", "value"} <= there
            else F.lit(None).cast("double"),
            "unit": F.col("unit").cast("string") if "unit" in there else nothing,
            "command_topic": F.col("command_topic") if "command_topic" in there else nothing,
        }
        return rows.where(facts["device"].isNotNull() & facts["event_us"].isNotNull()), facts

    def _watched(self, table: str, rules: list[AlertRule]) -> DataFrame:
        """Return of each row the values that rules with state look at."""
        from pyspark.sql import functions as F

        rows, facts = self._rows(table, rules)

        def value(series: Column, metric: Column, of: Column) -> Column:
            return F.struct(series.alias("series"), metric.alias("metric"), of.alias("value"))

        values = []
        metrics = sorted({rule.metric for rule in rules if rule.metric is not None})
        if metrics:
            self._check_metrics(rows, next(rule for rule in rules if rule.metric is not None))
            series = facts["metric"] if table == READINGS else F.concat(F.lit(f"{table}|"), facts["metric"])
            values.append(
                F.when(facts["metric"].isin(metrics), value(series, facts["metric"], facts["value"]))
            )
        for rule in {rule.series: rule for rule in rules if rule.column is not None}.values():
            number = self._number(rows, rule)
            values.append(F.when(number.isNotNull(), value(F.lit(rule.series), F.lit(rule.column), number)))
        whole = f"{table}|"
        if any(rule.series == "" for rule in self.rules) or any(rule.series == whole for rule in rules):
            values.append(value(F.lit(whole), facts["metric"], facts["value"]))
        found = [self._found(rule, rows, facts) for rule in rules if rule.kind == "sql"]
        kind = "array<struct<rule: string, series: string, holds: boolean, message: string, payload: binary, to_device: string, command_topic: string>>"
        return rows.select(
            *(column.alias(name) for name, column in facts.items() if name not in ("metric", "value")),
            F.array_compact(F.array(*values)).alias("values"),
            F.array(*found).cast(kind).alias("found"),
        )

    def _check_metrics(self, rows: DataFrame, rule: AlertRule) -> None:
        if not {"metric", "value"} <= set(rows.columns):
            raise self._wrong(
                rule,
                "metric",
                f"{rule.table!r} has no columns metric and value",
                f"name a column: {_names(rows)}",
            )

    def _number(self, rows: DataFrame, rule: AlertRule) -> Column:
        from pyspark.sql.types import NumericType

        column, kind = self._expression(rows, rule, "column", rule.column or "")
        if not isinstance(kind, NumericType):
            raise self._wrong(
                rule,
                "column",
                f"{rule.column} is no number but {kind.simpleString()}",
                "cast it, or use kind: sql",
            )
        return column.cast("double")

    def _of_row(self, rule: AlertRule, rows: DataFrame, facts: dict[str, Column]) -> Column:
        """Return the alert of a rule that knows one row alone, null where there is none."""
        from pyspark.sql import functions as F

        sql = self._sql(rule, rows, facts)
        id = facts["reading_id"]
        if "metric" in rows.columns and rule.metric is None:  # a message has a row for each of them
            id = F.concat_ws("|", id, "metric")
        alert = {
            "rule": F.lit(rule.name),
            "state": F.lit("raised"),
            "device": facts["device"],
            "table": F.lit(rule.table),
            "event_us": facts["event_us"],
            "value": facts["value"],
            **{name: sql[name] for name in ("message", "payload", "to_device", "command_topic")},
            "reading_id": id,
            "position": facts["position"],
            "expires_s": F.lit(rule.expires_s).cast("double"),
        }
        return F.when(sql["holds"], F.struct(*(column.alias(name) for name, column in alert.items())))

    def _found(self, rule: AlertRule, rows: DataFrame, facts: dict[str, Column]) -> Column:
        from pyspark.sql import functions as F

        parts = {"rule": F.lit(rule.name), "series": F.lit(rule.series), **self._sql(rule, rows, facts)}
        return F.struct(*(column.alias(name) for name, column in parts.items()))

    def _sql(self, rule: AlertRule, rows: DataFrame, facts: dict[str, Column]) -> dict[str, Column]:
        """Return what a rule of kind sql says of a row."""
        from pyspark.sql import functions as F

        holds, kind = self._expression(rows, rule, "condition", rule.condition or "")
        if kind.simpleString() != "boolean":
            raise self._wrong(
                rule,
                "condition",
                f"{rule.condition} is no condition but {kind.simpleString()}",
                "compare it with something",
            )
        if rule.metric is not None:
            self._check_metrics(rows, rule)
            holds = F.when(facts["metric"] == rule.metric, holds)
        message = self._text(rows, rule, "message", rule.message or f"{rule.name}: {rule.condition}")
        over = self._text(rows, rule, "cleared_message", rule.cleared_message or f"{rule.name}: over")
        to, topic = facts["device"], facts["command_topic"]
        if rule.to is not None:
            to = F.lit(None).cast("string") if rule.to == "none" else self._text(rows, rule, "to", rule.to)
        if rule.command_topic is not None:
            topic = self._text(rows, rule, "command_topic", rule.command_topic)
        payload = F.lit(None).cast("binary")
        if rule.payload is not None:
            payload = self._text(rows, rule, "payload", rule.payload, binary=True)
        return {
            "holds": holds,
            "message": F.when(holds, message).otherwise(over),
            "payload": payload,
            "to_device": to,
            "command_topic": topic,
        }

    def _text(
        self, rows: DataFrame, rule: AlertRule, field: str, text: str | Sql, *, binary: bool = False
    ) -> Column:
        """Return a text of the user's, with the columns that it names, or what its SQL gives."""
        from pyspark.sql import functions as F

        if isinstance(text, Sql):
            column, kind = self._expression(rows, rule, field, text.sql)
            if kind.simpleString().startswith(("struct", "map", "array")):
                raise self._wrong(
                    rule, field, f"{text.sql} is no text but {kind.simpleString()}", "use to_json(...)"
                )
            return (
                column
                if binary and kind.simpleString() == "binary"
                else column.cast("string").cast("binary" if binary else "string")
            )
        parts = []
        for n, part in enumerate(FIELD.split(text)):
            if n % 2 and part.lower() not in map(str.lower, rows.columns):
                raise self._wrong(
                    rule, field, f"{{{part}}}: {rule.table!r} has no such column", f"it has {_names(rows)}"
                )
            parts.append(F.coalesce(F.col(part).cast("string"), F.lit("")) if n % 2 else F.lit(part))
        return F.concat(*parts).cast("binary" if binary else "string")

    def _expression(self, rows: DataFrame, rule: AlertRule, field: str, text: str) -> tuple[Column, Any]:
        """Return a column and its type. Raises ConfigError for SQL that does not do over the rows of the table."""
        from pyspark.errors import AnalysisException
        from pyspark.sql import functions as F

        try:
            column = F.expr(text)
            kind = rows.select(column.alias("x")).schema["x"].dataType
            rows.where(column.isNotNull()).schema  # noqa: B018 — Spark refuses an aggregate here
        except AnalysisException as e:
            why = str(e).strip().splitlines()[0]
            raise self._wrong(rule, field, f"{text!r}: {why}", f"{rule.table!r} has {_names(rows)}") from e
        return column, kind

    def _wrong(self, rule: AlertRule, field: str, what: str, remedy: str) -> ConfigError:
        place = f"alerts[{self.rules.index(rule)}].{field}"
        return ConfigError(f"rules file {self.path}: {place} (rule {rule.name}): {what}", remedy=remedy)


def _names(rows: DataFrame) -> str:
    return ", ".join(name for name in rows.columns if name != "_failed_rules")


def _check_state() -> None:
    """Raise TerminalError where this Spark cannot keep the state."""
    from sources.spark_features import spark_features

    features = spark_features()
    if not features.state:
        raise ConfigError(
            f"Spark {features.version} has no transformWithState for rows in Python, which alerts need",
            remedy="use Spark 4.2, or rules of kind sql with every: message alone",
        )


def _finished(found: DataFrame) -> DataFrame:
    """Return the rows of the table ``alerts``, of the columns ``alert_processor.OUTPUT``."""
    from pyspark.sql import functions as F

    now = F.current_timestamp()
    cleared = F.when(F.col("state") == "cleared", F.lit("|cleared|")).otherwise(F.lit(""))
    rows = found.where("rule IS NOT NULL").select(
        "rule", "state", "device", "table",
        F.timestamp_micros("event_us").alias("event_time"),
        "value", "message", "payload",
        F.when(F.col("command_topic").isNotNull(), F.col("to_device")).alias("to_device"),
        F.when(F.col("to_device").isNotNull(), F.col("command_topic")).alias("command_topic"),
        # As streaming.rules.command_id.
        F.substring(F.sha2(F.concat(cleared, F.concat_ws("|", "rule", "device", "reading_id")), 256), 1, 32).alias("command_id"),
        "reading_id",
        now.alias("created_at"),
        F.timestamp_micros(F.unix_micros(now) + (F.col("expires_s") * 1_000_000).cast("bigint")).alias("expires_at"),
        F.from_json("position", POSITION).alias("_position"),
    )  # fmt: skip
    about = F.struct(
        "command_id",
        "rule",
        "state",
        "device",
        "reading_id",
        "value",
        "message",
        F.col("event_time").alias("ts"),
    )
    usual = F.to_json(
        about,
        {"ignoreNullFields": "false", "timeZone": "UTC", "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSX"},
    )
    return rows.withColumn("payload", F.coalesce("payload", F.encode(usual, "UTF-8")))


def _as_commands(alerts: DataFrame) -> DataFrame:
    """Return the commands among alerts (``bridge.contract.COMMAND_COLUMNS``)."""
    from pyspark.sql import functions as F

    given = {
        "device": F.col("to_device"),
        "mqtt_topic": F.col("command_topic"),
        "emitted_at": F.col("created_at"),
        "cause": F.concat_ws("/", "rule", "reading_id"),
        "qos": F.lit(1),
        "retain": F.lit(False),
    }
    return alerts.where("to_device IS NOT NULL").select(
        *(given.get(name, F.col(name)).alias(name) for name, _ in COMMAND_COLUMNS if name != "group")
    )
