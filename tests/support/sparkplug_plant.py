"""A topic with the messages of edge nodes, and the tables of Sparkplug over it, also in a process that is killed:
``python -c … FOLDER SETTINGS FLOWS``.
"""

from __future__ import annotations

import sys
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
from tests.support.killed_process import run_killed
from tests.support.pulsar_topics import TestTopic
from tests.support.sparkplug_node import Sent

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Plant", "main"]


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
        producer = self.topic.client.create_producer(self.topic.partition(), batching_enabled=False)
        for one in sent:
            node = node_of(one.topic)
            about = encode_ingest(link="l", protocol="5", rule="sparkplug", device=node)
            producer.send(
                one.payload,
                properties={P_INGEST: about, P_TOPIC: one.topic},
                partition_key=node,
                event_timestamp=one.at_ms,
            )
        producer.close()

    def job(self, *only: str) -> Job:
        """Return a job of these flows, or of all."""
        return _job(self.spark, self.settings, only, self.rebirth_s, self.more)

    def run(self, *only: str) -> None:
        """Process what is there, as a driver that was just started."""
        self.job(*only).run(threading.Event(), available_now=True)

    def run_killed_at(self, point: str, *only: str) -> None:
        """Process what is there in a driver that kills itself at a point."""
        folder = Path(self.settings.streaming.root).with_name("driver")
        run_killed("tests.support.sparkplug_plant", point, str(folder), self.settings.model_dump_json(), *only)

    def rows(self, table: str, *columns: str) -> list[tuple[Any, ...]]:
        """Return columns of a table in the order of the log."""
        frame = self.spark.read.format("delta").load(f"{self.settings.streaming.root}/{table}")
        order = "_position.ledger", "_position.entry", "_position.element"
        return [tuple(row) for row in frame.orderBy(*order).selectExpr(*columns).collect()]


def _job(
    spark: SparkSession,
    settings: Settings,
    only: tuple[str, ...],
    rebirth_s: float | None = None,
    more: Callable[[], None] = lambda: None,
) -> Job:
    with dp.declaring(dp.Pipeline()) as pipeline:
        built_in.declare(settings, ["bronze"])
        declare(rebirth_s)
        more()
    pipeline.check()
    job = Job(spark, settings, pipeline, only)
    job.prepare()
    return job


def main() -> None:
    """Process what is there."""
    from tests.support.spark import build_session

    folder, settings, *only = sys.argv[1:]
    job = _job(build_session(Path(folder)), Settings.model_validate_json(settings), tuple(only))
    job.run(threading.Event(), available_now=True)
