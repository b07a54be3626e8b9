"""Planner, Python workers, driver and Pulsar killed with -9 at random under a query into bronze, while a writer publishes.

``TEST_SOURCE_CHAOS_S=600`` kills for ten minutes.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

from pulsebridge.local.stack import LocalStack
from tests.chaos.source_world import Writer, source_world
from tests.support.pulsar_topics import topic_of
from tests.support.stack import provisioned

pytestmark = [pytest.mark.stack, pytest.mark.spark, pytest.mark.chaos, pytest.mark.long]

SECONDS = float(os.environ.get("TEST_SOURCE_CHAOS_S", "30"))
RATE = 1000
"""Messages in a second, beside bursts."""


@pytest.mark.timeout(300 + 2 * SECONDS)
@pytest.mark.parametrize("hot", [True, False], ids=["hot", "cold"])
def test_each_message_is_in_the_table_once_with_any_process_killed(
    private_stack: LocalStack, tmp_path: Path, request: pytest.FixtureRequest, hot: bool
) -> None:
    seed = int(os.environ.get("TEST_SEED", time.time_ns() % 1_000_000))
    print(f"TEST_SEED={seed}")
    with (
        topic_of(provisioned(private_stack), partitions=4) as topic,
        source_world(private_stack, topic, tmp_path, hot=hot) as one,
    ):
        one.start()
        writer = Writer(topic, RATE)
        try:
            one.at_random(SECONDS, random.Random(seed), writer, _say)
            batches = one.batches()
        finally:
            writer.end()
        spark = request.getfixturevalue("spark")
        one.finish(spark)
        found = one.account(spark, writer.receipts)
        print(
            f"seed {seed}: killed {dict(one.kills)}, {one.failures()} queries failed, {batches} batches; {writer.sent} messages, "
            f"{found.rows} rows, {found.repeated} sent twice by the writer"
        )
        assert found.faults() == ""
        assert found.rows >= writer.sent


def _say(line: str) -> None:
    print(time.strftime("%H:%M:%S"), line, flush=True)
