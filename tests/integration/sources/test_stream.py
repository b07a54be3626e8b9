"""``format("pulsebridge")`` in Spark on real Pulsar: exact rows over restarts, retention, limits, loss."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from bridge.contract import P_INGEST, P_TOPIC, SOURCE_COLUMNS, Position, encode_ingest
from bridge.pulsar.admin import subscription_path
from bridge.pulsar.client import PulsarClient
from sources.retention import RetentionSubscription, SubscriptionRecord
from sources.spark_features import spark_features
from sources.subscriptions import retained_topics
from tests.support.pulsar_topics import TestTopic, topic_of
from tests.support.spark_features import needs_limits
from tests.support.waiting import poll_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.stack, pytest.mark.spark]


SCHEMA = "value binary, `partition` int, ledger_id bigint, entry_id bigint, batch_index int"


class Query:
    """A streaming query of the topic into files, with its checkpoint."""

    def __init__(self, spark: SparkSession, topic: TestTopic, folder: Path, **options: str) -> None:
        self.spark, self.topic, self.folder = spark, topic, folder
        self.options = {
            "predefinedSubscription": "q",
            "startingOffsets": "earliest",
            "subscriptionWaitMs": "5000",
        }
        self.options |= options

    def start(self, *, now: bool = False, checkpoint: str = "checkpoint", **options: str) -> Any:
        frame = self.spark.readStream.format("pulsebridge").options(**self._all(options)).schema(SCHEMA).load()
        writer = frame.writeStream.format("parquet").option("path", str(self.folder / f"rows-{checkpoint}"))
        writer = writer.option("checkpointLocation", str(self.folder / checkpoint))
        return (writer.trigger(availableNow=True) if now else writer.trigger(processingTime="0 seconds")).start()

    def _all(self, options: Mapping[str, str]) -> dict[str, str]:
        found = self.topic.options() | self.options | options
        if "topics" in found or "topicsPattern" in found:
            del found["topic"]
        return found

    def run(self, **options: Any) -> list[int]:
        """Run to the present end; return the rows of each batch."""
        query = self.start(now=True, **options)
        try:
            assert query.awaitTermination(90), "the query did not end"
            return [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]
        finally:
            query.stop()

    def values(self, checkpoint: str = "checkpoint") -> Counter[str]:
        folder = self.folder / f"rows-{checkpoint}"
        if not (folder / "_spark_metadata").exists():
            return Counter()
        rows = self.spark.read.schema(SCHEMA).parquet(str(folder))
        return Counter(bytes(row.value).decode() for row in rows.collect())


@pytest.fixture
def query(spark: SparkSession, topic: TestTopic, tmp_path: Path) -> Query:
    return Query(spark, topic, tmp_path)


def logged_offsets(query: Query) -> list[Any]:
    """Return the source's offsets of the checkpoint, batch by batch."""
    logs = sorted((query.folder / "checkpoint" / "offsets").glob("[0-9]*"), key=lambda p: int(p.name))
    return [json.loads(log.read_text().splitlines()[2]) for log in logs]


def properties(query: Query, partition: int) -> Any:
    """Return the properties of the query's subscription on a partition, None while it has none."""
    path = f"{subscription_path(query.topic.partition(partition), 'q')}/properties"
    return query.topic.admin.request("GET", path, accept=(404,))


def held(query: Query) -> tuple[int, bool]:
    """Return how many messages the query's subscription keeps, and whether it says that a batch was committed."""
    (found,) = retained_topics(query.topic.admin, [query.topic.name], "q")
    return found.entries, found.committed


def names(prefix: str, count: int) -> list[bytes]:
    return [f"{prefix}{n}".encode() for n in range(count)]


def once(*prefixes: tuple[str, int]) -> Counter[str]:
    return Counter(f"{prefix}{n}" for prefix, count in prefixes for n in range(count))


def refused(start: Any) -> str:
    """The text of the error that a query ends with."""
    with pytest.raises(Exception, match=r"\S") as caught:
        start()
    return str(caught.value)


