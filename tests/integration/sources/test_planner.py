"""The planner of a streaming query on real Pulsar, without Spark: limits, waiting, splitting, partitions that go."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import structlog

from bridge.contract import Position
from bridge.errors import DataLossError, TerminalError
from bridge.pulsar.admin import PulsarAdmin
from sources.chunks import ChunkGuard
from sources.offsets import Offset
from sources.options import SourceOptions, parse
from sources.planning import Ledger, PartitionView
from sources.reading import read_range
from sources.snapshot import Catalog
from sources.stream import StreamPlanner
from tests.support.pulsar_topics import TestTopic, topic_of
from tests.support.waiting import poll_for

pytestmark = pytest.mark.stack


@pytest.fixture(autouse=True)
def _every_line_of_the_log() -> Iterator[None]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG))
    yield
    structlog.reset_defaults()


@contextmanager
def planner(topic: TestTopic, **options: str) -> Iterator[tuple[StreamPlanner, SourceOptions]]:
    given = topic.options(predefinedSubscription="q", startingOffsets="earliest", **options)
    parsed = parse(given, streaming=True)
    found = StreamPlanner(parsed)
    try:
        yield found, parsed
    finally:
        found.close()


def names(count: int) -> list[bytes]:
    return [b"%d" % n for n in range(count)]


def entries(planner: StreamPlanner, start: Offset, end: Offset) -> int:
    return sum(s.entries for task in planner.tasks(start, end) for s in task.segments)


def reasons(logs: list[Any]) -> list[str]:
    return [line["limit"] for line in logs if line["event"] == "trigger"]


def test_one_line_for_each_trigger_names_the_limit_in_force(topic: TestTopic) -> None:
    topic.publish(names(6), "unbatched")
    topic.publish(names(2), "unbatched", 1)
    with planner(topic, maxEntriesPerTrigger="4") as (query, options):
        at = query.initial_offset()
        with structlog.testing.capture_logs() as logs:
            sizes = []
            for _ in range(4):
                end = query.latest_offset(at, options.limits)
                sizes.append(entries(query, at, end))
                at = end
    assert reasons(logs) == ["maxEntriesPerTrigger=4"] * 2 + ["none"] * (len(sizes) - 2)
    assert {line["log_level"] for line in logs if line["event"] == "trigger"} == {"debug"}
    assert sum(sizes) == 8
    assert max(sizes) <= 4
    assert sizes[-1] == 0


def test_few_rows_wait_until_there_are_enough_or_the_delay_is_over(topic: TestTopic) -> None:
    with planner(topic, minRowsPerTrigger="10", maxTriggerDelay="1h") as (query, options):
        start = query.initial_offset()
        topic.publish(names(1), "unbatched")
        first = query.latest_offset(start, options.limits)
        assert first != start, "the first trigger waits for no minimum"
        topic.publish(names(9), "unbatched")
        with structlog.testing.capture_logs() as logs:
            assert query.latest_offset(first, options.limits) == first
            report = query.report_latest()
        assert reasons(logs) == ["minRowsPerTrigger=10"]
        assert report is not None
        assert report["behind"][topic.partition()]["entries"] == 9, "what waits is seen"
        topic.publish(names(1), "unbatched", 1)
        full = query.latest_offset(first, options.limits)
        assert entries(query, first, full) == 10
    with planner(topic, minRowsPerTrigger="10", maxTriggerDelay="1ms") as (query, options):
        topic.publish(names(1), "unbatched")
        query.latest_offset(full, options.limits)
        assert poll_for(lambda: query.latest_offset(full, options.limits) != full, 10, "the delay to be over")


def test_a_large_range_is_split_by_bytes_and_read_once(topic: TestTopic) -> None:
    payloads = [bytes([n]) * 1000 for n in range(40)]
    topic.publish(payloads, "unbatched")
    with planner(topic, maxBytesPerPartition="5000") as (query, options):
        start = query.initial_offset()
        tasks = query.tasks(start, query.latest_offset(start, options.limits))
    assert len(tasks) >= 8
    read = [v for task in tasks for batch in read_range(task) for v in batch.column("value").to_pylist()]
    assert read == payloads


def test_a_deleted_topic_fails_the_query_or_is_skipped_as_configured(topic: TestTopic) -> None:
    with topic_of(topic.settings) as other:
        other.publish(names(3), "unbatched")
        topic.publish(names(2), "unbatched")
        both = {"topics": f"{topic.name},{other.name}"}
        given = {k: v for k, v in topic.options().items() if k != "topic"} | both
        given |= {"predefinedSubscription": "q", "startingOffsets": "earliest"}
        strict, lenient = (parse(given | {"failOnDataLoss": flag}, streaming=True) for flag in ("true", "false"))
        query = StreamPlanner(strict)
        start = query.initial_offset()
        at = query.latest_offset(start, strict.limits)
        query.close()
        other.delete()
        query = StreamPlanner(strict)
        with pytest.raises(DataLossError, match=r"no longer exists.*failOnDataLoss=false"):
            query.latest_offset(at, strict.limits)
        query.close()
        query = StreamPlanner(lenient)
        topic.publish(names(2), "unbatched")
        with structlog.testing.capture_logs() as logs:
            end = query.latest_offset(at, lenient.limits)
            assert entries(query, at, end) == 2, "the other topic goes on"
            query.commit(end)
            for _ in range(3):
                assert query.latest_offset(end, lenient.limits) == end
        query.close()
        warned = [line for line in logs if line["log_level"] == "warning"]
        assert len(warned) == 1, warned


def test_a_topic_re_created_under_a_running_query_is_not_mistaken_for_the_former_one(
    topic: TestTopic,
) -> None:
    """Pulsar's client subscribes to the new one by itself, and then it looks as if all before had been trimmed."""
    topic.publish(names(3), "unbatched")
    with planner(topic) as (query, options):
        at = query.latest_offset(query.initial_offset(), options.limits)
        query.commit(at)
        topic.publish(names(3), "unbatched")  # never read
        topic.delete()
        topic.create()
        topic.publish([b"other"], "unbatched")
        poll_for(lambda: topic.holds("q"), 60, "the client to subscribe again")
        with pytest.raises(DataLossError, match="is not the one that the checkpoint was made on"):
            query.latest_offset(at, options.limits)


