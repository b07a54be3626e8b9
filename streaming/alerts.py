"""The query alerts: silver's deduplicated readings, through the rules, to commands.

It binds ``streaming.rules`` to Spark: state per device, rows in, command rows out. Spark's state store keeps what was
last seen of each device, versioned by batch, and the offsets of a batch are fixed before it runs: a batch that is
run again sees the same rows and the same state and gives the same commands (H19). All rows of a device are handled
in one task, one after the other, so its commands leave in order (H22).
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from bridge.contract import COMMAND_COLUMNS
from sources.options import connection_options
from streaming.rules import Alert, AlertRule, Reading, command_payload, judge
from streaming.tables import Tables

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming import DataStreamWriter

    from bridge.settings import PulsarSettings

__all__ = ["commands", "judge_device", "query", "sink_options"]

State = str
"""JSON: version, and the newest reading of each metric."""
_STATE_VERSION: Final = 1
_EPOCH: Final = datetime(1970, 1, 1)
_MICROSECOND: Final = timedelta(microseconds=1)

# As the rules give them; times are bigint µs until Spark makes timestamps of them.
_OUTPUT: Final = tuple((n, "bigint" if t == "timestamp" else t) for n, t in COMMAND_COLUMNS)


def sink_options(pulsar: PulsarSettings) -> dict[str, str]:
    """Return the options of ``pulsebridge_commands`` that these settings stand for; secrets included."""
    return connection_options(pulsar) | {
        "tenant": pulsar.tenant,
        "namespace": pulsar.namespace,
        "system.namespace": pulsar.system_namespace,
        "partitions": str(pulsar.command_partitions),
    }


def commands(silver: DataFrame, rules: tuple[AlertRule, ...]) -> DataFrame:
    """Return the stream of commands (``contract.COMMAND_COLUMNS``) that the rules make of the stream of silver."""
    from pyspark.sql import functions as F

    metrics = sorted({rule.metric for rule in rules})
    readings = silver.where(F.col("metric").isin(metrics)).select(
        "device",
        "metric",
        "reading_id",
        F.unix_micros("event_time").alias("event_us"),
        "value",
        "unit",
        "command_topic",
    )
    found = readings.groupBy("device").applyInPandasWithState(
        judge_device(rules),
        outputStructType=", ".join(f"{name} {kind}" for name, kind in _OUTPUT),
        stateStructType="newest string",
        outputMode="append",
        timeoutConf="NoTimeout",
    )
    return found.select(
        *(
            F.timestamp_micros(name).alias(name) if kind == "timestamp" else F.col(name)
            for name, kind in COMMAND_COLUMNS
        )
    )


def judge_device(rules: tuple[AlertRule, ...]) -> Callable[..., Iterator[pd.DataFrame]]:
    """Return the function that Spark calls for each device of a micro-batch, on an executor, with its new rows."""

    def call(key: tuple[Any, ...], chunks: Iterable[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
        # Spark's own serializer concatenates frames in a way that pandas warns of, once per task, on stderr.
        warnings.filterwarnings("ignore", category=FutureWarning, module=r"pyspark\.sql\.pandas")
        import pandas as pd

        device = str(key[0])
        newest = _state_read(state.get[0] if state.exists else None, device)
        topics: dict[str, str | None] = {}
        by_metric: dict[str, list[Reading]] = {}
        for chunk in chunks:
            for row in chunk.itertuples(index=False):
                at = _EPOCH + int(row.event_us) * _MICROSECOND
                reading = Reading(device, row.metric, row.reading_id, at, float(row.value), row.unit)
                by_metric.setdefault(row.metric, []).append(reading)
                topics[row.reading_id] = row.command_topic
        alerts: list[Alert] = []
        for metric, readings in by_metric.items():
            more, last = judge(rules, newest.get(metric), readings)
            alerts += more
            if last is not None:
                newest[metric] = last
        state.update((_state_written(newest),))
        alerts.sort(key=lambda a: (*a.reading.order, a.rule.name))
        rows = [
            _row(alert, topics.get(alert.reading.reading_id), time.time_ns() // 1000)
            for alert in alerts
            if topics.get(alert.reading.reading_id)
        ]
        if rows:
            yield pd.DataFrame(rows, columns=[name for name, _ in COMMAND_COLUMNS])

    return call


def _row(alert: Alert, topic: str | None, now_us: int) -> tuple[Any, ...]:
    """Return a row in the order of COMMAND_COLUMNS; a device without a command topic takes no commands."""
    expires = None if alert.rule.expires_s is None else now_us + int(alert.rule.expires_s * 1e6)
    reading = alert.reading
    cause = f"{alert.rule.name}/{reading.reading_id}"
    return (
        alert.command_id,
        reading.device,
        topic,
        command_payload(alert),
        1,
        False,
        expires,
        now_us,
        cause,
        None,
    )


def _state_read(text: State | None, device: str) -> dict[str, Reading]:
    if text is None:
        return {}
    return {
        metric: Reading(device, metric, reading_id, _EPOCH + at_us * _MICROSECOND, value)
        for metric, (reading_id, at_us, value) in json.loads(text)["newest"].items()
    }


def _state_written(newest: dict[str, Reading]) -> State:
    body = {m: (r.reading_id, (r.event_time - _EPOCH) // _MICROSECOND, r.value) for m, r in newest.items()}
    return json.dumps({"v": _STATE_VERSION, "newest": body}, separators=(",", ":"))


def query(found: DataFrame, tables: Tables, pulsar: PulsarSettings) -> DataStreamWriter:
    """Return the writer of the query; the caller sets its trigger and starts it."""
    return (
        found.writeStream.queryName("alerts")
        .format("pulsebridge_commands")
        .outputMode("append")
        .options(**sink_options(pulsar))
        .option("checkpointLocation", tables.checkpoint("alerts"))
    )
