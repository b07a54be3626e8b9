"""The hot tail: the same rows as the tasks read, batch by batch, whatever happens to the topic; bounded; one delivery."""

from __future__ import annotations

import logging
import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
import structlog

from sources import hot_tail
from sources.offsets import Offset
from sources.options import parse
from sources.planning import Limits
from sources.progress import lag_of
from sources.spark_features import spark_features
from sources.stream import StreamPlanner
from tests.support.planned import read_batch, values_of
from tests.support.pulsar_topics import TestTopic
from tests.support.waiting import patient, poll_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.stack

MIB = 1024 * 1024


@pytest.fixture(autouse=True)
def _patient_tail(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may take longer than a batch waits before the tasks read it, which is no fault."""
    for wait in ("_BEGIN_S", "_WAIT_S", "_LATE_WAIT_S"):
        monkeypatch.setattr(hot_tail, wait, patient(30))


@contextmanager
def planner(topic: TestTopic, **options: str) -> Iterator[StreamPlanner]:
    given = topic.options(predefinedSubscription="q", startingOffsets="earliest", **options)
    found = StreamPlanner(parse(given, streaming=True))
    try:
        yield found
    finally:
        found.close()


def next_batch(query: StreamPlanner, start: Offset, limits: Limits | None = None) -> Offset:
    """Return the end of the next batch, which has something."""
    ends: list[Offset] = []

    def found() -> bool:
        ends.append(query.latest_offset(start, limits or Limits()))
        return ends[-1] != start

    poll_for(found, 30, "a batch", every=0.01)
    return ends[-1]


def first_batch(query: StreamPlanner, topic: TestTopic) -> Offset:
    """Read a first message from the tail, which follows the topic from then on; return the end of its batch."""
    start = query.initial_offset()
    topic.publish([b"first"], "unbatched")
    end = next_batch(query, start)
    assert values_of(query, start, end, hot=True) == [b"first"]
    return end


@pytest.mark.parametrize("seed", range(3))
def test_a_batch_from_the_hot_tail_is_what_the_tasks_read(topic: TestTopic, seed: int) -> None:
    """Every kind of entry, several partitions, new ledgers, a broker that unloads, a new partition, limits, replays."""
    chance = random.Random(seed)
    wanted: Counter[bytes] = Counter()
    found: Counter[bytes] = Counter()
    hot = 0
    with planner(topic) as query:
        at = query.initial_offset()
        for number in range(25):
            kind = chance.choice(["batched", "unbatched", "compressed", "lz4", "zlib", "snappy", "chunked"])
            size = 6 * MIB if kind == "chunked" else chance.choice([1, 100, 5000])
            count = 1 if kind == "chunked" else chance.randint(1, 30)
            payloads = [b"%d-%d-" % (number, n) + bytes(size) for n in range(count)]
            topic.publish(payloads, kind, chance.randrange(2), partition_key=f"k{number % 3}", properties={"n": "1"})
            wanted.update(payloads)
            what = chance.random()
            if what < 0.1:
                topic.roll_over(chance.randrange(2))
            elif what < 0.2:
                topic.unload(chance.randrange(2))
            limits = Limits(entries=chance.choice([None, 3, 10]))
            while found != wanted:
                start, at = at, next_batch(query, at, limits)
                batches = read_batch(query, start, at)
                hot += query.rows_at_hand(start, at, query.tasks(start, at)) is not None
                found.update(v for _, read in batches for b in read for v in b.column("value").to_pylist())
                assert found <= wanted
                if chance.random() < 0.8:
                    query.commit(at)
    assert hot > 10, "most batches lay in the tail"


def test_a_query_in_step_with_its_topic_asks_the_admin_once_a_second(
    topic: TestTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    with planner(topic) as query:
        at = first_batch(query, topic)
        asked: list[float] = []
        snapshot = query._catalog.snapshot
        monkeypatch.setattr(query._catalog, "snapshot", lambda *a: asked.append(time.monotonic()) or snapshot(*a))
        begin = time.monotonic()
        while time.monotonic() - begin < 2.5:
            assert query.latest_offset(at, Limits()) == at
            time.sleep(0.01)
        assert len(asked) <= 1 + (time.monotonic() - begin)
        topic.publish([b"second"], "unbatched")
        start, at = at, next_batch(query, at)
        assert values_of(query, start, at, hot=True) == [b"second"]


def test_a_tail_that_falls_behind_is_dropped_and_filled_again_later(topic: TestTopic) -> None:
    """The batch is stuck while 512 MiB arrive: the planner keeps its bound, and little beside it. What comes after the
    drop does not reach it: it makes no difference how long the batch is stuck.
    """
    with planner(topic, hotTailBytes=str(4 * MIB)) as query:
        at = first_batch(query, topic)
        before = psutil.Process().memory_info().rss
        most = before
        given = []
        for number in range(64):
            topic.publish([bytes(MIB)] * 8, "unbatched")
            most = max(most, psutil.Process().memory_info().rss)
            if number % 16 == 15:
                given.append(handed_out(topic))
        assert most - before < (4 + 64) * MIB
        assert given[0] < 128
        assert given == given[:1] * 4
        query.commit(at)
        start, at = at, next_batch(query, at)
        tasks = query.tasks(start, at)
        assert query.rows_at_hand(start, at, tasks) is None, "it is too much for the tail"
        assert sum(s.entries for task in tasks for s in task.segments) == 512
        query.commit(at)
        topic.publish([b"last"], "unbatched")
        start, at = at, next_batch(query, at)
        assert values_of(query, start, at, hot=True) == [b"last"]


def test_a_recovered_batch_is_read_from_its_start(topic: TestTopic) -> None:
    topic.publish([b"1", b"2"], "unbatched")
    with planner(topic) as query:
        begin = query.initial_offset()
        middle = next_batch(query, begin, Limits(entries=1))
        end = next_batch(query, middle)
        assert values_of(query, middle, end, hot=True) == [b"2"]
        assert values_of(query, begin, middle, hot=True) == [b"1"], "Spark plans a batch again"
    with planner(topic) as query:
        assert values_of(query, begin, middle, hot=True) == [b"1"]
        query.commit(middle)
        assert values_of(query, middle, end, hot=True) == [b"2"]


def test_a_late_message_leaves_one_batch_to_the_tasks(topic: TestTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next batch lies in the tail again, as soon as the late message is there."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG))
    with planner(topic) as query:
        at = first_batch(query, topic)
        with monkeypatch.context() as late:
            withhold(query, late)
            topic.publish([b"second"], "unbatched")
            start, at = at, next_batch(query, at)
            with structlog.testing.capture_logs() as lines:
                assert values_of(query, start, at, hot=False) == [b"second"]
            (why,) = [line for line in lines if line["event"].startswith("a batch is read by the tasks")]
            assert why["why"] == "entries did not arrive in time"
            assert why["late"].keys() == {topic.partition()}
        for number in range(3):
            query.commit(at)
            topic.publish([b"%d" % number], "unbatched")
            start, at = at, next_batch(query, at)
            assert values_of(query, start, at, hot=True) == [b"%d" % number]


def test_a_reader_that_gets_nothing_leaves_the_batches_to_the_tasks_and_is_made_again(
    topic: TestTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The readers of the tail may get nothing for any reason: the query reads on. Other partitions stay in the tail."""
    monkeypatch.setattr(hot_tail, "_LATE_S", 0.0)
    with planner(topic) as query:
        at = first_batch(query, topic)
        withhold(query, monkeypatch)
        for partition, hot in ((0, False), (1, True), (0, False), (0, True), (1, True)):
            query.commit(at)
            topic.publish([b"next"], "unbatched", partition)
            start, at = at, next_batch(query, at)
            assert values_of(query, start, at, hot=hot) == [b"next"]


def withhold(query: StreamPlanner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the reader that the tail has of partition 0 give nothing; a batch waits for it a moment only."""
    monkeypatch.setattr(hot_tail, "_WAIT_S", 0.1)
    monkeypatch.setattr(hot_tail, "_LATE_WAIT_S", 0.1)
    tail: Any = query._tail
    take_in = tail._take_in
    first: list[Any] = []

    def take(name: str, of: Any, reader: Any) -> bool:
        if name.endswith("-0") and not first:
            first.append(reader)
        return reader in first or bool(take_in(name, of, reader))

    monkeypatch.setattr(tail, "_take_in", take)


@pytest.mark.thorough
@pytest.mark.spark
def test_spark_takes_rows_from_the_planner_and_no_task_reads(
    spark: SparkSession, topic: TestTopic, tmp_path: Path
) -> None:
    """Pulsar hands each message out once: to the planner. A batch that is read twice, or whose rows Spark has lost since,
    has the same rows.
    """
    seen: list[bytes] = []
    wanted: list[bytes] = []
    given = [0]

    def write(rows: DataFrame, number: int) -> None:
        first = sorted(bytes(row.value) for row in rows.collect())
        if number == 1:
            drop_kept_rows(spark)
        assert sorted(bytes(row.value) for row in rows.collect()) == first
        seen.extend(first)

    frame = spark.readStream.format("pulsebridge").options(
        **topic.options(predefinedSubscription="q", startingOffsets="earliest")
    )
    query = (
        frame.schema("value binary")
        .load()
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", str(tmp_path / "c"))
        .start()
    )
    try:
        for number in range(4):
            payloads = [b"%d-%d" % (number, n) for n in range(10)]
            topic.publish(payloads, "unbatched", number % 2)
            wanted.extend(payloads)
            poll_for(partial(_has, query, seen, len(wanted)), 60, "the rows")
            given.append(handed_out(topic))
        assert sorted(seen) == sorted(wanted)
        # A batch whose messages are slow to come, on a busy machine, is read by a task.
        assert 10 in [after - before for before, after in pairwise(given)]
        if spark_features().limits:  # older Sparks take no lag from a source
            behind = lag_of(query.lastProgress["sources"][0])
            assert behind is not None
            assert [of.entries for of in behind.values()] == [0, 0]
    finally:
        query.stop()


def handed_out(topic: TestTopic) -> int:
    """Return how many messages Pulsar has given to readers."""
    return sum(int(topic.admin.stats(topic.partition(n))["msgOutCounter"]) for n in range(2))


def drop_kept_rows(spark: SparkSession) -> None:
    """Take from Spark the rows that it keeps of the planner's, as a full disk or a lost executor does."""
    jvm: Any = spark.sparkContext._jvm
    blocks = jvm.org.apache.spark.SparkEnv.get().blockManager()
    for stream in range(200):
        for number in range(20):
            block = jvm.org.apache.spark.storage.PythonStreamBlockId(stream, number)
            if blocks.getStatus(block).isDefined():
                blocks.removeBlock(block, True)


def _has(query: Any, seen: list[bytes], count: int) -> bool:
    assert query.isActive, query.exception()
    return len(seen) >= count
