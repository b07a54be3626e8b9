"""A planner that is asked on and on, with nothing new to read: the same offset each time, and no growing memory.

Spark asks an idle query up to a hundred times a second; ``make bench ONLY=idle`` keeps one idle for ten minutes.
"""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator
from itertools import pairwise

import pytest

from bridge.settings.pulsar import PulsarSettings
from sources.options import parse
from sources.planning import Limits
from sources.stream import StreamPlanner
from tests.support.pulsar_topics import TestTopic, topic_of

pytestmark = pytest.mark.stack

WARM, ASKED, WINDOWS = 30, 60, 6
MOST_BYTES = 100
"""For each time: a value that is kept is larger with the objects around it, and kept in each window."""


@pytest.fixture
def topic(namespaces: PulsarSettings) -> Iterator[TestTopic]:
    with topic_of(namespaces, partitions=2) as found:
        yield found


def test_an_idle_query_plans_no_batch_and_its_memory_does_not_grow(topic: TestTopic) -> None:
    topic.publish([b"a", b"b"])
    options = topic.options(predefinedSubscription="q", startingOffsets="earliest")
    query = StreamPlanner(parse(options, streaming=True))

    def ask(times: int) -> int:
        for _ in range(times):
            assert query.latest_offset(end, Limits()).to_json() == end.to_json()
            query.report_latest()
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    try:
        end = query.latest_offset(query.initial_offset(), Limits())
        assert query.tasks(query.initial_offset(), end)
        query.commit(end)
        tracemalloc.start()
        held = [ask(WARM), *(ask(ASKED) for _ in range(WINDOWS))]
    finally:
        tracemalloc.stop()
        query.close()
    # What a window adds but once, a thread of the client or a cache of the interpreter has taken.
    assert min(b - a for a, b in pairwise(held)) < MOST_BYTES * ASKED, f"bytes after each {ASKED} times: {held}"
