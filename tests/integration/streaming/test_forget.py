"""A device deleted in every table while the queries run, on real Delta; and the pause that lets a change through."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bridge.settings import Settings, StreamingSettings
from streaming.forgetting import Forgetting
from streaming.holding import HoldFile, write_between
from streaming.job import Job, plan_of
from streaming.remains import in_lakehouse
from streaming.stopping import StopRequest
from tests.support.bronze_rows import reading
from tests.support.lakehouse import Lakehouse
from tests.support.waiting import patient, poll_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


class Cut(Exception):
    """Stands for the end of the process between two tables."""


@pytest.mark.long
def test_a_device_is_gone_from_every_table_and_the_queries_run_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    house = Lakehouse(spark, tmp_path)
    house.arrive(
        reading(1, "a", 1, 100), reading(2, "b", 1, 60), reading(3, "a", 2, 5), reading(4, "b", 2, 5)
    )
    house.catch_up()
    silver, alerts = house.silver(processingTime="0 seconds"), house.alerts(processingTime="0 seconds")
    try:
        asked = Forgetting(spark, house.tables, "a").count()
        assert asked.deleted == {"bronze": 2, "silver": 1, "quarantine": 1}

        def cut(table: str) -> None:
            if table == "silver":
                raise Cut

        with pytest.raises(Cut):
            Forgetting(spark, house.tables, "a", after=cut).run()
        house.arrive(reading(5, "b", 3, 90))  # so that the query reads past the deletion
        done = Forgetting(spark, house.tables, "a").run()
        assert done.deleted == {"bronze": 0, "silver": 0, "quarantine": 1}
        assert done.complete
        assert "VACUUM" in in_lakehouse(done)[0]
        house.arrive(reading(6, "b", 4, 50))
        poll_for(lambda: house.ids("silver") == ["b-1", "b-3", "b-4"], 60, "the reading after the deletion")
        poll_for(lambda: house.commanded == ["b-1", "b-4"], 60, "the command after the deletion")
        assert house.ids("quarantine") == ["b-2"]
        assert silver.exception() is None
        assert alerts.exception() is None
    finally:
        silver.stop()
        alerts.stop()


@pytest.mark.long
def test_a_query_that_is_behind_is_named_since_it_would_bring_the_device_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    house = Lakehouse(spark, tmp_path)
    house.arrive(reading(1, "b", 1, 100))
    house.catch_up()
    house.arrive(reading(2, "a", 1, 100))  # not read yet, and still in the commit that brought it
    done = Forgetting(spark, house.tables, "a", wait_s=0.0).run()
    assert done.behind == ("silver",)
    house.catch_up()
    assert house.ids("silver") == ["a-1", "b-1"], (
        "the hazard: read from the commit, though bronze has it no more"
    )
    done = Forgetting(spark, house.tables, "a", wait_s=0.0).run()
    assert done.deleted == {"bronze": 0, "silver": 1, "quarantine": 0}
    assert house.ids("silver") == ["b-1"]


@pytest.mark.long
def test_a_deletion_that_delta_refuses_because_of_an_append_is_tried_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    house = Lakehouse(spark, tmp_path)
    house.arrive(reading(1, "a", 1, 100), reading(2, "b", 1, 100))
    begun, appended = tmp_path / "begun", tmp_path / "appended"

    def waits(device: str) -> bool:
        begun.touch()
        return bool(poll_for(appended.exists, 60, "the append"))

    def append() -> None:
        poll_for(begun.exists, 60, "the deletion to begin")
        house.arrive(reading(3, "a", 2, 100))
        appended.touch()

    spark.udf.register("waits_for_an_append", waits, "boolean")
    sql = f"DELETE FROM {house.tables.bronze.sql} WHERE device = 'a' AND waits_for_an_append(device)"
    attempts: list[int] = []

    def delete() -> None:
        attempts.append(len(attempts))
        spark.sql(sql)

    thread = threading.Thread(target=append)
    thread.start()
    write_between(delete, "bronze", HoldFile(spark, house.tables.root))
    thread.join(patient(60))
    assert attempts == [0, 1]
    assert [row[0] for row in house.tables.bronze.read(spark).select("device").collect()] == ["b"]


@pytest.mark.long
def test_the_job_pauses_between_batches_while_it_is_asked_and_loses_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    house = Lakehouse(spark, tmp_path)
    settings = Settings(
        streaming=StreamingSettings(root=house.tables.root, trigger_s=0.1, quality_interval_s=0)
    )
    job, stop = Job(spark, plan_of(settings), only=("silver",)), StopRequest()
    job.prepare()
    thread = threading.Thread(target=job.run, args=(stop,))
    thread.start()
    hold = HoldFile(spark, house.tables.root)
    try:
        house.arrive(reading(1, "a", 1, 100))
        poll_for(lambda: house.ids("silver") == ["a-1"], 60, "the first reading")
        hold.ask(60.0)
        poll_for(lambda: not job.queries, 60, "the pause")
        house.arrive(reading(2, "a", 2, 100))
        hold.lift()
        poll_for(lambda: house.ids("silver") == ["a-1", "a-2"], 60, "the job to go on")
    finally:
        stop.ask()
        thread.join(patient(60))
        job.close()
    assert not thread.is_alive()
