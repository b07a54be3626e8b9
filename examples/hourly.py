"""An aggregate of one's own: the mean of each hour, by device and metric, with a suite of its own.

Run it: pulsebridge stream --set 'streaming.modules=["examples/hourly.py"]' --set streaming.suites=examples/gx
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from streaming import pipelines as dp


@dp.materialized_view(
    comment="Mean of each hour of a device's readings; a late reading corrects its hour",
    keys=["device", "metric", "hour"],
    within=("event_time", "1 hour"),
    cluster_by=["device", "hour"],
    suite="hourly",
)
def hourly() -> DataFrame:
    rows = dp.read("readings").where("value IS NOT NULL")
    hour = F.date_trunc("hour", "event_time").alias("hour")
    return rows.groupBy("device", "metric", hour).agg(F.avg("value").alias("mean"), F.count("*").alias("readings"))
