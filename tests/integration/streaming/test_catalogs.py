"""Tables by ``catalog.schema.table``: in Delta's catalog and in a Hive metastore, with the properties that were declared."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from streaming.tables import Table, create, struct_of
from tests.support.catalog_world import catalogued, upkept
from tests.support.waiting import patient

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

REBUILT = ["a 20 20.0 0 1", "b 30 30.0 0 2", "b 7 7.0 1 0"]
UPKEPT = {"rebuilt": REBUILT, "replayed": REBUILT, "forgotten": REBUILT[1:]}


@pytest.fixture
def schema(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[str]:
    name = f"spark_catalog.{request.node.name}"
    yield name
    for made in (name, f"{name}_upkeep"):
        spark.sql(f"DROP SCHEMA IF EXISTS {made} CASCADE")


def check(found: dict[str, Any]) -> None:
    assert found["measured"] == [[1, "a", 1.0], [2, "b", 2.0], [3, "a", 3.0]]
    assert found["counted"] == [["a", 2], ["b", 1]]
    assert found["quarantine"] == [["measured", ["no_key"]]]


@pytest.mark.thorough
def test_delta_catalog(spark: SparkSession, tmp_path: Path, schema: str) -> None:
    found = catalogued(spark, tmp_path, schema)
    check(found)
    measured, copied = found["detail measured"], found["detail copied"]
    assert measured["name"] == f"{schema}.measured"
    assert measured["description"] == "Measured values"
    assert (measured["clusteringColumns"], measured["partitionColumns"]) == (["device"], [])
    assert (copied["clusteringColumns"], copied["partitionColumns"]) == ([], ["device"])
    for name, feature in (
        ("delta.enableDeletionVectors", "deletionVectors"),
        ("delta.enableChangeDataFeed", "changeDataFeed"),
    ):
        assert measured["properties"][name] == "true"
        assert feature in measured["tableFeatures"]
        assert copied["properties"][name] == "false"
        assert feature not in copied["tableFeatures"]
    assert not list(tmp_path.rglob("_delta_log")), "the catalog says where the tables are"


def test_a_declaration_that_changes_changes_the_table(spark: SparkSession, schema: str) -> None:
    table = Table(f"{schema}.t", True)
    spark.sql(f"CREATE SCHEMA {schema}")
    create(spark, table, struct_of("a int, b int"), cluster_by=["a"])
    changed = {"delta.deletedFileRetentionDuration": "interval 1 day"}
    for columns in ("a int, b int, c int", "a int, b int"):
        create(spark, table, struct_of(columns), cluster_by=["b", "a"], properties=changed)
    found = table.detail(spark)
    assert found is not None
    assert found["clusteringColumns"] == ["b", "a"]
    assert found["properties"]["delta.deletedFileRetentionDuration"] == "interval 1 day"
    assert found["properties"]["delta.enableChangeDataFeed"] == "true"
    assert table.read(spark).columns == ["a", "b", "c"]
    versions = spark.sql(f"DESCRIBE HISTORY {table.sql}").count()
    create(spark, table, struct_of("a int"), cluster_by=["b", "a"], properties=changed)
    assert spark.sql(f"DESCRIBE HISTORY {table.sql}").count() == versions


@pytest.mark.thorough
def test_upkeep_in_delta_catalog(spark: SparkSession, tmp_path: Path, schema: str) -> None:
    assert upkept(spark, tmp_path, schema) == UPKEPT


@pytest.mark.long
@pytest.mark.timeout(600)
def test_hive_metastore(tmp_path: Path) -> None:
    def run() -> Any:
        ended = subprocess.run(
            [sys.executable, "-c", "from tests.support.catalog_world import main; main()", str(tmp_path),
             "spark_catalog.lake"],
            env={
                **os.environ,
                "PYSPARK_PYTHON": sys.executable,
                "JAVA_TOOL_OPTIONS": f"-Dderby.stream.error.file={tmp_path}/derby.log",
            },
            capture_output=True,
            text=True,
            timeout=patient(240),
            check=False,
        )  # fmt: skip
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return json.loads((tmp_path / "found.json").read_text("utf-8"))

    written = run()
    check(written)
    assert written["detail measured"]["clusteringColumns"] == ["device"]
    assert "deletionVectors" in written["detail measured"]["tableFeatures"]
    assert {name: written[name] for name in UPKEPT} == UPKEPT
    # Another process finds the tables by their names.
    read = run()
    assert {"measured", "counted", "copied", "quarantine", "source"} <= set(read["tables"])
    assert read["rows"] == 3