def test_all_columns_reach_spark_with_the_types_of_the_contract(spark: SparkSession, topic: TestTopic) -> None:
    envelope = {P_TOPIC: "a/b", P_INGEST: encode_ingest(link="test", protocol="5", rule=None)}
    topic.publish([b"v"], partition_key="k", properties=envelope)
    frame = spark.read.format("pulsebridge").options(**topic.options()).load()
    assert tuple((f.name, f.dataType.simpleString()) for f in frame.schema.fields) == SOURCE_COLUMNS
    (row,) = frame.collect()
    assert (bytes(row.value), row["__key"], row.mqtt_topic, row.retained) == (b"v", "k", "a/b", False)
    assert row["__messageProperties"] == envelope


@needs_limits
def test_available_now_takes_many_batches_under_a_limit_and_every_row_once(query: Query) -> None:
    for kind in ("unbatched", "batched", "compressed"):
        for partition in range(2):
            query.topic.publish(names(f"{kind}-{partition}-", 20), kind, partition)
    batches = query.run(maxEntriesPerTrigger="10")
    assert len(batches) >= 4
    assert sum(batches) == 120
    query.topic.publish(names("more-", 5))
    assert query.run() == [5]
    assert held(query) == (0, True), "the subscription shows what is committed"
    assert query.values() == once(
        *((f"{k}-{p}-", 20) for k in ("unbatched", "batched", "compressed") for p in range(2)), ("more-", 5)
    )
    assert query.run() == [], "nothing new is no batch"


@needs_limits
def test_available_now_without_a_message_leaves_the_subscription_to_a_new_checkpoint(query: Query) -> None:
    assert query.run() == []
    assert held(query) == (0, False)
    query.topic.publish(names("a", 3))
    query.run(checkpoint="another")
    assert query.values("another") == once(("a", 3))


@needs_limits
@pytest.mark.long
def test_a_row_limit_bounds_a_batch_by_the_rows_per_entry_seen(query: Query) -> None:
    for _ in range(10):
        query.topic.publish(names("r", 10), "batched")
    batches = query.run(maxRowsPerTrigger="20")
    assert sum(batches) == 100
    assert max(batches) <= 30


@needs_limits
@pytest.mark.long
def test_a_batch_between_two_offsets_of_a_checkpoint_gives_the_same_rows_twice(query: Query) -> None:
    query.topic.publish(names("a", 30), "unbatched", 0)
    query.topic.publish(names("a", 30), "batched", 1)
    query.run(maxEntriesPerTrigger="14")
    offsets = logged_offsets(query)[:3]
    reader = query.spark.read.format("pulsebridge").options(
        **query.topic.options(),
        startingOffsets=json.dumps(offsets[0]), endingOffsets=json.dumps(offsets[2]),
    )  # fmt: skip
    place = ("partition", "ledger_id", "entry_id", "batch_index")
    first = [tuple(row[c] for c in place) for row in reader.load().orderBy(*place).collect()]
    assert first
    assert len(set(first)) == len(first)
    assert [tuple(row[c] for c in place) for row in reader.load().orderBy(*place).collect()] == first


def test_new_partitions_are_found_while_running_and_read_from_their_first_message(query: Query) -> None:
    query.topic.publish(names("old", 5))
    running = query.start()
    try:
        poll_for(lambda: query.values() == once(("old", 5)), 120, "the first rows")
        query.topic.admin.request("POST", f"/persistent/{query.topic.name[13:]}/partitions", body=3)
        query.topic.publish(names("new", 5), partition=2)
        poll_for(lambda: query.values() == once(("old", 5), ("new", 5)), 120, "rows of the new partition")
    finally:
        running.stop()
    query.topic.publish(names("later", 5), partition=2)
    query.run()
    assert query.values() == once(("old", 5), ("new", 5), ("later", 5))


