"""The same source in a Spark Declarative Pipeline: a table and a flow. Settings: spark-pipeline.yml."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

from streaming import pipelines as pulsebridge

spark = SparkSession.active()
# Here, not in the function of a table: there Spark allows nothing that needs the columns of a frame.
climate = pulsebridge.messages("zigbee2mqtt/+device", fields="temperature double, humidity double")


@dp.table(comment="Climate of rooms")
def rooms() -> DataFrame:
    return climate.where("_fault IS NULL").select("device", "event_time", "temperature", "humidity")


dp.create_streaming_table("damp")


@dp.append_flow(target="damp")
def damp_rooms() -> DataFrame:
    return spark.readStream.table("rooms").where("humidity > 70")
