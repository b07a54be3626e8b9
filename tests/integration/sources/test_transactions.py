"""Transactional topics on a Pulsar that has them: what is committed comes once, what is not never does (H15)."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bridge.errors import TransientError
from bridge.pulsar.admin import PulsarAdmin
from sources.offsets import Offset
from sources.options import parse
from sources.planning import Limits, Segment
from sources.reading import ReadTask, read_range
from sources.stream import StreamPlanner
from tests.support.folders import made_folder
from tests.support.pulsar_topics import TestTopic, topic_of
from tests.support.transactions import JavaClient, java_client, running_pulsar

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def folder(_nothing_left_behind: None) -> Iterator[Path]:
    made = made_folder("stack")
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture(scope="module")
def java(folder: Path) -> Iterator[tuple[TestTopic, JavaClient]]:
    with running_pulsar(folder, {"transactionCoordinatorEnabled": "true"}) as settings:
        with PulsarAdmin(settings, timeout_s=30) as admin:
            admin.provision_namespaces()
        with topic_of(settings) as topic, java_client(settings) as client:
            yield topic, client


def values(tasks: list[ReadTask]) -> list[bytes]:
    return [v for task in tasks for batch in read_range(task) for v in batch.column("value").to_pylist()]


@pytest.mark.thorough
def test_h15_committed_messages_come_once_aborted_never_and_open_ones_end_the_range(
    java: tuple[TestTopic, JavaClient],
) -> None:
    topic, client = java
    partition = topic.partition()
    given = topic.options(predefinedSubscription="q", startingOffsets="earliest", readIdleTimeout="1000")
    query = StreamPlanner(parse(given, streaming=True))

    def trigger(start: Offset) -> tuple[Offset, list[bytes]]:
        end = query.latest_offset(start, Limits())
        return end, values(query.tasks(start, end))

    try:
        at = query.initial_offset()
        client.send(partition, [b"plain"])
        kept, dropped = client.begin(), client.begin()
        client.send(partition, [b"kept 1"], kept)
        client.send(partition, [b"dropped 1", b"dropped 2"], dropped)
        client.send(partition, [b"between"])
        start, (at, rows) = at, trigger(at)
        assert rows == [b"plain"], "the range ends before the first open transaction"
        assert trigger(at) == (at, []), "and nothing is new while it is open"
        dropped.abort().get()
        assert trigger(at) == (at, []), "the other one is still open"
        client.send(partition, [b"kept 2"], kept)
        kept.commit().get()
        at, rows = trigger(at)
        assert rows == [b"kept 1", b"between", b"kept 2"], "markers and aborted messages are no rows"
        assert values(query.tasks(start, at)) == [b"plain", b"kept 1", b"between", b"kept 2"]
        query.commit(at)
        last = client.begin()
        client.send(partition, [b"aborted at the end"], last)
        last.abort().get()
        end, rows = trigger(at)
        assert rows == [], "a range that ends in an aborted message and its marker is done"
        assert end != at
    finally:
        query.close()


def test_h15_a_range_over_an_open_transaction_fails_for_another_try_and_is_never_taken_as_read(
    java: tuple[TestTopic, JavaClient],
) -> None:
    topic, client = java
    with topic_of(topic.settings) as other:
        client.send(other.partition(), [b"a"])
        options = parse(other.options(columns="value"), streaming=False)
        from sources.batch import batch_tasks

        (task,) = batch_tasks(options)
        opened = client.begin()
        client.send(other.partition(), [b"b"], opened)
        (segment,) = task.segments
        over = replace(
            task,
            segments=(Segment(segment.ledger, 0, 2),),
            idle_timeout_ms=1000,
        )
        with pytest.raises(TransientError, match="exists \\(open transaction\\) and did not arrive"):
            values([over])
        opened.commit().get()
        assert values([over]) == [b"a", b"b"]
