"""One task against real Pulsar: every kind of entry, borders of chunked messages, ends that never arrive, trimming."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from bridge.errors import DataLossError, TransientError
from bridge.settings.pulsar import PulsarSettings
from sources.batch import batch_tasks
from sources.options import parse
from sources.planning import Segment
from sources.reading import ReadTask, read_range
from tests.support.pulsar_topics import TestTopic, topic_of

pytestmark = pytest.mark.stack

BIG = bytes(12 * 1024 * 1024)  # three chunks


@pytest.fixture
def topic(namespaces: PulsarSettings) -> Iterator[TestTopic]:
    with topic_of(namespaces) as found:
        yield found


def tasks(topic: TestTopic, **options: str) -> list[ReadTask]:
    return batch_tasks(parse(topic.options(columns="value,entry_id,batch_index", **options), streaming=False))


def values(task: ReadTask) -> list[bytes]:
    return [value for batch in read_range(task) for value in batch.column("value").to_pylist()]


def cut(task: ReadTask, first: int, stop: int) -> ReadTask:
    """The same task for entries ``first`` to ``stop - 1`` of its one ledger."""
    (segment,) = task.segments
    before = (Segment(segment.ledger, 0, first),) if first else ()
    return replace(task, segments=(Segment(segment.ledger, first, stop),), before=before, idle_timeout_ms=3000)


def test_every_kind_of_entry_comes_whole_and_in_order_over_ledgers(topic: TestTopic) -> None:
    wanted: list[bytes] = []
    for round_ in range(2):
        for kind in ("batched", "unbatched", "compressed", "lz4", "zlib", "snappy"):
            payloads = [f"{round_}-{kind}-{n}".encode() for n in range(25)]
            topic.publish(payloads, kind, partition_key="k", properties={"a": "b"})
            wanted += payloads
        topic.roll_over()
    (task,) = tasks(topic)
    assert len(task.segments) == 2
    assert values(task) == wanted
    assert values(task) == wanted, "a range read twice gives the same rows"
    split = [value for part in tasks(topic, minPartitions="7") for value in values(part)]
    assert split == wanted


def test_a_compacted_topic_is_read_whole_also_where_compaction_has_run(topic: TestTopic) -> None:
    for round_ in range(3):
        topic.publish([b"%d" % round_], "unbatched", partition_key="k")
        topic.publish([b"%d a" % round_, b"%d b" % round_], "batched", partition_key="l")
    topic.compact()
    (task,) = tasks(topic)
    wanted = [text % n for n in range(3) for text in (b"%d", b"%d a", b"%d b")]
    assert values(task) == wanted, "what a later message replaced is a message all the same"
    topic.publish([b"after"], "unbatched", partition_key="k")
    topic.roll_over()
    topic.compact()  # moves the position of Pulsar's own subscription, which retains all until then
    topic.trim()
    with pytest.raises(DataLossError, match="no longer in Pulsar"):
        values(task)


def test_h14_a_chunked_message_belongs_to_the_range_with_its_last_chunk(topic: TestTopic) -> None:
    topic.publish([b"a"], "unbatched")
    topic.publish([BIG], "chunked")
    topic.publish([b"b"], "unbatched")
    (task,) = tasks(topic)
    assert task.segments[0].entries == 5
    assert values(task) == [b"a", BIG, b"b"]
    for border in range(6):
        left = values(cut(task, 0, border)) if border else []
        right = values(cut(task, border, 5)) if border < 5 else []
        assert left + right == [b"a", BIG, b"b"], f"cut before entry {border}"
        assert (BIG in left) == (border >= 4)


def test_h15_a_range_whose_end_never_arrives_does_not_wait_for_it(topic: TestTopic) -> None:
    topic.publish([b"a"], "unbatched")
    topic.publish([BIG], "chunked")
    (task,) = tasks(topic)
    inside = cut(task, 0, 3)  # ends in the middle of the message
    inside = replace(inside, idle_timeout_ms=3_600_000)  # longer than this test may take
    assert values(inside) == [b"a"]


def test_h15_what_cannot_be_classified_fails_the_task_for_another_try(topic: TestTopic) -> None:
    topic.publish([b"a"], "unbatched")
    (task,) = tasks(topic)
    with pytest.raises(TransientError, match="when asked for a missing entry"):
        values(cut(task, 0, 2))  # the second entry does not exist yet: neither there nor gone


def test_trimmed_entries_fail_the_task_with_the_remedy_unless_loss_is_allowed(topic: TestTopic) -> None:
    topic.publish([b"1", b"2"], "unbatched")
    topic.roll_over()
    topic.publish([b"3"], "unbatched")
    (task,) = tasks(topic)
    topic.trim()
    with pytest.raises(DataLossError, match=r"entry \d+:0, which the query .* no longer in Pulsar — keep message TTL"):
        values(task)
    assert values(replace(task, fail_on_data_loss=False)) == [b"3"]


def test_null_and_empty_payloads_keys_and_properties_come_as_they_are(topic: TestTopic) -> None:
    topic.publish([b"", b"x"], "unbatched", partition_key="ключ", properties={"p": "ü"}, event_timestamp=5)
    (task,) = tasks(topic)
    (batch,) = read_range(
        replace(task, columns=("value", "__key", "__messageProperties", "__eventTime", "__messageId"))
    )
    rows = batch.to_pylist()
    assert [row["value"] for row in rows] == [b"", b"x"]
    assert {row["__key"] for row in rows} == {"ключ"}
    assert rows[0]["__messageProperties"] == [("p", "ü")]
    assert rows[0]["__eventTime"].timestamp() == 0.005


def test_a_starting_time_gives_what_was_published_since(topic: TestTopic) -> None:
    for n in range(6):
        topic.publish([b"%d" % n], "unbatched")
    (task,) = tasks(topic)
    (batch,) = read_range(replace(task, columns=("value", "__publishTime")))
    rows = [(int(row["__publishTime"].timestamp() * 1000), row["value"]) for row in batch.to_pylist()]
    at = rows[3][0]
    found = [value for part in tasks(topic, startingTime=str(at)) for value in values(part)]
    assert found == [value for time_ms, value in rows if time_ms >= at]
    assert tasks(topic, startingTime=str(rows[-1][0] + 60_000)) == []
