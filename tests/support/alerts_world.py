"""Two tables that the tests declare, alerts over them, and what they wrote; also as a driver that is killed at a named point.

Run as a process: ``SETTINGS FOLDER``, JSON of the settings. With PULSEBRIDGE_KILL_AT its JVM is killed at that point.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import zlib
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sinks
from bridge.contract import COMMANDS_TOPIC, P_INGEST, P_TOPIC, encode_ingest
from bridge.contract.commands import Command, decode_command
from bridge.settings import Settings
from streaming import pipelines as dp
from streaming.alerts import declare_alerts
from streaming.job import Job
from streaming.loading import pipeline_of
from tests.support.pulsar_topics import TestTopic
from tests.support.push import read_topic
from tests.support.waiting import patient

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["START", "AlertsWorld", "declared"]

START = datetime(2026, 1, 2, 11, tzinfo=timezone.utc)
FIELDS = "id string, ts timestamp, metric string, value double, humidity double, room string"


def _decoded() -> DataFrame:
    from pyspark.sql import functions as F

    body = F.from_json(F.col("payload").cast("string"), FIELDS)
    place = {
        "topic": "__topic",
        "partition": "partition",
        "ledger": "ledger_id",
        "entry": "entry_id",
        "index": "batch_index",
    }
    position = F.struct(*(F.col(name).alias(alias) for alias, name in place.items()), F.lit(0).alias("element"))
    return (
        dp.messages()
        .select("device", "arrival_time", "command_topic", position.alias("_position"), body.alias("b"))
        .withColumn("_fault", F.when(F.col("b.id").isNull(), F.lit("no id")))
    )


def declared(settings: Settings) -> dp.Pipeline:
    """Return the pipeline of the settings' modules, or one with a long table, a typed one, and the settings' alerts."""
    if settings.streaming.modules:
        return pipeline_of(settings)
    with dp.declaring(dp.Pipeline()) as pipeline:

        @dp.table
        def readings() -> DataFrame:
            rows = _decoded().where("b.metric IS NOT NULL OR _fault IS NOT NULL")
            return rows.selectExpr(
                "device", "arrival_time", "command_topic", "_position", "_fault",
                "b.id AS reading_id", "b.ts AS event_time", "b.metric", "b.value", "'mg/dL' AS unit",
            )  # fmt: skip

        @dp.table
        def climate() -> DataFrame:
            rows = _decoded().where("b.metric IS NULL")
            return rows.selectExpr(
                "device", "arrival_time", "command_topic", "_position", "_fault",
                "b.id AS _id", "b.ts AS event_time", "b.humidity", "b.room",
            )  # fmt: skip

        declare_alerts(settings)
    pipeline.check()
    return pipeline


@dataclass
class AlertsWorld:
    """A topic of messages, the alerts over them, and what they wrote."""

    spark: SparkSession
    settings: Settings
    topic: TestTopic

    def arrive(
        self,
        device: str,
        name: str,
        minute: float,
        *,
        arrived: float | None = None,
        takes: bool = True,
        mqtt_topic: str | None = None,
        **body: Any,
    ) -> None:
        """Publish a message as ingest does, ``minute`` by the device's time, ``arrived`` by ingest's."""
        at = START + timedelta(minutes=minute)
        came = START + timedelta(minutes=minute if arrived is None else arrived)
        about = encode_ingest(
            link="l",
            protocol="5",
            rule="r",
            device=device,
            command_topic=f"devices/{device}/commands" if takes else None,
        )
        self.topic.publish(
            [json.dumps({"id": name, "ts": at.isoformat(), "last_seen": at.isoformat(), **body}).encode()],
            "unbatched",
            zlib.crc32(device.encode()) % 2,
            partition_key=device,
            properties={P_INGEST: about, P_TOPIC: mqtt_topic or f"devices/{device}/{name}"},
            event_timestamp=round(came.timestamp() * 1000),
        )

    def run(self) -> None:
        """Run the alerts over what is new, as the job does."""
        run(self.spark, self.settings)

    def killed_at(self, point: str) -> int:
        """Run the alerts in a process of their own, killed at a point; return its exit code."""
        folder = Path(self.settings.streaming.root).with_name(f"driver-{point}")
        given = self.settings.model_dump_json(exclude_defaults=True)
        ended = subprocess.run(
            [sys.executable, "-m", __name__, given, str(folder)],
            env=os.environ | {"PULSEBRIDGE_KILL_AT": point}, capture_output=True, timeout=patient(150), check=False,
        )  # fmt: skip
        assert b"the flows run" in ended.stdout, ended.stderr.decode()[-3000:]
        return ended.returncode

    def alerts(self) -> list[dict[str, Any]]:
        """Return the table of alerts, in the order of the rules' names and the devices' time."""
        rows = self.spark.read.format("delta").load(f"{self.settings.streaming.root}/alerts")
        return [row.asDict(recursive=True) for row in rows.orderBy("rule", "event_time", "reading_id").collect()]

    def reported(self) -> list[str]:
        """Return rule, state and row of each alert in the table."""
        return [f"{row['rule']} {row['state']} {row['reading_id']}" for row in self.alerts()]

    def commands(self) -> list[Command]:
        """Return all commands in Pulsar, by partition, in order."""
        found = read_topic(self.settings, COMMANDS_TOPIC)
        return [decode_command(message.properties(), message.data()) for message in found]

    def forget_last_commit(self, flow: str) -> None:
        """As after a crash between the writer and the commit of the last batch with rows."""
        checkpoint = Path(self.settings.streaming.root) / "checkpoints" / flow
        while True:
            last = max(int(file.name) for file in (checkpoint / "commits").glob("[0-9]*"))
            _remove(checkpoint / "commits" / str(last))
            read, before = ((checkpoint / "offsets" / str(n)).read_text().splitlines()[2:] for n in (last, last - 1))
            if read != before:
                return
            _remove(checkpoint / "offsets" / str(last))  # it moved the clock alone


def _remove(file: Path) -> None:
    for one in (file, file.with_name(f".{file.name}.crc")):
        one.unlink(missing_ok=True)


def run(spark: SparkSession, settings: Settings) -> None:
    """Run the flows of alerts to the present end, as two drivers do."""
    pipeline = declared(settings)
    alerts = [name for name in pipeline.flows if name.startswith("alerts")]
    for part in ("commands", "tables") if alerts else ():
        job = Job(spark, settings, pipeline, alerts, part=part)
        job.prepare()
        job.run(threading.Event(), available_now=True)


def main() -> None:
    """Run until killed: the JVM is, by this process, which ends when it notices."""
    from tests.support.spark import build_session

    settings = Settings.model_validate(json.loads(sys.argv[1]))  # as JSON the default of a path would be refused
    spark = build_session(Path(sys.argv[2]))
    gateway: Any = spark.sparkContext._gateway
    pid = str(gateway.proc.pid)
    os.environ["PULSEBRIDGE_KILL_PID"] = spark.sparkContext.environment["PULSEBRIDGE_KILL_PID"] = pid
    sinks.register(spark)  # its workers get the environment of this moment
    print("the flows run", flush=True)
    run(spark, settings)


if __name__ == "__main__":
    from tests.support import alerts_world  # by its name, or Spark's workers would not find it

    alerts_world.main()
