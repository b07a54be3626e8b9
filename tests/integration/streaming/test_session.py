"""What a session of ours says of checkpoints, where nobody says anything."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from streaming.class_data import archive_file

from streaming.session import local_session
from tests.support.jvm_calls import noted_calls

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

CLASS = "spark.sql.streaming.checkpointFileManagerClass"


def test_checkpoints_on_local_disks_are_written_without_a_dozen_processes_unless_told_otherwise(
    spark: SparkSession,
) -> None:
    ours = spark.conf.get(CLASS)
    assert ours is not None
    assert ours.endswith(".FileSystemBasedCheckpointFileManager")
    try:
        spark.conf.set(CLASS, "another")
        assert local_session() is spark  # as a notebook asks for it once more
        assert spark.conf.get(CLASS) == "another"
    finally:
        spark.conf.set(CLASS, ours)


def test_a_function_of_pyspark_has_no_class_looked_for(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark.sql import functions as F

    asked = noted_calls(monkeypatch)
    spark.range(1).select(F.size(F.array("id")), F.lit(1))
    looked_for = [command.split("\n")[2] for command in asked if command.startswith("r\nu\n")]
    assert [name for name in looked_for if "." not in name] == []


def test_workers_take_the_installed_pyspark_and_not_its_zipped_copy(spark: SparkSession) -> None:
    def modules(_: int) -> list[str]:
        import sys

        import pyspark

        return [str(pyspark.__file__), *sys.path]

    found, *path = spark.sparkContext.parallelize([0], 1).flatMap(modules).collect()
    assert Path(found).is_file()
    assert [entry for entry in path if entry.endswith((".zip", ".jar")) and "pyspark" in entry] == []


@pytest.mark.skipif(sys.platform != "linux", reason="what a process maps is told by Linux alone")
@pytest.mark.skipif(
    not archive_file().is_file(), reason="pulsebridge warm-up was not run in this environment"
)
def test_the_jvm_maps_the_classes_that_were_kept_by_warm_up(spark: SparkSession) -> None:
    gateway: Any = spark.sparkContext._gateway
    assert str(archive_file()) in Path(f"/proc/{gateway.proc.pid}/maps").read_text()
