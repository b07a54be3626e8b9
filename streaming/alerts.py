"""Alerts: the rows of tables, read from their source as they come, through the rules, to commands and the topic of alerts.

These flows write no table: a commit takes longer than a rule, and commands would wait for it. Another flow brings the topic
into the table ``alerts``, each alert once by its id.

The rules of each table have flows of their own, so that an edit of the rules file never changes what a flow reads: Spark
refuses a checkpoint whose sources have changed.

Rules without state (kind ``sql``, ``every: message``) of a table share one flow. Its other rules share one with state for
each device, by Spark's ``transformWithState``. Spark keeps that state versioned by batch; the offsets and the watermark of a
batch are fixed before it runs. So a batch that is run again sees the same rows, the same state and the same time, and gives
the same commands (H19). All rows of a device are handled in one task, one after the other, so its commands leave in order
(H22). The watermark is of arrival, and no row is dropped by it: it serves the timers alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bridge.contract import ALERTS_TOPIC
from bridge.errors import ConfigError
from bridge.settings.alert_rules import FIELD, WHOLE, AlertRule, Sql, load_rules
from streaming import pipelines as dp
from streaming.sql import apart, literal, once, quoted
from streaming.tables import struct_of
from streaming.writing import POSITION, validated

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from bridge.settings import Settings

__all__ = ["ALERTS", "ALERTS_SCHEMA", "declare_alerts"]

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
_NULL: Final = "CAST(NULL AS STRING)"
_POSITION: Final = "to_json(_position)"
_OF_MESSAGE: Final = (
    "to_json(named_struct('topic', __topic, 'partition', partition, 'ledger', ledger_id, 'entry', entry_id, "
    "'index', batch_index))"
)
"""Where a row is, of one that is a message as it came."""
_FOUND: Final = (
    "array<struct<rule: string, series: string, holds: boolean, message: string, payload: binary, to_device: string, "
    "command_topic: string>>"
)
_EMPTY: Final = {"spark.sql.streaming.noDataMicroBatches.enabled": "true"}
"""A batch that moved the clock is followed by one without data: else timers would wait for the next row of any device."""


def declare_alerts(settings: Settings) -> None:
    """Declare the table and the flows of alerts, unless there is no rule. Raises ConfigError for invalid rules."""
    path = settings.streaming.rules
    rules = () if path is None else load_rules(path)
    if path is None or not rules:
        return
    pipeline = dp._pipeline()
    _check_tables(path, rules, pipeline)
    for table in sorted({rule.table for rule in rules}):
        found = _Rules(settings, path, rules, table, pipeline)
        if found.each:
            dp.commands(found.of_rows, name=f"{ALERTS}-{table}-each")
        if found.lasting:
            conf = _STATE | (_EMPTY if any(rule.kind == "silence" for rule in found.lasting) else {})
            dp.commands(found.of_devices, name=f"{ALERTS}-{table}", spark_conf=conf)

    @dp.table(
        comment="What the rules found, whether or not a device gets a command",
        schema=ALERTS_SCHEMA,
        cluster_by=["device", "created_at"],
        keys=["command_id", "event_time"],
    )
    def alerts() -> DataFrame:
        from pyspark.sql import functions as F

        rows: DataFrame = dp._reader().system_topic(ALERTS_TOPIC)
        return rows.select(F.from_json(F.col("payload").cast("string"), struct_of(ALERTS_SCHEMA)).alias("one")).select(
            "one.*"
        )


def _check_tables(path: Path, rules: Sequence[AlertRule], pipeline: dp.Pipeline) -> None:
    there = [name for name in pipeline.tables if any(f.kind == "append" for f in pipeline.flows_of(name))]
    for n, rule in enumerate(rules):
        if rule.table not in there:
            what = "messages do not fill it" if rule.table in pipeline.tables else "there is no such table"
            raise ConfigError(
                f"rules file {path}: alerts[{n}].table (rule {rule.name}): {rule.table!r}: {what}",
                remedy=f"there is {', '.join(there) or 'none'}",
            )


@dataclass(frozen=True)
class _Rules:
    """The rules of a file that look at one table of a pipeline."""

    settings: Settings
    path: Path
    all: Sequence[AlertRule]
    table: str
    pipeline: dp.Pipeline

    @property
    def each(self) -> list[AlertRule]:
        """Those without state."""
        return [rule for rule in self.all if rule.table == self.table and not rule.stateful]

    @property
    def lasting(self) -> list[AlertRule]:
        """Those that have state."""
        return [rule for rule in self.all if rule.table == self.table and rule.stateful]

    def of_rows(self) -> DataFrame:
        """Return alerts and commands of the rules without state."""
        rows = self._rows(self.each[0])
        found = ", ".join(self._alert(rule, rows) for rule in self.each)
        return _finished(rows.selectExpr(f"inline(array_compact(array({found})))"))

    def of_devices(self) -> DataFrame:
        """Return alerts and commands of the rules that have state."""
        from pyspark.sql import functions as F

        from streaming.alert_processor import OUTPUT, AlertProcessor

        streaming = self.settings.streaming
        rows = self._watched(self._rows(self.lasting[0]), self.lasting)
        rows = rows.withWatermark("clock", f"{round(streaming.silence_grace_s * 1000)} milliseconds")
        # With the watermark's column in it Spark leaves the condition behind the watermark: all rows move the clock.
        rows = rows.where("size(seen) > 0 OR clock IS NULL")
        # As a number it is not the watermark's column any more, so that Spark takes no row for late.
        rows = rows.withColumn("arrived_us", F.unix_micros("clock")).drop("clock")
        found = rows.groupBy("device").transformWithState(
            AlertProcessor(tuple(self.lasting), round(streaming.alert_state_days * _DAY_US)),
            outputStructType=", ".join(f"`{name}` {kind}" for name, kind in OUTPUT),
            outputMode="append",
            timeMode="eventTime",
        )
        return _finished(found)

    def _rows(self, first: AlertRule) -> DataFrame:
        """Return the rows that go into the table, each with ``_about``: what alerts must know of it."""
        from streaming.suites import Suites

        declared = self.pipeline.tables[self.table]
        parts = [flow.query() for flow in self.pipeline.flows_of(self.table) if flow.kind == "append"]
        rows = reduce(lambda a, b: a.unionByName(b, allowMissingColumns=True), parts)
        suite = declared.suite and Suites(self.settings.streaming.expectations).suite(declared.suite)
        rows = apart(validated(rows, declared, suite or None))
        if "_failed_rules" in rows.columns:
            rows = rows.where("size(_failed_rules) = 0")
        there = set(rows.columns)
        position = _POSITION if "_position" in there else _OF_MESSAGE if "batch_index" in there else _NULL
        ids: list[str] = [name for name in ("reading_id", "_id") if name in there]
        ids += [] if position == _NULL else [position]
        lacking = "no _position and no reading_id" if not ids else None
        if declared.device_column not in there:
            lacking = "no column of its own that names the device"
        if lacking is not None:
            what = f"{self.table!r} has {lacking}"
            raise self._wrong(first, "table", what, "add it to what its function returns")
        # A clock of ingest that is ahead must not make the whole fleet late (H20).
        clock = "least(arrival_time, current_timestamp())" if "arrival_time" in there else "current_timestamp()"
        at = "CAST(event_time AS TIMESTAMP)" if "event_time" in there else clock
        about = {
            "device": f"CAST({quoted(declared.device_column or '')} AS STRING)",
            "reading_id": f"CAST(coalesce({', '.join(ids)}) AS STRING)",
            "event_us": f"unix_micros({at})",
            "clock": clock,
            "position": position,
            "metric": "metric" if "metric" in there else _NULL,
            "value": f"CAST({'value' if {'metric', 'value'} <= there else 'NULL'} AS DOUBLE)",
            "unit": "CAST(unit AS STRING)" if "unit" in there else _NULL,
            "command_topic": "command_topic" if "command_topic" in there else _NULL,
        }
        rows = rows.selectExpr("*", f"{_struct(about)} AS _about")
        return rows.where("_about.device IS NOT NULL AND _about.event_us IS NOT NULL")

    def _watched(self, rows: DataFrame, rules: Sequence[AlertRule]) -> DataFrame:
        """Return of each row the values that rules with state look at."""
        values = []
        of_metrics = [rule for rule in rules if rule.metric is not None]
        if of_metrics:
            self._check_metrics(rows, of_metrics[0])
            wanted = ", ".join(sorted({literal(rule.metric or "") for rule in of_metrics}))
            one = {"series": "_about.metric", "metric": "_about.metric", "value": "_about.value"}
            values.append(f"CASE WHEN _about.metric IN ({wanted}) THEN {_struct(one)} END")
        for rule in {rule.series: rule for rule in rules if rule.column is not None}.values():
            number = self._number(rows, rule)
            one = {"series": literal(rule.series), "metric": literal(rule.column or ""), "value": number}
            values.append(f"CASE WHEN {number} IS NOT NULL THEN {_struct(one)} END")
        if any(rule.series == WHOLE for rule in rules):
            values.append(_struct({"series": literal(WHOLE), "metric": "_about.metric", "value": "_about.value"}))
        found = [
            _struct({"rule": literal(rule.name), "series": literal(rule.series), **self._sql(rule, rows)})
            for rule in rules
            if rule.kind == "sql"
        ]
        seen = f"array_compact(array({', '.join(values)}))"
        return rows.selectExpr(
            "_about.*",
            f"{once(seen)} AS seen",
            f"CAST(array({', '.join(found)}) AS {_FOUND}) AS found",
        )

    def _alert(self, rule: AlertRule, rows: DataFrame) -> str:
        """Return the alert of a rule without state, null where there is none."""
        sql = self._sql(rule, rows)
        id = "_about.reading_id"
        if "metric" in rows.columns and rule.metric is None:  # a message has a row for each of them
            id = "concat_ws('|', _about.reading_id, _about.metric)"
        alert = {
            "rule": literal(rule.name),
            "state": "'raised'",
            "device": "_about.device",
            "table": literal(rule.table),
            "event_us": "_about.event_us",
            "value": "_about.value",
            **{name: sql[name] for name in ("message", "payload", "to_device", "command_topic")},
            "reading_id": id,
            "position": "_about.position",
            "expires_s": f"CAST({'NULL' if rule.expires_s is None else rule.expires_s} AS DOUBLE)",
        }
        return f"CASE WHEN {sql['holds']} THEN {_struct(alert)} END"

    def _sql(self, rule: AlertRule, rows: DataFrame) -> dict[str, str]:
        """Return what a rule of kind sql says of a row."""
        holds, kind = self._expression(rows, rule, "condition", rule.condition or "")
        if kind != "boolean":
            what = f"{rule.condition} is no condition but {kind}"
            raise self._wrong(rule, "condition", what, "compare it with something")
        if rule.metric is not None:
            self._check_metrics(rows, rule)
            holds = f"CASE WHEN _about.metric = {literal(rule.metric)} THEN {holds} END"
        message = self._text(rows, rule, "message", rule.message or f"{rule.name} of {rule.table}")
        over = self._text(rows, rule, "cleared_message", rule.cleared_message or f"{rule.name}: over")
        to, topic, payload = rule.to, rule.command_topic, rule.payload
        return {
            "holds": holds,
            "message": f"CASE WHEN {holds} THEN {message} ELSE {over} END",
            "payload": "CAST(NULL AS BINARY)"
            if payload is None
            else self._text(rows, rule, "payload", payload, "BINARY"),
            "to_device": "_about.device" if to is None else _NULL if to == "none" else self._text(rows, rule, "to", to),
            "command_topic": "_about.command_topic"
            if topic is None
            else self._text(rows, rule, "command_topic", topic),
        }

    def _text(self, rows: DataFrame, rule: AlertRule, field: str, given: str | Sql, kind: str = "STRING") -> str:
        """Return a text of the user's, with the columns that it names, or what its SQL gives."""
        if isinstance(given, Sql):
            found, of = self._expression(rows, rule, field, given.sql)
            if of.startswith(("struct", "map", "array")):
                raise self._wrong(rule, field, f"{given.sql} is no text but {of}", "use to_json(...)")
            return found if of == kind.lower() else f"CAST(CAST({found} AS STRING) AS {kind})"
        parts = []
        for n, part in enumerate(FIELD.split(given)):
            if n % 2 and part.lower() not in map(str.lower, rows.columns):
                what = f"{{{part}}}: {self.table!r} has no such column"
                raise self._wrong(rule, field, what, f"it has {_names(rows)}")
            parts.append(f"coalesce(CAST({quoted(part)} AS STRING), '')" if n % 2 else literal(part))
        return f"CAST(concat({', '.join(parts)}) AS {kind})"

    def _number(self, rows: DataFrame, rule: AlertRule) -> str:
        found, kind = self._expression(rows, rule, "column", rule.column or "")
        if not kind.startswith(("double", "float", "decimal", "int", "bigint", "smallint", "tinyint")):
            what = f"{rule.column} is no number but {kind}"
            raise self._wrong(rule, "column", what, "cast it, or use kind: sql")
        return f"CAST({found} AS DOUBLE)"

    def _check_metrics(self, rows: DataFrame, rule: AlertRule) -> None:
        if not {"metric", "value"} <= set(rows.columns):
            what = f"{self.table!r} has no columns metric and value"
            raise self._wrong(rule, "metric", what, f"name a column: {_names(rows)}")

    def _expression(self, rows: DataFrame, rule: AlertRule, field: str, given: str) -> tuple[str, str]:
        """Return SQL of the user's and its type. Raises ConfigError if it will not do over the rows of the table."""
        from pyspark.errors import AnalysisException

        found = f"({given}\n)"  # what ends in a comment ends there
        try:
            # A condition, as Spark refuses aggregates there.
            one = rows.where(f"{found} IS NOT NULL").selectExpr(f"{found} AS one")
            return found, one.schema["one"].dataType.simpleString()
        except AnalysisException as e:
            why = str(e).strip().splitlines()[0]
            raise self._wrong(rule, field, f"{given!r}: {why}", f"{self.table!r} has {_names(rows)}") from e

    def _wrong(self, rule: AlertRule, field: str, what: str, remedy: str) -> ConfigError:
        place = f"alerts[{self.all.index(rule)}].{field}"
        return ConfigError(f"rules file {self.path}: {place} (rule {rule.name}): {what}", remedy=remedy)


