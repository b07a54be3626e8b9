"""A driver killed between offset log and commit log neither loses nor repeats a row."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sources.spark_features import spark_features
from tests.support import source_driver
from tests.support.pulsar_topics import TestTopic
from tests.support.spark_features import needs_limits
from tests.support.waiting import patient

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.stack, pytest.mark.spark, pytest.mark.chaos]


def publish(topic: TestTopic) -> Counter[str]:
    wanted: Counter[str] = Counter()
    for partition in range(2):
        for kind in ("batched", "unbatched"):
            payloads = [f"{partition}-{kind}-{n}".encode() for n in range(12)]
            topic.publish(payloads, kind, partition)
            wanted += Counter(payload.decode() for payload in payloads)
    return wanted


def check(folder: Path, batch: int, wanted: Counter[str]) -> None:
    before = source_driver.rows_of(folder / f"before-{batch}")
    assert before == source_driver.rows_of(folder / "rows" / str(batch)), "the batch that was run again differs"
    rows = source_driver.written(folder)
    assert Counter(row[0] for row in rows) == wanted
    assert len({tuple(row[1:]) for row in rows}) == sum(wanted.values())


def unfinished(folder: Path) -> set[str]:
    offsets = {path.name for path in (folder / "checkpoint" / "offsets").glob("[0-9]*")}
    return offsets - {path.name for path in (folder / "checkpoint" / "commits").glob("[0-9]*")}


def killed_run(options: dict[str, str], folder: Path, **when: object) -> None:
    given = json.dumps({"options": options, "folder": str(folder), **when})
    done = subprocess.run(
        [sys.executable, "-m", source_driver.__name__, given],
        capture_output=True, text=True, timeout=patient(150), check=False,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL, done.stderr[-2000:]


@pytest.mark.long
def test_a_driver_killed_after_its_commits_repeats_nothing(
    spark: SparkSession, topic: TestTopic, tmp_path: Path
) -> None:
    wanted = publish(topic)
    options = topic.options(predefinedSubscription="q", startingOffsets="earliest", maxEntriesPerTrigger="12")
    killed_run(options, tmp_path, kill_at_end=True)
    assert unfinished(tmp_path) == set()
    batches = {path.name for path in (tmp_path / "rows").iterdir()}
    more = publish(topic)
    source_driver.run(spark, options, tmp_path)
    rows = source_driver.written(tmp_path)
    assert Counter(row[0] for row in rows) == wanted + more
    assert len({tuple(row[1:]) for row in rows}) == sum((wanted + more).values())
    assert not list(tmp_path.glob("before-*")), f"none of the batches {batches} ran again"


@needs_limits
def test_a_driver_killed_between_offset_log_and_commit_repeats_that_batch_exactly(
    spark: SparkSession, topic: TestTopic, tmp_path: Path
) -> None:
    wanted = publish(topic)
    options = topic.options(predefinedSubscription="q", startingOffsets="earliest", maxEntriesPerTrigger="12")
    killed_run(options, tmp_path, kill_in=1)
    assert unfinished(tmp_path) == {"1"}
    source_driver.run(spark, options, tmp_path)
    check(tmp_path, 1, wanted)


def test_h12_a_first_batch_that_fails_starts_again_at_the_same_position(
    spark: SparkSession, topic: TestTopic, tmp_path: Path
) -> None:
    publish(topic)
    options = topic.options(predefinedSubscription="q", startingOffsets="latest", maxEntriesPerTrigger="12")
    source_driver.run(spark, options, tmp_path)  # no data yet, but the first offset was given out
    shutil.rmtree(tmp_path / "checkpoint")  # as if the driver had died before it wrote the offset log
    wanted = publish(topic)
    with pytest.raises(Exception, match="the batch fails after it was written"):
        source_driver.run(spark, options, tmp_path, fail_in=0)
    assert unfinished(tmp_path) == {"0"}
    wanted += publish(topic)
    source_driver.run(spark, options, tmp_path)
    if not spark_features().limits:  # Trigger.AvailableNow repeats the unfinished batch there, and ends
        source_driver.run(spark, options, tmp_path)
    check(tmp_path, 0, wanted)
