"""Logs on local disks listed by name: what Delta's own store of commits lists, and what a commit costs late in a log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from delta.tables import DeltaTable
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from py4j.protocol import Py4JJavaError

from streaming.log_listing import list_logs_by_name

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

NAMES = st.one_of(
    st.integers(0, 30).map(lambda n: f"{n:020d}.json"),
    st.integers(0, 30).map(lambda n: f"{n:020d}.crc"),
    st.integers(0, 30).map(lambda n: f".{n:020d}.json.crc"),
    st.integers(0, 30).map(lambda n: f"{n:020d}.checkpoint.parquet"),
    st.sampled_from(["_last_checkpoint", "_staged_commits", ".hidden", "a b", "100%"]),
)


class Stores:
    """Our store of commits, and Delta's own."""

    def __init__(self, spark: SparkSession) -> None:
        assert list_logs_by_name(spark), "a session of ours has it"
        jvm: Any = spark.sparkContext._jvm
        gateway: Any = spark.sparkContext._gateway
        self._path = jvm.org.apache.hadoop.fs.Path
        self._configuration = spark._jsparkSession.sessionState().newHadoopConf()
        loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
        given_to_it = gateway.new_array(jvm.java.lang.Object, 1)
        given_to_it[0] = self._configuration
        found = jvm.java.lang.Class.forName("pulsebridge.LocalLogStore", True, loader)
        self.ours = found.getConstructors()[0].newInstance(given_to_it)
        self.theirs = jvm.io.delta.storage.HDFSLogStore(self._configuration)

    def listed(self, store: Any, start: Path) -> list[tuple[str, int]]:
        found: Iterator[Any] = store.listFrom(self._path(f"file:{start}"), self._configuration)
        return [(str(one.getPath().toString()), int(one.getLen())) for one in found]


@pytest.fixture
def stores(spark: SparkSession) -> Stores:
    return Stores(spark)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sets(NAMES, max_size=30), NAMES)
def test_a_log_is_listed_as_delta_lists_it(
    stores: Stores, tmp_path_factory: pytest.TempPathFactory, names: set[str], start: str
) -> None:
    folder = tmp_path_factory.mktemp("log with space")
    for name in names:
        (folder / name).write_text(name)
    (folder / "folder").mkdir()
    expected = stores.listed(stores.theirs, folder / start)
    assert stores.listed(stores.ours, folder / start) == expected


def test_a_log_that_is_not_there_is_told_as_delta_tells_it(stores: Stores, tmp_path: Path) -> None:
    for store in (stores.ours, stores.theirs):
        with pytest.raises(Py4JJavaError, match="FileNotFoundException"):
            stores.listed(store, tmp_path / "none" / "0.json")


def test_tables_are_written_read_travelled_and_streamed_with_it(spark: SparkSession, tmp_path: Path) -> None:
    jvm: Any = spark.sparkContext._jvm
    table = str(tmp_path / "a table")
    for number in range(12):  # beyond a checkpoint of the log
        spark.range(number, number + 1).coalesce(1).write.format("delta").mode("append").save(table)
    log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, table)
    delegate = log.store().getDelegate(log.logPath())
    assert delegate.logStoreImpl().getClass().getName() == "pulsebridge.LocalLogStore"
    assert spark.read.format("delta").load(table).count() == 12
    assert spark.read.format("delta").option("versionAsOf", 5).load(table).count() == 6
    DeltaTable.forPath(spark, table).optimize().executeCompaction()
    stream = spark.readStream.format("delta").load(table).writeStream.format("delta")
    stream = stream.option("checkpointLocation", str(tmp_path / "checkpoint"))
    stream.trigger(availableNow=True).start(str(tmp_path / "copy")).awaitTermination()
    assert spark.read.format("delta").load(str(tmp_path / "copy")).count() == 12
