"""The query bronze: every fact that the source gives, appended once.

The Delta sink writes it: its commits carry the query's id and the batch's number, so that a batch that is run again
after a crash finds itself in the table's log and writes nothing. No Python stands between the source and the table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from streaming.tables import BRONZE_COLUMNS, Tables, create

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamWriter

    from bridge.settings import Settings

__all__ = ["create_tables", "query", "source"]


def create_tables(spark: SparkSession, tables: Tables) -> None:
    """Create the bronze table unless it is there."""
    create(
        spark,
        tables.bronze,
        BRONZE_COLUMNS,
        comment="Every message as Pulsar holds it, once",
        statistics=("device", "arrival_time", "partition", "ledger_id", "entry_id"),
    )


def source(spark: SparkSession, settings: Settings, topics: list[str]) -> DataFrame:
    """Return the stream of the topics' messages, from the earliest that Pulsar still holds."""
    from sources.options import connection_options

    options = {
        **connection_options(settings.pulsar),
        "topics": ",".join(topics),
        "predefinedSubscription": settings.streaming.subscription,
        "startingOffsets": "earliest",
        # A topic is made with its first reading, which may come long after the job's start.
        "waitingForNonExistedTopic": "true",
        "maxRowsPerTrigger": str(settings.streaming.max_rows_per_trigger),
        "maxBytesPerTrigger": str(settings.streaming.max_bytes_per_trigger),
        "columns": ",".join(c.name for c in BRONZE_COLUMNS[:-1]),
    }
    return spark.readStream.format("pulsebridge").options(**options).load()


def query(messages: DataFrame, tables: Tables) -> DataStreamWriter:
    """Return the writer of the query; the caller sets its trigger and starts it."""
    from pyspark.sql import functions as F

    rows = messages.select(*(c.name for c in BRONZE_COLUMNS[:-1]), F.current_timestamp().alias("stored_at"))
    return (
        rows.writeStream.queryName("bronze")
        .format("delta")
        .outputMode("append")
        .option("checkpointLocation", tables.checkpoint("bronze"))
    )
