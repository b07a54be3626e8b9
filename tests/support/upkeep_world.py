"""A pipeline over bronze on real Delta, its flows run by hand, and its upkeep in a process that is killed:
``python -c … ROOT LEAST KIND TABLE ARGUMENTS``.

A payload is a JSON array of ``{"device", "id", "v"}``; an element fails when its ``v`` is under the least of today.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import StructType

from bridge.contract import SOURCE_COLUMNS
from bridge.settings import Settings
from streaming import pipelines as dp
from streaming.job import Job
from streaming.reading import QUARANTINE, Reader
from streaming.tables import create
from streaming.upkeep import Upkeep
from streaming.writing import QUARANTINE_SCHEMA
from tests.support.killed_process import run_killed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["ARRIVAL", "House", "declared", "job_killed_at", "killed_at", "main", "run_job"]

ARRIVAL = datetime(2026, 1, 2, tzinfo=timezone.utc)
_POSITION = "struct<topic: string, partition: int, ledger: bigint, entry: bigint, index: int, element: int>"
_COLUMNS = f"device string, id string, v double, unit string, arrival_time timestamp, _position {_POSITION}"
_ELEMENTS = "array<struct<device: string, id: string, v: double>>"


def declared(least: float) -> dp.Pipeline:
    """Declare tables with and without keys, a view, and the newest row of each device."""
    from pyspark.sql import functions as F

    def elements() -> DataFrame:
        rows = dp.messages().select("*", F.from_json(F.col("payload").cast("string"), _ELEMENTS).alias("all"))
        rows = rows.select("*", F.posexplode_outer("all").alias("element", "one")).drop("device")
        place = F.struct(
            F.col("__topic").alias("topic"), "partition", F.col("ledger_id").alias("ledger"),
            F.col("entry_id").alias("entry"), F.col("batch_index").alias("index"), "element",
        )  # fmt: skip
        rows = rows.select("one.*", "arrival_time", place.alias("_position"), F.col("payload").alias("_payload"))
        fault = F.when(F.col("id").isNull(), "not JSON").when(F.col("v") < least, "too low")
        return rows.withColumn("_fault", fault).withColumn("unit", F.lit(None))

    with dp.declaring(dp.Pipeline()) as pipeline:
        bronze = ", ".join(f"{name} {kind}" for name, kind in SOURCE_COLUMNS if name != "value")
        dp.table(lambda: dp.messages(), name="bronze", schema=bronze)
        dp.table(elements, name="plain", schema=_COLUMNS)
        dp.table(elements, name="keyed", schema=_COLUMNS, keys=["device", "id"])

        @dp.materialized_view(keys=["device"], schema="device string, n bigint, mean double")
        def means() -> DataFrame:
            rows = dp.read("plain")
            return rows.groupBy("device").agg(F.count("*").alias("n"), F.avg("v").alias("mean"))

        dp.create_streaming_table("newest", schema=_COLUMNS)
        dp.create_auto_cdc_flow("newest", "keyed", ["device"], "_position.entry")
    return pipeline


class House:
    """The tables below a folder, with a job of today's least."""

    def __init__(self, spark: SparkSession, root: Path, least: float, more: Mapping[str, Any] | None = None) -> None:
        self.spark = spark
        settings = Settings.model_validate(
            {"streaming": {"root": str(root), "trigger": {"interval": "200ms", "views_interval": "1s"}}, **(more or {})}
        )
        self.job = Job(spark, settings, declared(least))
        self.reader = Reader(spark, settings, self.job.pipeline)

    def create(self, *names: str) -> None:
        """Create these tables, or all, and quarantine."""
        create(self.spark, self.reader.table(QUARANTINE), StructType.fromDDL(QUARANTINE_SCHEMA))
        for name in names or self.job.pipeline.tables:
            self.reader.ensure(name)
            checkpoint = Path(self.job._checkpoint(name))
            checkpoint.mkdir(parents=True)
            (checkpoint / "metadata").write_text(json.dumps({"id": name}), "utf-8")

    def arrive(self, *payloads: Any, first: int = 0, device: str | None = None) -> None:
        """Put messages into bronze: entries from ``first`` on, a minute apart."""
        columns = (
            "__topic",
            "partition",
            "ledger_id",
            "entry_id",
            "batch_index",
            "mqtt_topic",
            "device",
            "payload",
            "arrival_time",
        )
        types = dict(SOURCE_COLUMNS)
        rows = []
        for entry, payload in enumerate(payloads, first):
            body = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
            at = ARRIVAL + timedelta(minutes=entry)
            rows.append(("persistent://t/n/topic", 0, 7, entry, 0, "a/b", device, bytearray(body), at))
        ddl = ", ".join(f"{name} {types[name]}" for name in columns)
        self.reader.table("bronze").append(self.spark.createDataFrame(rows, ddl))

    def take(self, first: int, until: int, number: int) -> None:
        """Run a batch of these entries of bronze through the flows of both tables."""
        reader = Reader(self.spark, self.job.settings, self.job.pipeline)
        reader.stored = self.rows("bronze").where(f"entry_id >= {first} AND entry_id < {until}")
        for name in ("plain", "keyed"):
            flow = self.job.pipeline.flows[name]
            self.job.batches(flow, self.reader)(reader.frame(flow), number)

    def rows(self, name: str) -> DataFrame:
        return self.reader.table(name).read(self.spark)

    def found(self, name: str) -> list[str]:
        """Return a table's rows as text, sorted: device, id, entry and element; of quarantine by table."""
        rows = self.rows(name)
        place = ("_position.entry", "_position.element")
        if name == QUARANTINE:
            rows = rows.selectExpr(
                "`table`",
                "reason",
                "get_json_object(CAST(payload AS STRING), concat('$[', _position.element, '].id'))",
                *place,
            )
        elif name == "bronze":
            rows = rows.select("entry_id")
        elif name == "means":
            rows = rows.select("device", "n", "mean")
        else:
            rows = rows.select("device", "id", "v", *place)
        return sorted(" ".join(map(str, row)) for row in rows.collect())

    def everything(self) -> dict[str, list[str]]:
        return {name: self.found(name) for name in (*self.job.pipeline.tables, QUARANTINE)}

    def do(self, kind: str, table: str = "", **arguments: Any) -> str:
        upkeep = Upkeep(self.job, patience_s=2)
        return upkeep.settle(upkeep.ask(kind, table, **arguments))

    def finish(self) -> None:
        """Carry out what a killed process has left."""
        upkeep = Upkeep(self.job, patience_s=2)
        for request in upkeep.log.read().requests.values():
            upkeep.settle(request.id)