def test_h14_a_ledger_that_ends_inside_a_message_is_not_released(topic: TestTopic) -> None:
    big = bytes(12 * 1024 * 1024)  # three chunks
    topic.publish([b"a"], "unbatched")
    topic.publish([big], "chunked")
    partition, ledger = topic.partition(), topic.ledgers()[0]
    catalog = Catalog(PulsarAdmin(topic.settings), [topic.name])
    guard = ChunkGuard("q", catalog.chunk_parts)
    safe = []
    for count in (1, 2, 3, 4):  # the snapshots that are taken while the message is being written
        view = PartitionView(partition, (Ledger(ledger, count, count * 4 * 1024 * 1024),))
        safe.append(guard.safe({partition: view}, {partition: Position(ledger, count)})[partition].entry)
    catalog.close()
    assert safe == [1, 1, 1, 4]


def test_h14_a_message_whose_chunks_lie_in_several_triggers_comes_once_with_its_last(
    topic: TestTopic,
) -> None:
    big = bytes(12 * 1024 * 1024)
    topic.publish([b"a"], "unbatched")
    topic.publish([big], "chunked")
    topic.publish([b"b"], "unbatched")
    with planner(topic, maxEntriesPerTrigger="1") as (query, options):
        at = query.initial_offset()
        rows: list[list[bytes]] = []
        for _ in range(5):
            end = query.latest_offset(at, options.limits)
            rows.append(
                [
                    value
                    for task in query.tasks(at, end)
                    for batch in read_range(task)
                    for value in batch.column("value").to_pylist()
                ]
            )
            query.commit(end)
            at = end
    assert rows == [[b"a"], [], [], [big], [b"b"]]


def test_h13_a_query_does_not_start_if_policies_delete_its_unread_messages(topic: TestTopic) -> None:
    path = f"/namespaces/{topic.settings.tenant}/{topic.settings.namespace}"
    topic.publish(names(3), "unbatched")
    topic.admin.request("POST", f"{path}/messageTTL", body=3600)
    with planner(topic) as (query, _), pytest.raises(TerminalError, match=r"is 3600 s.*set-message-ttl"):
        query.initial_offset()
    with planner(topic, failOnDataLoss="false") as (query, options), structlog.testing.capture_logs() as logs:
        at = query.initial_offset()
    assert ["set-message-ttl" in line["command"] for line in logs if "command" in line] == [True]
    with planner(topic) as (query, options), structlog.testing.capture_logs() as logs:
        assert query.latest_offset(at, options.limits) != at, "a query that has begun goes on, and warns"
    assert [line["log_level"] for line in logs if "command" in line] == ["warning"]


def test_h13_a_backlog_of_half_its_quota_is_reported_while_the_query_continues(topic: TestTopic) -> None:
    path = f"/namespaces/{topic.settings.tenant}/{topic.settings.namespace}/backlogQuota"
    quota = {"limitSize": 100_000, "policy": "producer_request_hold"}
    topic.admin.request("POST", f"{path}?backlogQuotaType=destination_storage", body=quota)
    with planner(topic) as (query, options), structlog.testing.capture_logs() as logs:
        at = query.initial_offset()
        topic.publish([bytes(6_000)] * 10, "unbatched")
        topic.publish([bytes(6_000)], "unbatched", 1)
        for _ in range(2):
            at = query.latest_offset(at, options.limits)
    (line,) = [line for line in logs if "quota" in line["event"]]
    assert (line["log_level"], line["partition"], line["quota"]) == ("warning", topic.partition(0), 100_000)
    assert 60_000 <= line["backlog_bytes"] <= 70_000


def test_h13_entries_that_expire_under_the_retention_subscription_fail_the_query_with_the_remedy(
    topic: TestTopic,
) -> None:
    topic.publish(names(3), "unbatched")
    with planner(topic) as (query, options):
        at = query.latest_offset(query.initial_offset(), options.limits)
        query.commit(at)
        topic.publish(names(3), "unbatched")
        topic.roll_over()
        topic.publish(names(3), "unbatched")
        topic.expire("q")
        topic.trim()
        with pytest.raises(DataLossError, match=r"of the offset is gone.*message TTL off on topics"):
            query.latest_offset(at, options.limits)
