"""Tokens and passwords in the options of the write formats stay out of all that Spark shows."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bridge.settings.pulsar import PulsarSettings
from pulsebridge.local.stack import LocalStack
from tests.support.pulsar_topics import TestTopic, topic_of
from tests.support.shown import SECRETS, checkpointed, events, executions, plans, streamed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.stack, pytest.mark.spark]

ROWS = {
    "pulsebridge": ("cast(id as string) value",),
    "pulsebridge_commands": (
        "concat('c-', id) command_id",
        "'d' device",
        "'devices/d' mqtt_topic",
        "cast(cast(id as string) as binary) payload",
    ),
    "pulsebridge_mqtt": ("cast(id as string) payload",),
}
FORMS = [
    ("pulsebridge_commands", "params"),
    ("pulsebridge_mqtt", "password"),
    *(pytest.param("pulsebridge", form, marks=pytest.mark.long) for form in SECRETS),
]


@pytest.fixture
def topic(namespaces: PulsarSettings) -> Iterator[TestTopic]:
    with topic_of(namespaces) as found:
        yield found


def options(name: str, form: str, topic: TestTopic, stack: LocalStack) -> dict[str, str]:
    if name == "pulsebridge_mqtt":
        where = {"mqtt.host": stack.mqtt_host, "mqtt.port": str(stack.mqtt_port)}
        secret = {"mqtt.username": "writer", "mqtt.password": "s3cr3t-of-mqtt"}
        return where | secret | {"topic": f"{uuid.uuid4().hex}/t"}
    settings = topic.settings
    secret = {option: value for option, value in SECRETS[form].items() if not option.startswith("pulsar.admin.")}
    given = topic.options(**secret, **{"system.namespace": settings.system_namespace})
    if name == "pulsebridge_commands":
        given |= {"topic": "commands", "tenant": settings.tenant, "namespace": settings.namespace}
    return {option: value for option, value in given.items() if value}


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "form"), FORMS)
def test_no_secret_of_a_write_shows_in_plans_progress_or_event_log(
    spark: SparkSession, stack: LocalStack, topic: TestTopic, tmp_path: Path, name: str, form: str
) -> None:
    given = options(name, form, topic, stack)
    marker = f"looking for secrets of {name} in {topic.name}"
    spark.range(3).selectExpr("id").write.parquet(str(tmp_path / "rows"))
    spark.sparkContext.setJobDescription(marker)
    try:
        frame = spark.range(3).selectExpr(*ROWS[name])
        frame.write.format(name).options(**given).mode("append").save()
        shown = plans(frame._jdf.queryExecution(), spark._jvm)
        rows = spark.readStream.schema("id bigint").parquet(str(tmp_path / "rows")).selectExpr(*ROWS[name])
        writer = rows.writeStream.format(name).options(**given)
        query = writer.option("checkpointLocation", str(tmp_path / "state")).trigger(availableNow=True).start()
        assert query.awaitTermination(90)
        assert query.exception() is None
        shown += streamed(query, spark._jvm) + checkpointed(tmp_path / "state")
        with pytest.raises(Exception, match="did you mean topic") as caught:
            frame.write.format(name).options(**given, topik="x").mode("append").save()
        shown += str(caught.value)
        shown += executions(spark) + events(spark, marker)
    finally:
        spark.sparkContext.setJobDescription(None)
    assert name in shown
    assert marker in shown
    assert "s3cr3t" not in shown
