"""Options in a real Spark: secrets stay out of sight, and a query of the JVM connector goes on as it is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.pulsar_topics import TestTopic
from tests.support.shown import SECRETS, TOKEN, checkpointed, events, plans, streamed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.stack, pytest.mark.spark]


@pytest.mark.parametrize("form", ["map", *(pytest.param(f, marks=pytest.mark.long) for f in SECRETS if f != "map")])
def test_no_secret_shows_in_plans_progress_or_event_log(
    spark: SparkSession, topic: TestTopic, tmp_path: Path, form: str
) -> None:
    topic.publish([b"v"])
    secrets = SECRETS[form]
    options = topic.options(startingOffsets="earliest", **secrets)
    marker = f"looking for secrets in {topic.name}"
    spark.sparkContext.setJobDescription(marker)
    try:
        frame = spark.read.format("pulsebridge").options(**options).load()
        assert frame.count() == 1
        shown = plans(frame.where("partition >= 0")._jdf.queryExecution(), spark._jvm)
        assert "pulsebridge" in shown
        stream = spark.readStream.format("pulsebridge").options(**options, predefinedSubscription="q").load()
        writer = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path))
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(90)
        planned = stream._jdf.queryExecution()
        shown += planned.toString() + planned.logical().toJSON() + planned.analyzed().toJSON()
        shown += streamed(query, spark._jvm) + checkpointed(tmp_path)
        with pytest.raises(Exception, match="did you mean topic") as caught:
            spark.read.format("pulsebridge").options(**options, topik="x").load()
        shown += str(caught.value)
        shown += events(spark, marker)
    finally:
        spark.sparkContext.setJobDescription(None)
    assert "s3cr3t" not in shown


def test_a_view_of_the_format_hides_its_secrets(spark: SparkSession, topic: TestTopic) -> None:
    topic.publish([b"v"])
    secret = {"pulsar.client.authPluginClassName": TOKEN, "pulsar.client.authParams": "s3cr3t"}
    given = ", ".join(f"`{name}` '{value}'" for name, value in topic.options(**secret).items())
    made = spark.sql(f"CREATE TEMPORARY VIEW readings_view USING pulsebridge OPTIONS ({given})")
    try:
        assert spark.table("readings_view").count() == 1
        execution = made._jdf.queryExecution()
        shown = execution.toString() + execution.analyzed().toJSON()
        shown += str(spark.sql("DESCRIBE EXTENDED readings_view").collect())
    finally:
        spark.sql("DROP VIEW IF EXISTS readings_view")
    assert topic.name in shown
    assert "s3cr3t" not in shown


def streamnative(spark: SparkSession, format_name: str, topic: TestTopic, folder: Path) -> list[tuple[Any, ...]]:
    """A streaming query and a batch query, as the documentation of StreamNative's connector has them."""
    settings = topic.settings
    stream = (
        spark.readStream.format(format_name)
        .option("service.url", settings.service_url)
        .option("admin.url", settings.admin_url)
        .option("topicsPattern", f"{topic.name}.*")
        .option("startingOffsets", "earliest")
        .option("predefinedSubscription", "spark-job")
        .option("subscriptionPrefix", "spark")
        .option("maxBytesPerTrigger", "1000000")
        .option("pollTimeoutMs", "6000")
        .option("failOnDataLoss", "true")
        .option("waitingForNonExistedTopic", "false")
        .option("allowDifferentTopicSchemas", "true")
        .option("pulsar.client.operationTimeoutMs", "20000")
        .option("pulsar.client.numIoThreads", "2")
        .option("pulsar.client.tlsAllowInsecureConnection", "false")
        .option("pulsar.client.tlsHostnameVerificationenable", "true")
        .option("pulsar.admin.readTimeoutMs", "30000")
        .option("pulsar.reader.receiverQueueSize", "500")
        .load()
        .selectExpr("CAST(__key AS STRING)", "CAST(value AS STRING)", "__topic", "__messageProperties['a'] AS a")
    )
    query = (
        stream.writeStream.format("parquet")
        .option("path", str(folder / "rows"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(90)
    batch = (
        spark.read.format(format_name)
        .option("service.url", settings.service_url)
        .option("admin.url", settings.admin_url)
        .option("topics", topic.name)
        .option("startingTime", "1")
        .option("endingOffsets", "latest")
        .load()
        .selectExpr("CAST(__key AS STRING)", "CAST(value AS STRING)", "__topic", "__messageProperties['a'] AS a")
    )
    return sorted(tuple(row) for frame in (spark.read.parquet(str(folder / "rows")), batch) for row in frame.collect())


@pytest.mark.long
def test_a_query_for_streamnatives_connector_runs_with_the_formats_name_changed(
    spark: SparkSession, topic: TestTopic, tmp_path: Path
) -> None:
    for partition in range(2):
        topic.publish([b"%d" % partition], "batched", partition, partition_key="k", properties={"a": "b"})
    wanted = [("k", f"{partition}", topic.name, "b") for partition in range(2)]
    assert streamnative(spark, "pulsebridge", topic, tmp_path) == sorted([*wanted, *wanted])
