"""What a session of ours says of checkpoints, where nobody says anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from streaming.session import local_session

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
