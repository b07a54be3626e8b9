"""The tables of Sparkplug: metrics, events of sessions, presence, definitions. And the requests for births.

Two flows read the log with state by edge node (``sparkplug.processor``): one gives metrics, one gives events. The other
tables follow from these two. A rebuild reads all messages of bronze, because a row depends on the messages before it, and
keeps the rows of those that are rebuilt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sparkplug import NAMESPACE
from streaming import pipelines as dp

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkplug.processor import Processor

__all__ = ["DEFINITIONS", "EVENTS", "METRICS", "PRESENCE", "declare"]

METRICS: Final = "sparkplug_metrics"
EVENTS: Final = "sparkplug_events"
PRESENCE: Final = "sparkplug_presence"
DEFINITIONS: Final = "sparkplug_definitions"

_BRONZE: Final = "bronze"
_TOPICS: Final = r"^spBv1\.0/[^/]+/(N(BIRTH|DATA|DEATH)/[^/]+|D(BIRTH|DATA|DEATH)/[^/]+/[^/]+)$"
_NODE: Final = "concat_ws('/', split(mqtt_topic, '/')[1], split(mqtt_topic, '/')[3])"
_MESSAGE: Final = {
    "node": _NODE,
    "ledger": "ledger_id",
    "entry": "entry_id",
    "batch_index": "batch_index",
    "topic": "__topic",
    "partition": "partition",
    "mqtt_topic": "mqtt_topic",
    "payload": "payload",
    "arrival_us": "unix_micros(coalesce(arrival_time, __publishTime))",
}
"""By field of ``sparkplug.rows.Message``, after the node: its SQL over a message."""
_STATE: Final = {
    "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}
"""transformWithState needs this store. With its changelog a batch writes only its changes."""
_POSITION: Final = (
    "named_struct('topic', topic, 'partition', partition, 'ledger', ledger, 'entry', entry, 'index', index, "
    "'element', element) AS _position"
)
_FIRST: Final = ("device", "group_id", "edge_node_id", "device_id", "message_type")
_LAST: Final = (
    "seq", "bd_seq", "mark", "timestamp_millis(sent_ms) AS sent_time", "timestamp_micros(arrival_us) AS arrival_time",
    "mqtt_topic", _POSITION, "_payload", "_fault",
)  # fmt: skip


def declare(rebirth_s: float | None = 60.0) -> None:
    """Declare the tables, and the requests for births: at most one per edge node in ``rebirth_s``; None: no requests."""
    rebirth_us = round((rebirth_s or 60.0) * 1e6)
    _declare_metrics(rebirth_us)
    _declare_events(rebirth_us)
    _declare_newest()
    if rebirth_s is not None:
        from sparkplug.commands import declare_rebirths

        declare_rebirths(rebirth_s)


def _declare_metrics(rebirth_us: int) -> None:
    @dp.table(
        name=METRICS,
        comment="One row for each metric of Sparkplug B, named by the births before it",
        cluster_by=["device", "event_time"],
        spark_conf=_STATE,
    )
    def metrics() -> DataFrame:
        from sparkplug.processor import MetricProcessor

        return _with_state(MetricProcessor(rebirth_us)).selectExpr(
            *_FIRST, "metric", "timestamp_millis(metric_ms) AS metric_time",
            "coalesce(timestamp_millis(coalesce(metric_ms, sent_ms)), timestamp_micros(arrival_us)) AS event_time",
            "datatype", "value", "integer", "truth", "text", "timestamp_millis(time_ms) AS time", "bytes", "json",
            "alias", "is_null", "is_historical", "is_transient", "properties", "metadata", *_LAST,
        )  # fmt: skip


def _declare_events(rebirth_us: int) -> None:
    @dp.table(
        name=EVENTS,
        comment="Births, deaths and gaps of edge nodes and their devices",
        cluster_by=["device", "event_time"],
        spark_conf=_STATE,
    )
    def events() -> DataFrame:
        from sparkplug.processor import EventProcessor

        # An offline node does not know it, so its time of death is that of arrival
        # (tck-id-operational-behavior-edge-node-termination-host-action-ndeath-node-offline).
        at = "CASE WHEN message_type <> 'NDEATH' THEN timestamp_millis(sent_ms) END"
        rows = _with_state(EventProcessor(rebirth_us))
        return rows.selectExpr(
            *(one for one in _FIRST if one != "device_id"), "event_device AS device_id", "event", "detail",
            f"coalesce({at}, timestamp_micros(arrival_us)) AS event_time", *_LAST,
        )  # fmt: skip


def _declare_newest() -> None:
    dp.create_streaming_table(PRESENCE, comment="Which edge nodes and devices are online", cluster_by=["device"])

    @dp.temporary_view(name="sparkplug_presence_events")
    def presence() -> DataFrame:
        return dp.read_stream(EVENTS).where("event IN ('online', 'offline')").selectExpr(
            "device", "group_id", "edge_node_id", "coalesce(device_id, '') AS device_id", "event = 'online' AS online",
            "event_time AS since", "bd_seq", "arrival_time", "_position",
        )  # fmt: skip

    dp.create_auto_cdc_flow(PRESENCE, "sparkplug_presence_events", ["device", "device_id"], "_position")
    dp.create_streaming_table(DEFINITIONS, comment="Each metric by its last birth", cluster_by=["device"])

    @dp.temporary_view(name="sparkplug_birth_metrics")
    def definitions() -> DataFrame:
        births = "message_type LIKE '%BIRTH' AND metric IS NOT NULL AND coalesce(mark, '') <> 'repeat'"
        return dp.read_stream(METRICS).where(births).selectExpr(
            "device", "group_id", "edge_node_id", "coalesce(device_id, '') AS device_id", "metric", "alias", "datatype",
            "properties", "event_time", "_position",
        )  # fmt: skip

    dp.create_auto_cdc_flow(DEFINITIONS, "sparkplug_birth_metrics", ["device", "device_id", "metric"], "_position")


def _with_state(processor: Processor) -> DataFrame:
    """Return the rows of a processor for all messages of edge nodes."""
    from sources.spark_features import require_state
    from sparkplug.processor import PACKED, replayed, unpacked

    columns = ", ".join(f"`{name}` {kind}" for name, kind in processor.columns)
    messages = dp.messages(f"{NAMESPACE}/#")
    if messages.isStreaming:
        require_state("the tables of Sparkplug")
        packed = (
            _of_nodes(messages)
            .groupBy("node")
            .transformWithState(processor, outputStructType=PACKED, outputMode="append", timeMode="none")
        )
        return packed.mapInArrow(unpacked(processor), columns)
    key = {
        "__topic": "topic",
        "partition": "partition",
        "ledger_id": "ledger",
        "entry_id": "entry",
        "batch_index": "index",
    }
    chosen = messages.selectExpr(*(f"{name} AS {column}" for name, column in key.items()))
    order = "node", "ledger", "entry", "batch_index"
    stored = _of_nodes(dp.read(_BRONZE)).repartition("node").sortWithinPartitions(*order)
    return stored.mapInArrow(replayed(processor), columns).join(chosen, list(key.values()), "left_semi")


def _of_nodes(messages: DataFrame) -> DataFrame:
    found = messages.where(f"mqtt_topic RLIKE r'{_TOPICS}'")
    return found.selectExpr(*(f"{sql} AS {name}" for name, sql in _MESSAGE.items()))