def _names(rows: DataFrame) -> str:
    return ", ".join(name for name in rows.columns if not name.startswith("_"))


def _struct(of: Mapping[str, str]) -> str:
    return f"named_struct({', '.join(f'{literal(name)}, {sql}' for name, sql in of.items())})"


def _finished(found: DataFrame) -> DataFrame:
    """Return alerts of the columns ``alert_processor.OUTPUT`` as rows of the sink of commands: each with what goes to the
    topic of alerts, and with a device where there is a command.
    """
    from pyspark.sql import functions as F

    rows = found.selectExpr(
        "rule", "state", "device", "`table`", "timestamp_micros(event_us) AS event_time", "value", "message", "payload",
        "CASE WHEN command_topic IS NOT NULL THEN to_device END AS to_device",
        "CASE WHEN to_device IS NOT NULL THEN command_topic END AS command_topic",
        # As streaming.evaluation.command_id.
        "substr(sha2(concat(IF(state = 'cleared', '|cleared|', ''), rule, '|', device, '|', reading_id), 256), 1, 32) "
        "AS command_id",
        "reading_id",
        "current_timestamp() AS created_at",
        "current_timestamp() + make_dt_interval(0, 0, 0, CAST(expires_s AS DECIMAL(18, 6))) AS expires_at",
        f"from_json(position, '{POSITION}') AS _position",
    )  # fmt: skip
    fields = ("command_id", "rule", "state", "device", "reading_id", "value", "message")
    about = F.struct(*fields, F.col("event_time").alias("ts"))
    written = {"ignoreNullFields": "false", "timeZone": "UTC", "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSX"}
    usual = F.encode(F.to_json(about, written), "UTF-8")
    rows = rows.withColumn("payload", F.coalesce("payload", usual))
    exact = {"timeZone": "UTC", "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSX"}
    rows = rows.withColumn("alert", F.encode(F.to_json(F.struct("*"), exact), "UTF-8"))
    return rows.selectExpr(
        "command_id", "to_device AS device", "command_topic AS mqtt_topic", "payload", "1 AS qos", "false AS retain",
        "expires_at", "created_at AS emitted_at", "concat(rule, '/', reading_id) AS cause", "alert",
    )  # fmt: skip
