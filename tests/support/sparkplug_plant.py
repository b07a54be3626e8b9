"""A topic with the messages of edge nodes, and the tables of Sparkplug over it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bridge.contract import P_INGEST, P_TOPIC, encode_ingest
from bridge.settings import Settings
from sparkplug.rows import node_of
from sparkplug.tables import declare
from streaming import built_in
from streaming import pipelines as dp
from streaming.job import Job
from tests.support.pulsar_topics import TestTopic
from tests.support.sparkplug_node import Sent

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Plant"]


class Plant:
    """A topic with the messages of edge nodes, and the tables over it."""

    def __init__(self, spark: SparkSession, topic: TestTopic, root: Path, **streaming: Any) -> None:
        self.spark = spark
        self.topic = topic
        self.rebirth_s: float | None = None
        self.more: Callable[[], None] = lambda: None
        """Further declarations."""
        given = {"root": str(root), "topics": ["sparkplug"], "quality": {"interval": "0s"}, **streaming}
        self.settings = Settings.model_validate({"streaming": given}).model_copy(update={"pulsar": topic.settings})

    def send(self, sent: list[Sent]) -> None:
        """Publish messages as ingest does."""
        for one in sent:
            about = encode_ingest(link="l", protocol="5", rule="sparkplug", device=node_of(one.topic))
            properties = {P_INGEST: about, P_TOPIC: one.topic}
            self.topic.publish(
                [one.payload],
                "unbatched",
                partition_key=node_of(one.topic),
                properties=properties,
                event_timestamp=one.at_ms,
            )

    def job(self, *only: str) -> Job:
        """Return a job of these flows, or of all."""
        with dp.declaring(dp.Pipeline()) as pipeline:
            built_in.declare(self.settings, ["bronze"])
            declare(self.rebirth_s)
            self.more()
        pipeline.check()
        job = Job(self.spark, self.settings, pipeline, only)
        job.prepare()
        return job

    def run(self, *only: str) -> None:
        """Process what is there, as a driver that was just started."""
        self.job(*only).run(threading.Event(), available_now=True)

    def rows(self, table: str, *columns: str) -> list[tuple[Any, ...]]:
        """Return columns of a table in the order of the log."""
        frame = self.spark.read.format("delta").load(f"{self.settings.streaming.root}/{table}")
        order = "_position.ledger", "_position.entry", "_position.element"
        return [tuple(row) for row in frame.orderBy(*order).selectExpr(*columns).collect()]
