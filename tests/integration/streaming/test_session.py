"""The settings that a session of Pulsebridge gives to its workers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_workers_take_the_installed_pyspark_and_not_its_zipped_copy(spark: SparkSession) -> None:
    def modules(_: int) -> list[str]:
        import sys

        import pyspark

        return [str(pyspark.__file__), *sys.path]

    found, *path = spark.sparkContext.parallelize([0], 1).flatMap(modules).collect()
    assert Path(found).is_file()
    assert [entry for entry in path if entry.endswith((".zip", ".jar")) and "pyspark" in entry] == []
