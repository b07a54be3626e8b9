"""Logs on local disks: one writer for each version, whoever asks at once, and the listing that Delta's own store gives."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import TYPE_CHECKING, Any

import pytest
from delta.tables import DeltaTable
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from py4j.protocol import Py4JJavaError
from streaming.local_logs import use_local_log_store

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

LINKLESS = """
public class Linkless extends pulsebridge.LocalLogStore {
    public Linkless(org.apache.hadoop.conf.Configuration configuration) { super(configuration); }
    protected void link(java.nio.file.Path file, java.nio.file.Path made) throws java.io.IOException {
        throw new java.nio.file.FileSystemException(file.toString(), made.toString(), "Operation not permitted");
    }
}
"""


class Stores:
    """Our store of commits, and Delta's own."""

    def __init__(self, spark: SparkSession) -> None:
        assert use_local_log_store(spark), "a session of ours has it"
        jvm: Any = spark.sparkContext._jvm
        gateway: Any = spark.sparkContext._gateway
        self._jvm = jvm
        self._path = jvm.org.apache.hadoop.fs.Path
        self._configuration = spark._jsparkSession.sessionState().newHadoopConf()
        self._given = gateway.new_array(jvm.java.lang.Object, 1)
        self._given[0] = self._configuration
        self._loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
        self.ours = self._made(jvm.java.lang.Class.forName("pulsebridge.LocalLogStore", True, self._loader))
        self.theirs = jvm.io.delta.storage.HDFSLogStore(self._configuration)

    def _made(self, found: Any) -> Any:
        return found.getConstructors()[0].newInstance(self._given)

    def compiled(self, name: str, source: str) -> Any:
        compiler = self._jvm.org.codehaus.janino.SimpleCompiler()
        compiler.setParentClassLoader(self._loader)
        compiler.cook(source)
        return self._made(compiler.getClassLoader().loadClass(name))

    def listed(self, store: Any, start: Path) -> list[tuple[str, int]]:
        found: Iterator[Any] = store.listFrom(self._path(f"file:{start}"), self._configuration)
        return [(str(one.getPath().toString()), int(one.getLen())) for one in found]

    def write(self, store: Any, file: Path, line: str, overwrite: bool = False) -> bool:
        """Commit a version of one line; return whether the store says that it is there."""
        lines = self._jvm.java.util.ArrayList()
        lines.add(line)
        try:
            store.write(self._path(f"file:{file}"), lines.iterator(), overwrite, self._configuration)
        except Py4JJavaError as e:
            if e.java_exception.getClass().getName() != "java.nio.file.FileAlreadyExistsException":
                raise
            return False
        return True


@pytest.fixture
def stores(spark: SparkSession) -> Stores:
    return Stores(spark)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sets(NAMES, max_size=30), NAMES)
@pytest.mark.long
def test_a_log_is_listed_as_delta_lists_it(
    stores: Stores, tmp_path_factory: pytest.TempPathFactory, names: set[str], start: str
) -> None:
    folder = tmp_path_factory.mktemp("log with space")
    for name in names:
        (folder / name).write_text(name)
    (folder / "folder").mkdir()
    expected = stores.listed(stores.theirs, folder / start)
    assert stores.listed(stores.ours, folder / start) == expected


def test_of_two_that_commit_one_version_at_once_one_is_refused(stores: Stores, tmp_path: Path) -> None:
    log = tmp_path / "a log"
    log.mkdir()
    with ThreadPoolExecutor(2) as both:
        for number in range(50):
            file = log / f"{number:020d}.json"
            meet = Barrier(2)

            def commit(line: str, file: Path = file, meet: Barrier = meet) -> bool:
                meet.wait()
                return stores.write(stores.ours, file, line)

            told = dict(zip("ab", both.map(commit, "ab"), strict=True))
            assert sorted(told.values()) == [False, True], number
            assert told[file.read_text().strip()], "what is there is what its writer was told to be there"
    assert sorted(log.iterdir()) == [log / f"{number:020d}.json" for number in range(50)], (
        "nothing else is left"
    )


def test_a_version_is_replaced_only_where_that_is_asked_for(stores: Stores, tmp_path: Path) -> None:
    file = tmp_path / f"{0:020d}.json"
    for store in (stores.ours, stores.theirs):
        assert stores.write(store, file, "1", overwrite=True)
        assert not stores.write(store, file, "2")
        assert file.read_text() == "1\n"
        assert stores.write(store, file, "3", overwrite=True)
        assert file.read_text() == "3\n"


def test_a_disk_without_links_is_written_as_delta_writes_it(stores: Stores, tmp_path: Path) -> None:
    linkless = stores.compiled("Linkless", LINKLESS)
    file = tmp_path / f"{0:020d}.json"
    assert stores.write(linkless, file, "1")
    assert not stores.write(linkless, file, "2")
    assert file.read_text() == "1\n"
    assert [one.name for one in tmp_path.iterdir() if one.suffix == ".tmp"] == []


@pytest.mark.long
def test_a_log_that_is_not_there_is_told_as_delta_tells_it(stores: Stores, tmp_path: Path) -> None:
    for store in (stores.ours, stores.theirs):
        with pytest.raises(Py4JJavaError, match="FileNotFoundException"):
            stores.listed(store, tmp_path / "none" / "0.json")


@pytest.mark.long
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
