"""What our listeners ask of Spark's JVM for a micro-batch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sources.spark_internals import Event, JsonListener
from tests.support.jvm_calls import noted_calls
from tests.support.waiting import poll_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


class Noting(JsonListener):
    """Records the events."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.progress: list[dict[str, Any]] = []
        self.ended: list[str] = []

    def onQueryStarted(self, event: Any) -> None:
        self.started.append(event.name)

    def onQueryProgress(self, event: Any) -> None:
        assert isinstance(event, Event)
        self.progress.append(json.loads(event.progress.json))

    def onQueryTerminated(self, event: Any) -> None:
        self.ended.append(str(event.runId))


def test_a_progress_comes_as_json_and_no_figure_of_it_is_asked_for(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listener = Noting()
    spark.streams.addListener(listener)
    try:
        asked = noted_calls(monkeypatch)
        rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
        writer = rows.writeStream.queryName("listened").format("noop")
        query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
        assert query.awaitTermination(60), "the query did not end"
        poll_for(lambda: listener.ended, 60, "the event that the query has ended")
    finally:
        spark.streams.removeListener(listener)
    assert listener.started == ["listened"]
    assert listener.ended == [str(query.runId)]
    assert sum(one["numInputRows"] for one in listener.progress) == 10
    figures = ("durationMs", "inputRowsPerSecond", "stateOperators", "startOffset")
    assert [command for command in asked if any(name in command for name in figures)] == []