@pytest.mark.long
def test_a_topic_that_is_not_there_yet_is_waited_for_and_read_from_its_first_message(query: Query) -> None:
    late = query.topic.settings.readings_topic("late")
    query.options |= {"topics": f"{query.topic.name},{late}", "waitingForNonExistedTopic": "true"}
    running = query.start()
    try:
        query.topic.publish(names("there", 5))
        poll_for(lambda: query.values() == once(("there", 5)), 120, "the rows of the topic that is there")
        with topic_of(query.topic.settings, partitions=2, name="late") as found:
            found.publish(names("late", 5), partition=1)
        poll_for(lambda: query.values() == once(("there", 5), ("late", 5)), 120, "the rows of the other")
    finally:
        running.stop()
    assert set(logged_offsets(query)[-1]["i"]) == {query.topic.name, late}, "both are recognised after a restart"
    query.run()
    assert query.values() == once(("there", 5), ("late", 5))


def test_h11_pulsars_copy_of_the_subscription_on_a_new_partition_is_set_to_its_first_message(
    query: Query,
) -> None:
    """Pulsar copies each subscription of the first partition, with its properties, to partitions that are added."""
    query.topic.publish(names("old", 5))
    query.run()
    query.topic.admin.request("POST", f"/persistent/{query.topic.name[13:]}/partitions", body=3)
    copied = poll_for(lambda: properties(query, 2), 30, "the copy")
    assert json.loads(copied["pulsebridge.retention"])["startingOffsets"] == "earliest"
    query.topic.publish(names("new", 5), partition=2)
    query.run()
    assert query.values() == once(("old", 5), ("new", 5))
    record = json.loads(properties(query, 2)["pulsebridge.retention"])
    assert record["startingOffsets"] == "new partition: earliest"
    assert record["start"][0] == query.topic.ledgers(2)[0]


def test_h11_a_subscription_that_appears_while_it_is_made_is_set_right(topic: TestTopic) -> None:
    topic.publish(names("a", 3), "unbatched")
    partition, first = topic.partition(), topic.ledgers()[0]
    path = subscription_path(partition, "q")
    topic.admin.request("PUT", path, body={"ledgerId": first, "entryId": 2, "properties": {"whose": "Pulsar"}})
    record = SubscriptionRecord("new partition: earliest", Position(first, 0), False)
    with PulsarClient(topic.settings) as client:
        hold = RetentionSubscription("q", topic.admin, client, wait_s=5)
        hold.create(partition, record)
        assert hold.record(partition) == record
    assert topic.hold("q") == f"{first}:-1"


def test_h12_a_new_checkpoint_does_not_take_the_position_of_a_used_subscription(query: Query) -> None:
    query.topic.publish(names("a", 5))
    query.run()
    query.topic.publish(names("b", 5))
    query.run()
    text = refused(lambda: query.run(checkpoint="other"))
    assert "subscription 'q' on" in text
    assert "belongs to a query that has committed batches already, and this checkpoint is new" in text
    assert "give predefinedSubscription (of `pulsebridge stream`: streaming.subscription) a new name" in text
    query.topic.publish(names("c", 5))
    query.run(checkpoint="reuse", reuseSubscription="position")
    # Without limits Spark commits the last batch of a run with the next one.
    last = () if spark_features().limits else (("b", 5),)
    assert query.values("reuse") == once(*last, ("c", 5)), "from where the subscription stood"
    query.run(checkpoint="again", reuseSubscription="resolve")
    assert query.values("again") == once(("a", 5), ("b", 5), ("c", 5)), (
        "from startingOffsets, as retention still has it"
    )


@pytest.mark.long
def test_h12_a_second_query_with_the_name_of_a_running_one_is_refused(query: Query) -> None:
    query.topic.publish(names("a", 5))
    running = query.start()
    try:
        poll_for(lambda: query.values() == once(("a", 5)), 120, "the first rows")
        text = refused(lambda: query.run(checkpoint="other", subscriptionWaitMs="300"))
        assert "subscription 'q' on" in text
        assert "is in use by another query" in text
        assert "stop that query, or give this one another predefinedSubscription" in text
        query.topic.publish(names("b", 5))
        poll_for(lambda: query.values() == once(("a", 5), ("b", 5)), 120, "the first query goes on")
    finally:
        running.stop()


