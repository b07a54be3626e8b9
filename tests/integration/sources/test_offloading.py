"""Ledgers that Pulsar has moved to tiered storage: read like the others, trimmed like the others, never passed over."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from bridge.errors import DataLossError, TransientError
from bridge.pulsar.admin import PulsarAdmin
from sources.offsets import Offset
from sources.options import parse
from sources.planning import Limits
from sources.reading import read_range
from sources.stream import StreamPlanner
from tests.support.folders import made_folder
from tests.support.offloading import offload, offloading, tier
from tests.support.pulsar_topics import TestTopic, topic_of
from tests.support.transactions import running_pulsar

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]

KINDS: Final = ("batched", "unbatched", "compressed")
EACH: Final = 300


@pytest.fixture(scope="module")
def folder(_nothing_left_behind: None) -> Iterator[Path]:
    made = made_folder("stack")
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture
def topic(folder: Path) -> Iterator[TestTopic]:
    """Three closed ledgers with a kind of entry each, and an open one."""
    with running_pulsar(folder, offloading(folder)) as settings:
        with PulsarAdmin(settings, timeout_s=30) as admin:
            admin.provision_namespaces()
        with topic_of(settings) as made:
            for kind in KINDS:
                made.publish([f"{kind} {number}".encode() for number in range(EACH)], kind)
                made.roll_over()
            made.publish([b"last"])
            yield made


def read(query: StreamPlanner, begin: Offset, end: Offset) -> list[dict[str, Any]]:
    tasks = query.tasks(begin, end)
    return [row for task in tasks for batch in read_range(task) for row in batch.to_pylist()]


@pytest.mark.long
def test_offloaded_ledgers_are_read_in_any_cuts_and_never_passed_over(topic: TestTopic, folder: Path) -> None:
    given = topic.options(predefinedSubscription="q", startingOffsets="earliest", readIdleTimeout="1000")
    query = StreamPlanner(parse(given, streaming=True))
    try:
        begin = query.initial_offset()
        end = query.latest_offset(begin, Limits())
        before = read(query, begin, end)
        wanted = [f"{kind} {number}".encode() for kind in KINDS for number in range(EACH)]
        assert [row["value"] for row in before] == [*wanted, b"last"]

        gone = offload(topic)
        assert query.latest_offset(begin, Limits()) == end, "offloading is nothing new to read"
        topic.unload()  # the broker forgets what it has read
        (stored,) = tier(folder).rglob(f"{gone[1]}-*")
        hidden = stored.rename(folder / "hidden")
        with pytest.raises(TransientError, match=r"missing entry.*the storage that it offloads to"):
            read(query, begin, end)
        hidden.rename(stored)
        topic.unload()
        assert read(query, begin, end) == before

        for entries in (7, 100):
            at, rows = begin, []
            while (following := query.latest_offset(at, Limits(entries=entries))) != at:
                rows += read(query, at, following)
                at = following
            assert (at, rows) == (end, before), f"{entries} entries in a trigger"

        query.commit(end)
        topic.trim()
        assert not set(gone) & set(topic.ledgers())
        with pytest.raises(DataLossError, match=r"no longer in Pulsar.*failOnDataLoss=false"):
            read(query, begin, end)
    finally:
        query.close()
