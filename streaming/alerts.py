"""The query alerts: silver's deduplicated readings, through the rules, to commands.

It binds ``streaming.judging`` to Spark's ``transformWithState``: state and a timer per device, rows in, command rows
out. Spark's state store keeps what was last seen of each device, versioned by batch; the offsets and the watermark of
a batch are fixed before it runs. So a batch that is run again sees the same rows, the same state and the same time,
and gives the same commands (H19). All rows of a device are handled in one task, one after the other, so its commands
leave in order (H22).

The watermark is of arrival, and no row is dropped by it: it serves the timers alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from bridge.contract import COMMAND_COLUMNS
from bridge.errors import ConfigError, MissingExtraError
from bridge.names import DEFAULT_MAX_NAME_BYTES
from sources.options import connection_options
from sources.spark_features import spark_features
from streaming.rules import AlertRule
from streaming.tables import Tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamWriter

    from bridge.settings import PulsarSettings

__all__ = ["FORGET_DAYS", "GRACE_S", "commands", "empty_batches", "query", "sink_options"]

GRACE_S: Final = 30.0
FORGET_DAYS: Final = 30.0
_DAY_US: Final = 86_400_000_000
_PROVIDER: Final = "spark.sql.streaming.stateStore.providerClass"
_EMPTY: Final = "spark.sql.streaming.noDataMicroBatches.enabled"

# As the rules give them; times are bigint µs until Spark makes timestamps of them.
_OUTPUT: Final = tuple((n, "bigint" if t == "timestamp" else t) for n, t in COMMAND_COLUMNS)


def sink_options(pulsar: PulsarSettings, max_name_bytes: int = DEFAULT_MAX_NAME_BYTES) -> dict[str, str]:
    """Return the options of ``pulsebridge_commands`` that these settings stand for; secrets included."""
    return connection_options(pulsar) | {
        "tenant": pulsar.tenant,
        "namespace": pulsar.namespace,
        "system.namespace": pulsar.system_namespace,
        "partitions": str(pulsar.command_partitions),
        "maxNameBytes": str(max_name_bytes),
    }


def commands(
    silver: DataFrame,
    rules: tuple[AlertRule, ...],
    *,
    grace_s: float = GRACE_S,
    forget_days: float = FORGET_DAYS,
) -> DataFrame:
    """Return the stream of commands (``contract.COMMAND_COLUMNS``) that the rules make of the stream of silver.

    ``grace_s``: how far the clock of silence is behind the latest arrival. ``forget_days``: how long a device may be
    away, by that clock, until nothing is kept of it. Raises ConfigError where Spark cannot keep the state.
    """
    from pyspark.sql import functions as F

    _check(silver.sparkSession)
    from streaming.alert_processor import AlertProcessor

    # A clock of ingest that is ahead must not make the whole fleet late (H20).
    readings = silver.withColumn("clock", F.least("arrival_time", "processed_at"))
    readings = _of_rules(readings.withWatermark("clock", f"{round(grace_s * 1000)} milliseconds"), rules)
    # A suite may let rows through that no rule can judge.
    readings = readings.where("device IS NOT NULL AND event_time IS NOT NULL")
    found = (
        readings.select(
            "device",
            "metric",
            "reading_id",
            F.unix_micros("event_time").alias("event_us"),
            # As a number it is not the watermark's column any more, so that Spark takes no row for late.
            F.unix_micros("clock").alias("arrived_us"),
            "value",
            "unit",
            "command_topic",
        )
        .groupBy("device")
        .transformWithState(
            AlertProcessor(rules, round(forget_days * _DAY_US)),
            outputStructType=", ".join(f"`{name}` {kind}" for name, kind in _OUTPUT),
            outputMode="append",
            timeMode="eventTime",
        )
    )
    return found.select(
        *(
            F.timestamp_micros(name).alias(name) if kind == "timestamp" else F.col(name)
            for name, kind in COMMAND_COLUMNS
        )
    )


def _of_rules(readings: DataFrame, rules: tuple[AlertRule, ...]) -> DataFrame:
    """Leave out readings of metrics that no rule names."""
    from pyspark.sql import functions as F

    metrics = {rule.metric for rule in rules}
    if None in metrics:
        return readings
    wanted = F.col("metric").isin(sorted(metrics - {None}))
    # With the watermark's column in it Spark leaves the condition behind the watermark: all readings move the clock.
    return readings.where(wanted | F.col("clock").isNull() if _of_silence(rules) else wanted)


def _of_silence(rules: tuple[AlertRule, ...]) -> bool:
    return any(rule.kind == "silence" for rule in rules)


def _check(spark: SparkSession) -> None:
    """Raise ConfigError where this Spark, or its settings, cannot keep the state."""
    features = spark_features()
    if not features.state:
        raise ConfigError(
            f"Spark {features.version} has no transformWithState for rows in Python, which the query alerts needs",
            remedy="use Spark 4.2, or take alerts out of streaming.queries",
        )
    try:
        from pyspark.sql.streaming.proto import StateMessage_pb2  # noqa: F401 — what its workers need
    except Exception as e:  # ImportError, or protobuf's own for one that is too old
        raise MissingExtraError(
            f"Spark's transformWithState cannot be used: {e}", remedy="pip install 'pulsebridge[spark]'"
        ) from e
    provider = str(spark.conf.get(_PROVIDER, ""))
    if not provider.endswith("RocksDBStateStoreProvider"):
        raise ConfigError(
            f"the query alerts needs the state store RocksDB, {_PROVIDER} is {provider or 'not set'}",
            remedy="take the lines of conf/spark-defaults.conf into the session's settings",
        )


@contextmanager
def empty_batches(spark: SparkSession, rules: tuple[AlertRule, ...]) -> Iterator[None]:
    """Start a query within this: with a rule of silence, a batch that moved the clock is followed by one without data,
    if there is none with data. Otherwise timers would wait for the next reading of any device.
    """
    before = str(spark.conf.get(_EMPTY))
    spark.conf.set(_EMPTY, "true" if _of_silence(rules) else before)
    try:
        yield
    finally:
        spark.conf.set(_EMPTY, before)


def query(
    found: DataFrame, tables: Tables, pulsar: PulsarSettings, max_name_bytes: int = DEFAULT_MAX_NAME_BYTES
) -> DataStreamWriter:
    """Return the writer of the query; the caller sets its trigger and starts it."""
    return (
        found.writeStream.queryName("alerts")
        .format("pulsebridge_commands")
        .outputMode("append")
        .options(**sink_options(pulsar, max_name_bytes))
        .option("checkpointLocation", tables.checkpoint("alerts"))
    )