def job_killed_at(point: str, root: Path, least: float, more: Mapping[str, Any]) -> subprocess.Popen[str]:
    """Start the job in a process that kills itself at a point."""
    return subprocess.Popen(
        [sys.executable, "-c", "from tests.support.upkeep_world import run_job; run_job()", str(root), str(least),
         json.dumps(more)],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "PULSEBRIDGE_KILL_AT": point},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.STDOUT,
        text=True,
    )  # fmt: skip


def run_job() -> None:
    """Run the job until it is killed."""
    from tests.support.spark import build_session

    root, least, more = sys.argv[1:]
    house = House(build_session(Path(root).with_name("driver")), Path(root), float(least), json.loads(more))
    house.job.prepare()
    house.job.run(threading.Event())


def killed_at(point: str, root: Path, least: float, kind: str, table: str, arguments: Mapping[str, Any]) -> None:
    """Carry out a request in a process that kills itself at a point."""
    run_killed("tests.support.upkeep_world", point, str(root), str(least), kind, table, json.dumps(arguments))


def main() -> None:
    """Carry a request out."""
    from tests.support.spark import build_session

    root, least, kind, table, arguments = sys.argv[1:]
    spark = build_session(Path(root).with_name("driver"))
    house = House(spark, Path(root), float(least))
    house.job.drain = lambda: None  # type: ignore[method-assign]  # the flows are run by hand
    house.do(kind, table, **json.loads(arguments))
