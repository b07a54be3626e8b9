"""Topic to table with ten rules and a quarantine, as an engineer writes it by hand: the reference of ``tests/bench/silver.py``."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming import DataStreamWriter

READING = "id STRING, ts TIMESTAMP, glucose DOUBLE, sent_us BIGINT"
TABLE = (
    "device STRING, id STRING, day DATE, ts TIMESTAMP, glucose DOUBLE, sent_at TIMESTAMP, arrival_time TIMESTAMP, "
    "publish_time TIMESTAMP, processed_at TIMESTAMP, mqtt_topic STRING, partition INT, ledger_id BIGINT, entry_id BIGINT"
)
RULES = {
    "payload": "r IS NOT NULL",
    "id_present": "id IS NOT NULL",
    "device_present": "device IS NOT NULL",
    "time_present": "ts IS NOT NULL",
    "value_present": "glucose IS NOT NULL",
    "id_length": "length(id) BETWEEN 1 AND 256",
    "device_length": "octet_length(device) <= 1024",
    "time_range": "ts >= '1970-01-01'",
    "clock_skew": "ts <= coalesce(arrival_time, publish_time) + INTERVAL 10 MINUTES",
    "glucose_range": "glucose BETWEEN 10 AND 1000",
}
"""What a row must fulfil; null counts as fulfilled where another rule asks for a value."""


def by_hand(messages: DataFrame, folder: Path, *, distinct: bool) -> DataStreamWriter:
    """Return the query of a stream of messages into two new tables; ``distinct`` removes repeated ids."""
    spark, good, bad = messages.sparkSession, f"delta.`{folder}/readings`", f"delta.`{folder}/quarantine`"
    spark.sql(f"CREATE TABLE {good} ({TABLE}) USING delta")
    spark.sql(f"CREATE TABLE {bad} ({TABLE}, payload BINARY, failed ARRAY<STRING>) USING delta")
    failed = F.array_compact(F.array(*[F.when(~F.expr(rule), name) for name, rule in RULES.items()]))
    read = messages.withColumn("r", F.from_json(F.col("payload").cast("string"), READING))
    rows = read.select("*", "r.*", F.col("__publishTime").alias("publish_time"))
    rows = rows.select("*", F.to_date("ts").alias("day"), F.timestamp_micros("sent_us").alias("sent_at"))
    rows = rows.select("*", F.current_timestamp().alias("processed_at"), failed.alias("failed"))

    def write(batch: DataFrame, number: int) -> None:
        once = {"txnAppId": str(folder), "txnVersion": str(number)}
        kept = batch.persist()
        try:
            into, rest = spark.table(good), spark.table(bad)
            passed = kept.where("size(failed) = 0").select(*into.columns)
            if distinct:
                days = kept.where("size(failed) = 0").agg(F.min("day"), F.max("day")).first()
                known = into.where(F.col("day").between(*days)).select("device", "id")
                passed = passed.dropDuplicates(["device", "id"]).join(known, ["device", "id"], "left_anti")
            passed.write.format("delta").mode("append").options(**once).save(f"{folder}/readings")
            wrong = kept.where("size(failed) > 0").select(*rest.columns)
            wrong.write.format("delta").mode("append").options(**once).save(f"{folder}/quarantine")
        finally:
            kept.unpersist()

    return rows.writeStream.foreachBatch(write).option("checkpointLocation", f"{folder}/checkpoint")
