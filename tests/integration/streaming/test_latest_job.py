"""``--only latest`` on real Pulsar: until all is done, and until it is stopped; and what it shows of itself."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pulsar
import pytest
from prometheus_client import CollectorRegistry
from streaming.stopping import StopRequest

from bridge.contract import base_topic, partition_name
from bridge.provisioning import provision_commands
from bridge.pulsar_admin import PulsarAdmin
from bridge.settings import Settings, StreamingSettings
from bridge.stream_metrics import StreamMetrics
from streaming import bronze, silver
from streaming.job import Job, plan_of
from streaming.query_progress import QueryProgress
from streaming.tables import Tables
from tests.support import silver_rows
from tests.support.device_messages import Commanded, Seen, Told, latest_of
from tests.support.silver_rows import AT, Silver
from tests.support.waiting import patient, poll_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from bridge.settings import PulsarSettings

pytestmark = [pytest.mark.spark, pytest.mark.stack]


def publish(client: Any, settings: PulsarSettings, messages: Iterable[Commanded | Told | Seen]) -> None:
    for message in messages:
        row = message.row()
        local = base_topic(row["__topic"]).rpartition("/")[2]
        producer = client.create_producer(partition_name(settings.system_topic(local), 0))
        producer.send(bytes(row["value"]), partition_key=row["__key"], properties=row["__messageProperties"])
        producer.close()


def rows(spark: SparkSession, tables: Tables) -> list[tuple[Any, ...]]:
    seen = f"unix_seconds(presence.seen_at) - {int(AT.timestamp())}"
    names = ("device", "metric", "reading_id", "command.command_id", "receipt.state", seen)
    return sorted(tuple(r) for r in tables.device_latest.read(spark).selectExpr(*names).collect())


@pytest.mark.long
def test_the_latest_state_alone_follows_silver_and_pulsar_until_all_is_done_or_it_is_stopped(
    namespaces: PulsarSettings, spark: SparkSession, tmp_path: Path
) -> None:
    streaming = StreamingSettings(root=str(tmp_path / "lakehouse"), latest_trigger_s=0.2)
    plan = plan_of(Settings(pulsar=namespaces, streaming=streaming))
    bronze.create_tables(spark, plan.tables)
    silver.create_tables(spark, plan.tables)
    with PulsarAdmin(namespaces, timeout_s=30) as admin:
        provision_commands(admin)
    registry = CollectorRegistry()
    metrics = StreamMetrics(registry)
    listener = QueryProgress(metrics)
    first, second = Commanded(1, "c1", "a", 1), Commanded(2, "c2", "a", 2)
    readings = [Silver("r1", "a", 1, 1.0), Silver("r2", "a", 2, 2.0, entry=1)]
    messages: list[Commanded | Told | Seen] = [first, Told(3, first, "delivered"), Seen(4, "a", 7)]

    def shown(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"pulsebridge_stream_{name}", {"query": "latest", **labels})

    client = pulsar.Client(namespaces.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    spark.streams.addListener(listener)
    stop = StopRequest()
    job = Job(spark, plan, ["latest"], available_now=True, written=metrics.written)
    try:
        publish(client, namespaces, messages)
        silver_rows.append(spark, plan.tables, readings[:1])
        job.prepare()
        job.run(StopRequest())
        assert rows(spark, plan.tables) == latest_of(readings[:1], messages)
        poll_for(lambda: shown("rows_total") == 4, 60, "the rows of the first run to be counted")
        assert shown("written_rows_total", table="device_latest") in (1, 2)  # one batch, or two

        job = Job(spark, plan, ["latest"], written=metrics.written)
        job.prepare()
        thread = threading.Thread(target=job.run, args=(stop,))
        thread.start()
        try:
            more: list[Commanded | Told | Seen] = [second, Told(6, second, "expired"), Seen(5, "b", 9)]
            publish(client, namespaces, more)
            silver_rows.append(spark, plan.tables, readings[1:])
            wanted = latest_of(readings, messages + more)
            poll_for(lambda: rows(spark, plan.tables) == wanted, 120, "what came since")
            poll_for(lambda: (shown("behind_seconds") or 0) > 0, 60, "the age of the rows")
        finally:
            stop.ask()
            thread.join(patient(60))
        assert not thread.is_alive()
    finally:
        job.close()
        spark.streams.removeListener(listener)
        client.close()
