"""Alerts: flows that apply rules to new rows of tables. They write commands and the topic of alerts.

They read the rows from their source and write no table, because commands would wait for its commit. Another flow writes
the topic to the table ``alerts``, each alert once by its id.

The rules of each table have separate flows, so an edit of the rules file never changes the source of a flow. Spark
rejects a checkpoint whose sources have changed.

Rules without state (kind ``sql``, ``every: message``) of a table share one flow. Its other rules share a flow with
state for each device, by Spark's ``transformWithState``. Spark keeps that state versioned by batch. Offsets and
watermark of a batch are fixed before it runs. So a repeated batch has the same rows, state and time, and creates the
same commands (H19). One task processes all rows of a device in sequence, so its commands leave in order (H22). The
watermark is of arrival. It drops no row and only drives the timers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bridge.contract import ALERTS_TOPIC
from bridge.errors import ConfigError
from streaming import pipelines as dp
from streaming.alert_rules import FIELD, WHOLE, AlertRule, Sql, load_rules
from streaming.sql import barrier, literal, once, quoted
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
    "device string COMMENT 'device of the alert', "
    "`table` string COMMENT 'table of the rule', "
    "event_time timestamp COMMENT 'time of the row', "
    "value double COMMENT 'value that the rule evaluated, if any', "
    "message string COMMENT 'text for people', "
    "payload binary COMMENT 'payload of the command', "
    "to_device string COMMENT 'device of the command; null: no command', "
    "command_topic string COMMENT 'MQTT topic of the command', "
    "command_id string COMMENT 'identity of alert and command, the same for the same row and rule', "
    "reading_id string COMMENT 'identity of the row', "
    "created_at timestamp COMMENT 'start of the micro-batch', "
    "expires_at timestamp COMMENT 'when the command expires', "
    f"_position {POSITION} COMMENT 'position of the message in Pulsar'"
)
_STATE: Final = {
    "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}
"""transformWithState needs this store. With its changelog a batch writes only its changes."""
_NULL: Final = "CAST(NULL AS STRING)"
_POSITION: Final = "to_json(_position)"
_OF_MESSAGE: Final = (
    "to_json(named_struct('topic', __topic, 'partition', partition, 'ledger', ledger_id, 'entry', entry_id, "
    "'index', batch_index))"
)
"""Position of a row that is an unchanged message."""
_FOUND: Final = (
    "array<struct<rule: string, series: string, matches: boolean, message: string, payload: binary, to_device: string, "
    "command_topic: string>>"
)
_EMPTY: Final = {"spark.sql.streaming.noDataMicroBatches.enabled": "true"}
"""After a batch that advanced the watermark, Spark runs one without data. Else timers would wait for the next row."""


def declare_alerts(settings: Settings) -> None:
    """Declare the table and the flows of alerts, if there are rules. Raises ConfigError for invalid rules."""
    path = settings.streaming.alerts
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
        comment="Alerts of the rules, with and without a command",
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
    filled = [name for name in pipeline.tables if any(f.kind == "append" for f in pipeline.flows_of(name))]
    for n, rule in enumerate(rules):
        if rule.table not in filled:
            what = "messages do not fill it" if rule.table in pipeline.tables else "it does not exist"
            raise ConfigError(
                f"rules file {path}: alerts[{n}].table (rule {rule.name}): {rule.table!r}: {what}",
                remedy=f"existing tables: {', '.join(filled) or 'none'}",
            )


@dataclass(frozen=True)
class _Rules:
    """The rules of a file for one table of a pipeline."""

    settings: Settings
    path: Path
    all: Sequence[AlertRule]
    table: str
    pipeline: dp.Pipeline

    @property
    def each(self) -> list[AlertRule]:
        """Return the rules without state."""
        return [rule for rule in self.all if rule.table == self.table and not rule.stateful]

    @property
    def lasting(self) -> list[AlertRule]:
        """Return the rules with state."""
        return [rule for rule in self.all if rule.table == self.table and rule.stateful]

    def of_rows(self) -> DataFrame:
        """Return alerts and commands of the rules without state."""
        rows = self._rows(self.each[0])
        found = ", ".join(self._alert(rule, rows) for rule in self.each)
        return _finished(rows.selectExpr(f"inline(array_compact(array({found})))"))

    def of_devices(self) -> DataFrame:
        """Return alerts and commands of the rules with state."""
        from pyspark.sql import functions as F

        from sources.spark_features import require_state
        from streaming.alert_processor import OUTPUT, AlertProcessor

        require_state("alert rules with state")
        streaming = self.settings.streaming
        rows = self._watched(self._rows(self.lasting[0]), self.lasting)
        rows = rows.withWatermark("clock", f"{round(streaming.silence_grace * 1000)} milliseconds")
        # The condition includes the watermark's column, so Spark applies it after the watermark: all rows advance it.
        rows = rows.where("size(seen) > 0 OR clock IS NULL")
        # A number is not the watermark's column any more, so Spark drops no row as late.
        rows = rows.withColumn("arrived_us", F.unix_micros("clock")).drop("clock")
        found = rows.groupBy("device").transformWithState(
            AlertProcessor(tuple(self.lasting), round(streaming.alert_state_expiry * 1e6)),
            outputStructType=", ".join(f"`{name}` {kind}" for name, kind in OUTPUT),
            outputMode="append",
            timeMode="eventTime",
        )
        return _finished(found)

    def _rows(self, first: AlertRule) -> DataFrame:
        """Return the rows for the table, each with ``_about``: its facts for alerts."""
        from streaming.suites import Suites

        declared = self.pipeline.tables[self.table]
        parts = [flow.query() for flow in self.pipeline.flows_of(self.table) if flow.kind == "append"]
        rows = reduce(lambda a, b: a.unionByName(b, allowMissingColumns=True), parts)
        suite = declared.suite and Suites(self.settings.streaming.suites).suite(declared.suite)
        rows = barrier(validated(rows, declared, suite or None))
        if "_failed_rules" in rows.columns:
            rows = rows.where("size(_failed_rules) = 0")
        names = set(rows.columns)
        position = _POSITION if "_position" in names else _OF_MESSAGE if "batch_index" in names else _NULL
        ids: list[str] = [name for name in ("reading_id", "_id") if name in names]
        ids += [] if position == _NULL else [position]
        lacking = "no _position and no reading_id" if not ids else None
        if declared.device_column not in names:
            lacking = "no column that names the device"
        if lacking is not None:
            what = f"{self.table!r} has {lacking}"
            raise self._wrong(first, "table", what, "add it to the result of its function")
        # An ingest clock that is ahead must not make the whole fleet late (H20).
        clock = "least(arrival_time, current_timestamp())" if "arrival_time" in names else "current_timestamp()"
        at = "CAST(event_time AS TIMESTAMP)" if "event_time" in names else clock
        about = {
            "device": f"CAST({quoted(declared.device_column or '')} AS STRING)",
            "reading_id": f"CAST(coalesce({', '.join(ids)}) AS STRING)",
            "event_us": f"unix_micros({at})",
            "clock": clock,
            "position": position,
            "metric": "metric" if "metric" in names else _NULL,
            "value": f"CAST({'value' if {'metric', 'value'} <= names else 'NULL'} AS DOUBLE)",
            "unit": "CAST(unit AS STRING)" if "unit" in names else _NULL,
            "command_topic": "command_topic" if "command_topic" in names else _NULL,
        }
        rows = rows.selectExpr("*", f"{_struct(about)} AS _about")
        return rows.where("_about.device IS NOT NULL AND _about.event_us IS NOT NULL")

    def _watched(self, rows: DataFrame, rules: Sequence[AlertRule]) -> DataFrame:
        """Return each row's values that rules with state evaluate."""
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
        """Return the alert of a rule without state as SQL, null for no alert."""
        sql = self._sql(rule, rows)
        id = "_about.reading_id"
        if "metric" in rows.columns and rule.metric is None:  # a message has a row for each metric
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
            "expires_s": f"CAST({'NULL' if rule.expires is None else rule.expires} AS DOUBLE)",
        }
        return f"CASE WHEN {sql['matches']} THEN {_struct(alert)} END"

    def _sql(self, rule: AlertRule, rows: DataFrame) -> dict[str, str]:
        """Return the SQL expressions of a rule of kind sql."""
        matches, kind = self._expression(rows, rule, "condition", rule.condition or "")
        if kind != "boolean":
            what = f"{rule.condition} is not a condition but {kind}"
            raise self._wrong(rule, "condition", what, "compare it with a value")
        if rule.metric is not None:
            self._check_metrics(rows, rule)
            matches = f"CASE WHEN _about.metric = {literal(rule.metric)} THEN {matches} END"
        message = self._text(rows, rule, "message", rule.message or f"{rule.name} of {rule.table}")
        over = self._text(rows, rule, "cleared_message", rule.cleared_message or f"{rule.name}: over")
        to, topic, payload = rule.to, rule.command_topic, rule.payload
        return {
            "matches": matches,
            "message": f"CASE WHEN {matches} THEN {message} ELSE {over} END",
            "payload": "CAST(NULL AS BINARY)"
            if payload is None
            else self._text(rows, rule, "payload", payload, "BINARY"),
            "to_device": "_about.device" if to is None else _NULL if to == "none" else self._text(rows, rule, "to", to),
            "command_topic": "_about.command_topic"
            if topic is None
            else self._text(rows, rule, "command_topic", topic),
        }

    def _text(self, rows: DataFrame, rule: AlertRule, field: str, given: str | Sql, kind: str = "STRING") -> str:
        """Return the user's text with its columns' values, or the value of its SQL."""
        if isinstance(given, Sql):
            found, of = self._expression(rows, rule, field, given.sql)
            if of.startswith(("struct", "map", "array")):
                raise self._wrong(rule, field, f"{given.sql} is not text but {of}", "use to_json(...)")
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
            what = f"{rule.column} is not a number but {kind}"
            raise self._wrong(rule, "column", what, "cast it, or use kind: sql")
        return f"CAST({found} AS DOUBLE)"

    def _check_metrics(self, rows: DataFrame, rule: AlertRule) -> None:
        if not {"metric", "value"} <= set(rows.columns):
            what = f"{self.table!r} has no columns metric and value"
            raise self._wrong(rule, "metric", what, f"name a column: {_names(rows)}")

    def _expression(self, rows: DataFrame, rule: AlertRule, field: str, given: str) -> tuple[str, str]:
        """Return the user's SQL and its type. Raises ConfigError if Spark cannot analyse it over the table's rows."""
        from pyspark.errors import AnalysisException

        found = f"({given}\n)"  # the line break terminates a comment
        try:
            # A condition, because Spark rejects aggregates in one.
            one = rows.where(f"{found} IS NOT NULL").selectExpr(f"{found} AS one")
            return found, one.schema["one"].dataType.simpleString()
        except AnalysisException as e:
            why = str(e).strip().splitlines()[0]
            raise self._wrong(rule, field, f"{given!r}: {why}", f"{self.table!r} has {_names(rows)}") from e

    def _wrong(self, rule: AlertRule, field: str, what: str, remedy: str) -> ConfigError:
        path = f"alerts[{self.all.index(rule)}].{field}"
        return ConfigError(f"rules file {self.path}: {path} (rule {rule.name}): {what}", remedy=remedy)


def _names(rows: DataFrame) -> str:
    return ", ".join(name for name in rows.columns if not name.startswith("_"))


def _struct(of: Mapping[str, str]) -> str:
    return f"named_struct({', '.join(f'{literal(name)}, {sql}' for name, sql in of.items())})"


def _finished(found: DataFrame) -> DataFrame:
    """Return alerts of the columns ``alert_processor.OUTPUT`` as rows of the sink of commands. Each has the message for
    the topic of alerts. A row with a command has a device.
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
    default = F.encode(F.to_json(about, written), "UTF-8")
    rows = rows.withColumn("payload", F.coalesce("payload", default))
    exact = {"timeZone": "UTC", "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSX"}
    rows = rows.withColumn("alert", F.encode(F.to_json(F.struct("*"), exact), "UTF-8"))
    return rows.selectExpr(
        "command_id", "to_device AS device", "command_topic AS mqtt_topic", "payload", "1 AS qos", "false AS retain",
        "expires_at", "created_at AS emitted_at", "concat(rule, '/', reading_id) AS cause", "alert",
    )  # fmt: skip
