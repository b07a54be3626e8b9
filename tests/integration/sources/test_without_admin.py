"""While Pulsar's admin cannot be reached, queries go on by the binary protocol, and say so once."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
import structlog

from bridge.errors import TransientError
from bridge.pulsar.client import PulsarClient
from bridge.settings.pulsar import PulsarSettings
from sources.batch import batch_tasks
from sources.binary import BinaryTopics
from sources.offsets import Offset
from sources.options import parse
from sources.planning import Limits
from sources.reading import ReadTask, read_range
from sources.snapshot import view_of
from sources.stream import StreamPlanner
from tests.support.pulsar_topics import TestTopic
from tests.support.tcp_proxy import TcpProxy
from tests.support.waiting import poll_for

pytestmark = pytest.mark.stack


@pytest.fixture
def admin(namespaces: PulsarSettings) -> Iterator[TcpProxy]:
    url = urlsplit(namespaces.admin_url)
    with TcpProxy(url.hostname or "", url.port or 0) as proxy:
        yield proxy


def options(topic: TestTopic, admin: TcpProxy, **more: str) -> dict[str, str]:
    return topic.options(**more) | {"admin.url": f"http://127.0.0.1:{admin.port}"}


def values(tasks: list[ReadTask]) -> list[bytes]:
    return [v for task in tasks for batch in read_range(task) for v in batch.column("value").to_pylist()]


def test_the_binary_protocol_shows_the_same_ledgers_as_the_admin(topic: TestTopic) -> None:
    topic.publish([b"%d" % n for n in range(37)], "unbatched")
    topic.roll_over()
    topic.publish([b"x" * 100] * 9, "batched")
    topic.publish([bytes(12 * 1024 * 1024)], "chunked")
    topic.roll_over()
    topic.publish([b"z"] * 5, "unbatched")
    shown = view_of("p", topic.admin.internal_stats(topic.partition()))
    with PulsarClient(topic.settings) as client:
        found = BinaryTopics(lambda: client).view(topic.partition(), None, None)
        empty = BinaryTopics(lambda: client).view(topic.partition(1), None, None)
    assert [(of.id, of.entries) for of in found.ledgers] == [(of.id, of.entries) for of in shown.ledgers]
    assert empty.ledgers == ()


def test_a_query_goes_on_while_the_admin_is_away_and_says_once_what_is_off(topic: TestTopic, admin: TcpProxy) -> None:
    given = options(topic, admin, predefinedSubscription="q", startingOffsets="earliest")
    query = StreamPlanner(parse(given, streaming=True))

    def trigger(start: Offset) -> tuple[Offset, list[bytes]]:
        end = query.latest_offset(start, Limits())
        rows = values(query.tasks(start, end))
        query.commit(start)
        return end, rows

    try:
        start = at = query.initial_offset()
        topic.publish([b"1"], "unbatched")
        at, rows = trigger(at)
        assert rows == [b"1"]
        at = trigger(at)[0]  # the first batch is known to be committed
        with admin.away(), structlog.testing.capture_logs() as logs:
            topic.publish([b"2", b"3"], "unbatched")
            at, rows = trigger(at)
            assert rows == [b"2", b"3"]
            topic.roll_over()
            topic.publish([b"4"], "unbatched")
            topic.publish([b"5"], "unbatched", 1)
            at, rows = trigger(at)
            assert rows == [b"4", b"5"]
            assert trigger(at) == (at, [])
        (line,) = [line for line in logs if "binary protocol" in line["event"]]
        assert line["log_level"] == "warning"
        assert "new partitions" in line["disabled"]
        topic.publish([b"6"], "unbatched")
        with structlog.testing.capture_logs() as logs:

            def back() -> bool:
                query.latest_offset(at, Limits())
                return any("admin is reachable" in line["event"] for line in logs)

            poll_for(back, 30, "the admin to be used again")
        assert trigger(at)[1] == [b"6"]
        replayed = values(query.tasks(start, at))
        assert sorted(replayed) == [b"1", b"2", b"3", b"4", b"5"], "the same ranges by the admin's view"
    finally:
        query.close()


def test_a_checkpoint_is_continued_and_a_batch_read_while_the_admin_is_away(topic: TestTopic, admin: TcpProxy) -> None:
    topic.publish([b"1", b"2"], "unbatched")
    given = options(topic, admin, predefinedSubscription="q", startingOffsets="earliest")
    parsed = parse(given, streaming=True)
    by_pattern = options(topic, admin, topicsPattern=f"{topic.name}.*")
    del by_pattern["topic"]
    query = StreamPlanner(parsed)
    at = query.latest_offset(query.initial_offset(), Limits(entries=1))
    query.close()
    topic.roll_over()
    topic.publish([b"3"], "unbatched")
    with admin.away():
        query = StreamPlanner(parsed)
        end = query.latest_offset(at, Limits())
        assert values(query.tasks(at, end)) == [b"2", b"3"]
        query.close()
        assert values(batch_tasks(parse(options(topic, admin), streaming=False))) == [b"1", b"2", b"3"]
        pattern = parse(by_pattern, streaming=False)
        with pytest.raises(TransientError, match="only Pulsar's admin lists topics"):
            batch_tasks(pattern)