def test_h16_the_subscription_follows_the_commits_over_a_ledger_border(query: Query) -> None:
    query.topic.publish(names("a", 5), "unbatched")
    first = query.topic.ledgers()[0]
    running = query.start()
    try:
        poll_for(lambda: query.values() == once(("a", 5)), 120, "the first rows")
        query.topic.roll_over()
        query.topic.publish(names("b", 3), "unbatched")
        second = query.topic.ledgers()[-1]
        # Pulsar itself may move it on to the beginning of the next ledger, which is the same position.
        place = (f"{first}:4", f"{second}:-1")
        poll_for(lambda: query.topic.hold("q") in place, 120, "the first commit")
        poll_for(lambda: query.values() == once(("a", 5), ("b", 3)), 120, "the second rows")
        query.topic.publish(names("c", 1), "unbatched")
        poll_for(lambda: query.topic.hold("q") == f"{second}:2", 120, "the second commit")
        progress = poll_for(lambda: running.lastProgress, 30, "a progress")
        assert json.loads(progress.json)["sources"][0]["latestOffset"]
    finally:
        running.stop()


@pytest.mark.long
def test_what_was_read_may_be_trimmed_and_the_query_goes_on(query: Query) -> None:
    query.topic.publish(names("a", 5), "unbatched")
    query.run()
    query.topic.roll_over()
    query.topic.publish(names("b", 5), "unbatched")
    query.run()  # commits the first batch: its ledger may go
    query.topic.trim()
    assert query.run() == []
    query.topic.publish(names("c", 5), "unbatched")
    query.run()
    assert query.values() == once(("a", 5), ("b", 5), ("c", 5))


def test_data_trimmed_before_it_was_read_fails_the_query_with_the_remedy(query: Query) -> None:
    query.topic.publish(names("a", 5), "unbatched")
    query.run()
    query.topic.publish(names("lost", 5), "unbatched")
    query.topic.roll_over()
    for partition in range(2):
        query.topic.drop("q", partition)
    query.topic.trim()
    query.topic.publish(names("b", 5), "unbatched")
    text = refused(query.run)
    assert "data that the query still has to read is no longer in Pulsar" in text
    assert "set failOnDataLoss=false to continue with the remaining data" in text
    query.run(failOnDataLoss="false")
    assert query.values() == once(("a", 5), ("b", 5))


@pytest.mark.long
def test_a_re_created_topic_is_refused_with_the_remedy(query: Query) -> None:
    query.topic.publish(names("a", 5))
    query.run()
    query.topic.delete()
    query.topic.create()
    query.topic.publish(names("other", 50), "unbatched")
    text = refused(query.run)
    assert "is not the one that the checkpoint was made on" in text
    assert "start with a new checkpoint" in text


def test_wrong_options_and_missing_topics_are_one_readable_line(query: Query) -> None:
    assert "did you mean startingOffsets?" in refused(lambda: query.run(startingOfsets="earliest"))
    assert "does not exist" in refused(lambda: query.run(topic=query.topic.name + "-missing"))


@pytest.mark.long
def test_a_pattern_finds_topics_that_are_made_while_running(query: Query) -> None:
    folder, _, local = query.topic.name.rpartition("/")
    query.options["topicsPattern"] = f"{folder}/{local}.*"
    query.topic.publish(names("old", 5))
    running = query.start()
    try:
        poll_for(lambda: query.values() == once(("old", 5)), 120, "the rows of the topic that is there")
        with topic_of(query.topic.settings, partitions=2, name=f"{local}-later") as found:
            found.publish(names("new", 5), partition=1)
        poll_for(lambda: query.values() == once(("old", 5), ("new", 5)), 120, "the rows of the other")
    finally:
        running.stop()
    query.run()
    assert query.values() == once(("old", 5), ("new", 5)), "a restart repeats nothing"
