"""A pipeline whose tables are named in a catalog: filled, followed by a view, rebuilt, and cleared of a device.

``python -c … FOLDER SCHEMA`` does it in a Spark with a Hive metastore of its own; a second time it reads what is there.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bridge.settings import Settings
from streaming import pipelines as dp
from streaming.job import Job
from tests.support.pipelines import PipelineWorld
from tests.support.upkeep_world import House

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["catalogued", "main", "upkept"]

_SOURCE = "n int, device string, value double"


def _declare() -> None:
    @dp.table(keys=["device", "n"], cluster_by=["device"], comment="Measured values")
    def measured() -> DataFrame:
        return dp.read_stream("source")

    @dp.table(
        partition_cols=["device"],
        table_properties={"delta.enableDeletionVectors": "false", "delta.enableChangeDataFeed": "false"},
    )
    def copied() -> DataFrame:
        return dp.read_stream("source")

    @dp.materialized_view(keys=["device"])
    def counted() -> DataFrame:
        from pyspark.sql import functions as F

        return dp.read("measured").groupBy("device").agg(F.count("*").alias("n"))


def catalogued(spark: SparkSession, folder: Path, schema: str) -> dict[str, Any]:
    """Run two batches through tables of a schema; return rows, and what DESCRIBE DETAIL says of the tables."""
    world = PipelineWorld(spark, folder, schema_name=schema)
    spark.sql(f"CREATE SCHEMA IF NOT EXISTS {schema}")
    world.fill("source", [(1, "a", 1.0), (2, "b", 2.0)], _SOURCE)
    world.run(_declare)
    world.fill("source", [(1, "a", 9.0), (3, "a", 3.0), (4, None, 4.0)], _SOURCE)
    world.run(_declare)
    found: dict[str, Any] = {
        name: sorted(list(row) for row in spark.table(f"{schema}.{name}").collect()) for name in ("measured", "counted")
    }
    quarantine = spark.table(f"{schema}.quarantine").select("table", "failed_rules").collect()
    found["quarantine"] = [list(row) for row in quarantine]
    for name in ("measured", "copied"):
        found[f"detail {name}"] = spark.sql(f"DESCRIBE DETAIL {schema}.{name}").collect()[0].asDict()
    return found


def upkept(spark: SparkSession, folder: Path, schema: str) -> dict[str, list[str]]:
    """Rebuild a table of a schema by other rules, and delete a device in all of them; return the rows."""
    more = {"streaming": {"root": str(folder / "lakehouse"), "schema_name": schema}}
    spark.sql(f"CREATE SCHEMA IF NOT EXISTS {schema}")
    house = House(spark, folder, 10, more)
    house.create()
    house.arrive([{"device": d, "id": str(n), "v": n} for n, d in ((5, "a"), (20, "a"), (30, "b"))])
    house.arrive([{"device": "b", "id": "7", "v": 7}], first=1)
    house.take(0, 2, 0)
    house = House(spark, folder, 6, more)
    house.job.drain = lambda: None  # type: ignore[method-assign]  # the flows are run by hand
    house.do("rebuild", "plain")
    house.do("replay", "keyed")
    found = {"rebuilt": house.found("plain"), "replayed": house.found("keyed")}
    house.do("forget", device="a", vacuum=True)
    house.do("optimise")
    return found | {"forgotten": house.found("plain")}


def main() -> None:
    """Write, or read what an earlier process has written."""
    from tests.support.spark import build_session

    folder, schema = Path(sys.argv[1]), sys.argv[2]
    metastore = folder / "metastore"
    there = metastore.exists()
    spark = build_session(
        folder / "spark",
        {
            "spark.sql.catalogImplementation": "hive",  # what enableHiveSupport sets
            "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:{metastore};create=true",
            "spark.hadoop.hive.metastore.schema.verification": "false",
            "spark.hadoop.datanucleus.schema.autoCreateAll": "true",
        },
    )
    found: dict[str, Any]
    if not there:
        found = catalogued(spark, folder / "tables", schema) | upkept(spark, folder / "upkeep", f"{schema}_upkeep")
    else:
        rows = spark.sql(f"SHOW TABLES IN {schema}").collect()
        with dp.declaring(dp.Pipeline()) as pipeline:
            _declare()
        streaming = {"root": str(folder / "tables" / "lakehouse"), "schema_name": schema}
        job = Job(spark, Settings.model_validate({"streaming": streaming}), pipeline)
        measured = job.reader.table("measured").read(spark).count()
        found = {"tables": sorted(row["tableName"] for row in rows), "rows": measured}
    (folder / "found.json").write_text(json.dumps(found, default=str), "utf-8")
    spark.stop()
