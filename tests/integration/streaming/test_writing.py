"""Tables and quarantine: each row in exactly one of them, once, whatever is run again and whatever rules changed since."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from bridge.errors import TerminalError
from bridge.settings.tables import Decoding
from streaming import pipelines as dp
from streaming import tables, writing
from streaming.reading import Reader
from streaming.tables import Appends, Table, configured, create, struct_of
from tests.support import killed_batches
from tests.support.kill_points import TABLE_KILL_POINTS
from tests.support.pipelines import PipelineWorld
from tests.support.source_messages import ARRIVAL, frame, sent
from tests.support.waiting import poll_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark]

SOURCE = "n int, device string, value double, fault string, rescued string, pos int"


def declared(
    *, limit: float = 1e9, keys: tuple[str, ...] = (), evolution: str = "rescue", position: bool | str = True
) -> Callable[[], None]:
    """Declare a table of measurements; a value beyond the limit does not decode, for want of a suite."""

    def declare() -> None:
        @dp.table(keys=keys, schema_evolution=evolution, cluster_by=["device"])
        def measured() -> Any:
            from pyspark.sql import functions as F

            rows = dp.read_stream("source")
            place = F.struct(
                F.lit("t").alias("topic"), F.lit(0).alias("partition"), F.lit(1).cast("bigint").alias("ledger"),
                (F.col("pos") / (2 if position == "shared" else 1)).cast("bigint").alias("entry"), F.lit(0).alias("index"), F.lit(0).alias("element"),
            )  # fmt: skip
            fault = F.when(F.col("value") > limit, F.lit("too much")).otherwise(F.col("fault"))
            found = rows.select(
                "n", "device", "value", F.col("rescued").alias("_rescued_data"), fault.alias("_fault"),
                F.encode(F.col("n").cast("string"), "UTF-8").alias("_payload"), place.alias("_position"),
            )  # fmt: skip
            return found if position else found.drop("_position")

    return declare


def row(n: int, value: float | None = 1.0, fault: str | None = None, rescued: str | None = None) -> tuple[Any, ...]:
    return (n, f"d{n % 3}", value, fault, rescued, n)


def numbers(spark: SparkSession, *of: int) -> DataFrame:
    return spark.createDataFrame([(n,) for n in of], "n int").coalesce(1)


def test_good_rows_are_in_the_table_and_bad_ones_in_quarantine_with_reason_and_payload(
    spark: SparkSession, tmp_path: Path
) -> None:
    world = PipelineWorld(spark, tmp_path)
    world.fill("source", [row(1), row(2, fault="no JSON"), row(3)], SOURCE)
    world.run(declared())
    assert world.rows("measured", "n", "value") == [(1, 1.0), (3, 1.0)]
    assert "_fault" not in world.table("measured").read(spark).columns
    assert world.rows("quarantine", "table", "failed_rules", "reason", "device", "payload", "row") == [
        ("measured", ["undecodable"], "no JSON", "d2", bytearray(b"2"), None)
    ]
    assert world.counts == [("measured", 2, 1)]


@pytest.mark.thorough
def test_rows_of_a_table_without_rules_are_counted_from_the_first_batch_on(spark: SparkSession, tmp_path: Path) -> None:
    def declare() -> None:
        @dp.table
        def plain() -> Any:
            return dp.read_stream("source").select("n")

    world = PipelineWorld(spark, tmp_path)
    for more in ([row(1), row(2)], [row(3)]):
        world.fill("source", more, SOURCE)
        world.run(declare)
    assert world.counts == [("plain", 2, 0), ("plain", 1, 0)]


@pytest.mark.parametrize(
    "position",
    [True, pytest.param("shared", marks=pytest.mark.long), False],
    ids=["by position", "by shared position", "by row"],
)
@pytest.mark.parametrize("keys", [(), ("device", "n")], ids=["appended", "merged"])
@pytest.mark.parametrize(
    "step",
    [
        pytest.param("table.validated", marks=pytest.mark.long),
        "table.written",
        pytest.param("table.quarantined", marks=pytest.mark.long),
    ],
)
def test_h18_a_batch_cut_at_each_step_and_run_by_other_rules_has_each_row_in_exactly_one_table(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, keys: tuple[str, ...],
    position: bool | str,
) -> None:  # fmt: skip
    world = PipelineWorld(spark, tmp_path, restart_budget=0)
    world.fill("source", [row(n, float(n)) for n in range(10)], SOURCE)

    def cut(point: str) -> None:
        if point == step:
            raise RuntimeError("cut here")

    monkeypatch.setattr(writing, "reach", cut)
    with pytest.raises(TerminalError, match="cut here"):
        world.run(declared(limit=6, keys=keys, position=position))
    monkeypatch.setattr(writing, "reach", lambda point: None)
    for _ in range(2):
        world.run(declared(limit=3, keys=keys, position=position))
    good = [n for (n,) in world.rows("measured", "n")]
    bad = [int(payload) for (payload,) in world.rows("quarantine", "payload")]
    assert sorted(good + bad) == list(range(10)), (good, bad)


def test_h18_a_repeated_batch_is_appended_once_by_any_query(spark: SparkSession, tmp_path: Path) -> None:
    table = Table(str(tmp_path / "table"), False)
    create(spark, table, struct_of("n int"))
    drivers = [Appends(table, "query"), Appends(table, "query")]
    assert [driver.has(spark, 0) for driver in drivers] == [False, False]  # both start at the same moment
    for driver in drivers:
        driver.append(numbers(spark, 0), 0)
    drivers[0].append(numbers(spark, 1), 1)
    Appends(table, "another").append(numbers(spark, 9), 7)
    later = Appends(table, "query")
    assert [later.has(spark, number) for number in (0, 1, 2)] == [True, True, False]
    later.append(numbers(spark, 1), 1)
    later.append(numbers(spark, 2), 2)
    assert sorted(row.n for row in table.read(spark).collect()) == [0, 1, 2, 9]


@pytest.mark.thorough
@pytest.mark.parametrize("position", [True, False], ids=["by position", "by row"])
def test_h18_a_batch_that_the_history_forgot_is_compared_with_the_table(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, position: bool
) -> None:
    world = PipelineWorld(spark, tmp_path, restart_budget=0)
    world.fill("source", [row(n, float(n)) for n in range(10)], SOURCE)

    def cut(point: str) -> None:
        if point == "table.written":
            raise RuntimeError("cut here")

    append = Table.append
    with monkeypatch.context() as patch:
        patch.setattr(writing, "reach", cut)
        # As any batch but the first of a run, it is written without Delta's own check.
        patch.setattr(Table, "append", lambda self, rows, _, note="": append(self, rows, None, note))
        with pytest.raises(TerminalError, match="cut here"):
            world.run(declared(limit=6, position=position))
    table = world.table("measured")
    spark.sql(f"ALTER TABLE {table.sql} SET TBLPROPERTIES ('delta.checkpointInterval' = '1')")
    log = Path(table.where) / "_delta_log"
    newest = max(log.glob("*.checkpoint.parquet")).name[:20]
    for file in log.glob("*.*"):  # what Delta does when a commit is older than delta.logRetentionDuration
        if file.name[:20] < newest:
            file.unlink()
    for _ in range(2):
        world.run(declared(limit=3, position=position))
    good = [n for (n,) in world.rows("measured", "n")]
    bad = [int(payload) for (payload,) in world.rows("quarantine", "payload")]
    assert sorted(good + bad) == list(range(10)), (good, bad)
    assert len(good) == 7


@pytest.mark.thorough
def test_a_merge_of_small_files_leaves_what_was_clustered_before(spark: SparkSession, tmp_path: Path) -> None:
    table = Table(str(tmp_path / "table"), False)
    create(spark, table, struct_of("n int"), cluster_by=["n"])
    size = "spark.databricks.delta.optimize.clustering.mergeStrategy.minCubeSize.threshold"
    assert spark.conf.get(size) == "8388608"
    assert spark.conf.get("spark.databricks.delta.autoCompact.minFileSize") == "4194304"
    few = {size: "1", "spark.databricks.delta.autoCompact.minNumFiles": "3"}
    with configured(spark, few):
        for n in range(12):
            table.append(numbers(spark, n))
    merges = spark.sql(f"DESCRIBE HISTORY {table.sql}").where("operation = 'OPTIMIZE'")
    read = [int(row[0]["numRemovedFiles"]) for row in merges.select("operationMetrics").collect()]
    assert sum(read) <= 12 < sum(read) + 4, read
    assert sorted(row.n for row in table.read(spark).collect()) == list(range(12))


@pytest.mark.thorough
@pytest.mark.chaos
@pytest.mark.parametrize(
    "point",
    [
        pytest.param(point, marks=[] if point == "table.written" else pytest.mark.long)
        for point in (*TABLE_KILL_POINTS, *(f"{p}:2" for p in TABLE_KILL_POINTS if p.startswith("table.")))
    ],
)
def test_h18_a_driver_killed_at_each_step_of_a_batch_goes_on_by_other_rules(
    spark: SparkSession, tmp_path: Path, point: str
) -> None:
    world = PipelineWorld(spark, tmp_path)
    rows = [(n, f"d{n % 3}", float(n)) for n in range(10)]
    world.fill("source", rows, killed_batches.SOURCE)
    killed_batches.killed_at(point, tmp_path, 6)  # ":2": in the table with keys
    for more in ([], [(10, "d1", 1.0), (11, "d1", 11.0)], []):
        if more:
            world.fill("source", more, killed_batches.SOURCE)
        world.run(killed_batches.declared(limit=3))
    for name in ("appended", "keyed"):
        good = [n for (n,) in world.rows(name, "n")]
        bad = [int(payload) for table, payload in world.rows("quarantine", "table", "payload") if table == name]
        assert sorted(good + bad) == list(range(12)), name
        assert {0, 1, 2, 3, 10} <= set(good), name
        assert {7, 8, 9, 11} <= set(bad), name
    by_device = Counter(device for (device,) in world.rows("appended", "device"))
    assert world.rows("counted", "device", "n") == sorted(by_device.items())
    latest = {device: n for n, device in sorted(world.rows("keyed", "n", "device"))}
    assert world.rows("newest", "device", "n") == sorted(latest.items())


def test_h17_of_rows_with_one_key_the_first_is_kept_however_late_the_others_come(
    spark: SparkSession, tmp_path: Path
) -> None:
    world = PipelineWorld(spark, tmp_path)
    twice = (1, "d1", 9.0, None, None, 7)
    world.fill("source", [twice, row(1), row(2)], SOURCE)
    world.run(declared(keys=("device", "n")))
    world.fill("source", [(1, "d1", 8.0, None, None, 8), row(4)], SOURCE)
    world.run(declared(keys=("device", "n")))
    assert world.rows("measured", "n", "value") == [(1, 1.0), (2, 1.0), (4, 1.0)]
    assert world.rows("quarantine", "table") == []


@pytest.mark.thorough
def test_a_row_without_a_key_is_in_quarantine(spark: SparkSession, tmp_path: Path) -> None:
    world = PipelineWorld(spark, tmp_path)
    world.fill("source", [(1, None, 1.0, None, None, 1), row(2)], SOURCE)
    world.run(declared(keys=("device", "n")))
    assert world.rows("measured", "n") == [(2,)]
    assert world.rows("quarantine", "failed_rules", "reason") == [(["no_key"], "failed no_key")]


def test_h20_a_time_far_ahead_of_arrival_or_of_the_clock_of_spark_fails_a_rule(
    spark: SparkSession, tmp_path: Path
) -> None:
    world = PipelineWorld(spark, tmp_path, clock_skew="1m")
    far = ARRIVAL + timedelta(days=365_000)
    times = (ARRIVAL + timedelta(seconds=60), ARRIVAL + timedelta(seconds=61), None, far)
    bodies = [{"n": n} | ({"at": at.isoformat()} if at else {}) for n, at in enumerate(times)]
    messages = sent(*bodies)
    messages[3] = replace(messages[3], more={"arrival_time": far})  # H45: ingest's clock is ahead as well
    reader = Reader(spark, world.settings, stored=frame(spark, messages))
    rows = reader.decoded([Decoding(filter="#", fields="n int", time="$.at")])
    found = writing.validated(rows, dp.Declared("t"), None).collect()
    assert {row["n"]: row["_failed_rules"] for row in found} == {
        0: [], 1: ["clock_skew"], 2: [], 3: ["clock_skew"],
    }  # fmt: skip


def test_unknown_fields_become_columns_with_one_type_and_what_does_not_fit_stays(
    spark: SparkSession, tmp_path: Path
) -> None:
    world = PipelineWorld(spark, tmp_path)
    world.fill(
        "source",
        [
            row(1, rescued='{"humidity": 78.0, "ok": true, "bad name": 1}'),
            row(2, rescued='{"humidity": 48.2, "count": 7}'),
            row(3),
        ],
        SOURCE,
    )
    world.run(declared(evolution="add_columns"))
    world.fill("source", [row(4, rescued='{"humidity": "wet", "count": 8}')], SOURCE)
    world.run(declared(evolution="add_columns"))
    types = {f.name: f.dataType.simpleString() for f in world.table("measured").read(spark).schema}
    assert (types["humidity"], types["ok"], types["count"]) == ("double", "boolean", "bigint")
    assert world.rows("measured", "n", "humidity", "ok", "count", "_rescued_data") == [
        (1, 78.0, True, None, '{"bad name":1}'),
        (2, 48.2, None, 7, None),
        (3, None, None, None, None),
        (4, None, None, 8, '{"humidity":"wet"}'),
    ]


@pytest.mark.thorough
def test_unknown_fields_stop_a_table_that_requests_it_and_nothing_is_lost(spark: SparkSession, tmp_path: Path) -> None:
    world = PipelineWorld(spark, tmp_path)
    world.fill("source", [row(1), row(2, rescued='{"humidity": 78.0}')], SOURCE)
    with pytest.raises(TerminalError, match="in batch 0: measured: a message has fields that the table does not know"):
        world.run(declared(evolution="fail"))
    assert world.rows("measured", "n") == []
    world.run(declared())
    assert world.rows("measured", "n") == [(1,), (2,)]


def test_too_many_bad_rows_stop_the_job_before_anything_of_the_batch_is_written(
    spark: SparkSession, tmp_path: Path
) -> None:
    world = PipelineWorld(spark, tmp_path, quality={"on_bad_share": "stop", "max_bad_share": 0.2, "min_batch_rows": 5})
    world.fill("source", [row(n, float(n)) for n in range(10)], SOURCE)
    with pytest.raises(
        TerminalError,
        match=r"measured failed in batch 0: measured: 5 of 10 rows of a batch failed a rule, the limit is 20.0%",
    ):
        world.run(declared(limit=4))
    assert world.rows("measured", "n") == [] == world.rows("quarantine", "row")
    world.run(declared(limit=8))
    assert len(world.rows("measured", "n")) == 9


@pytest.mark.parametrize("attempts", [1, 10])
def test_h18_a_change_of_upkeep_is_repeated_where_another_writer_commits_in_between(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attempts: int
) -> None:
    from pyspark.sql import functions as F

    monkeypatch.setattr(tables, "_ATTEMPTS", attempts)
    table = Table(str(tmp_path / "table"), False)
    create(spark, table, struct_of("n int, writer string"))
    table.append(numbers(spark, 1, 2).withColumn("writer", F.lit("before")))
    begun, committed = tmp_path / "begun", tmp_path / "committed"

    def slow(n: int) -> int:
        begun.touch()
        while not committed.exists():
            time.sleep(0.05)
        return n

    rows = numbers(spark, 1, 3).withColumn("n", F.udf(lambda n: slow(n), "int")("n"))
    merge = (
        f"MERGE INTO {table.sql} t USING {{rows}} s ON t.n = s.n WHEN MATCHED THEN DELETE "
        "WHEN NOT MATCHED THEN INSERT (n, writer) VALUES (s.n, 'merge')"
    )
    with ThreadPoolExecutor(1) as pool:
        change = pool.submit(table.change, spark, merge, rows=rows)
        poll_for(begun.exists, 60, "the merge to read the table")
        spark.sql(f"UPDATE {table.sql} SET writer = 'update' WHERE n = 2").collect()
        committed.touch()
        if attempts == 1:
            with pytest.raises(Exception, match="DELTA_CONCURRENT"):
                change.result()
        else:
            change.result()
    merged = {1: "before"} if attempts == 1 else {3: "merge"}
    assert dict(table.read(spark).collect()) == {2: "update", **merged}
