"""The built-in tables and flows: bronze, readings, gold and the newest of each device. Declared as a user's are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streaming import pipelines as dp

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import DataFrame

    from bridge.settings import Settings

__all__ = ["declare"]


def declare(settings: Settings, names: Iterable[str]) -> None:
    """Declare the built-in flows of these names."""
    for name in names:
        _DECLARE[name](settings)


def _bronze(settings: Settings) -> None:
    @dp.table(comment="Each message, as Pulsar stores it, once", cluster_by=["device", "arrival_time"])
    def bronze() -> DataFrame:
        from pyspark.sql import functions as F

        return dp.messages().withColumn("stored_at", F.current_timestamp())


def _readings(settings: Settings) -> None:
    from bridge.settings.presets import declared_decoders

    decodings = declared_decoders(settings)
    # Only messages with their own id can repeat one.
    with_ids = any(rule.reading_id for rule in settings.ingest.all_routes) or any(one.id for one in decodings)

    @dp.table(
        comment="One row for each field of a payload",
        cluster_by=["device", "event_time"],
        keys=["device", "_id", "metric", "event_time"] if with_ids else [],
    )
    def readings() -> DataFrame:
        return dp.decoded(decodings)


def _gold(settings: Settings) -> None:
    seconds = int(settings.streaming.gold_window)

    @dp.materialized_view(
        comment="Readings by device, metric and window of event time",
        cluster_by=["device", "window_start"],
        keys=["device", "metric", "window_start"],
        within=("event_time", f"{seconds} seconds"),
        trigger_s=settings.streaming.trigger.views_interval,
    )
    def gold() -> DataFrame:
        from pyspark.sql import functions as F

        window = F.window("event_time", f"{seconds} seconds")
        order = F.struct("event_time", "_position")
        rows = dp.read("readings").where("value IS NOT NULL")
        return rows.groupBy("device", "metric", window.start.alias("window_start")).agg(
            F.first(window.end).alias("window_end"),
            F.count("*").alias("readings"),
            F.min("value").alias("min_value"),
            F.max("value").alias("max_value"),
            F.avg("value").alias("mean_value"),
            F.min("event_time").alias("first_time"),
            F.min_by("value", order).alias("first_value"),
            F.max("event_time").alias("last_time"),
            F.max_by("value", order).alias("last_value"),
            F.count_if(F.col("arrival_time") > window.end).alias("late"),
        )


def _device_latest(settings: Settings) -> None:
    dp.create_streaming_table(
        "device_latest", comment="The newest reading of each device and metric", cluster_by=["device"]
    )
    dp.create_auto_cdc_flow(
        "device_latest",
        "readings",
        ["device", "metric"],
        "struct(event_time, _position)",
        trigger_s=settings.streaming.trigger.views_interval,
    )


def _alerts(settings: Settings) -> None:
    from streaming.alerts import declare_alerts

    declare_alerts(settings)


_DECLARE = {"bronze": _bronze, "readings": _readings, "gold": _gold, "device_latest": _device_latest, "alerts": _alerts}
