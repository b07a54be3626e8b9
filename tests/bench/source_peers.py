"""The two sources that are compared, ours and Spark's own for Kafka: the same messages, columns and pace."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from bridge.contract import P_INGEST, P_TOPIC, encode_ingest, partition_name
from bridge.pulsar.admin import PulsarAdmin
from bridge.pulsar.client import PulsarClient
from bridge.pulsar.wire.batches import head_of
from bridge.settings import PulsarSettings
from sources.options import connection_options
from tests.bench.kafka import KafkaBroker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["PAYLOAD", "KafkaSide", "Message", "OurSide", "Side", "properties"]

PAYLOAD: Final = b'{"id":"device-000001","ts":"2026-01-01T00:00:00Z","glucose":112.0}' + b" " * 62
_BATCH: Final = 840
_DEVICES: Final = 100
_TICK_S: Final = 0.002


class Side(Protocol):
    """A log and its source in Spark."""

    name: str

    def fill(self, partitions: int, count: int) -> str:
        """Make a topic and store so many readings of a hundred devices in it. Returns its name."""

    def paced(self, topic: str, count: int, pace: float) -> None:
        """Send messages that say when they were due, ``pace`` a second, whatever happens behind them."""

    def stream(self, spark: SparkSession, topic: str, columns: str) -> DataFrame:
        """Return a new streaming query's rows from the topic's start; ``columns`` is value, pruned or all."""

    def batch(self, spark: SparkSession, topic: str, columns: str, tasks: int | None) -> DataFrame:
        """Return the topic's rows; ``tasks`` is ``minPartitions``."""


def properties(number: int) -> dict[str, str]:
    """Return what ingest writes beside a reading."""
    device = _device(number)
    return {
        P_TOPIC: f"wearables/{device}/glucose",
        P_INGEST: encode_ingest(link="pulsebridge", protocol="5", rule="bench", device=device),
    }


def _device(number: int) -> str:
    return f"device-{number:06}"


def _paced(count: int, pace: float, send: Callable[[list[bytes]], None]) -> None:
    begin, sent = time.time(), 0
    while sent < count:
        due = min(count, int((time.time() - begin) * pace) + 1)
        if due > sent:
            send([b"%.6f" % (begin + n / pace) for n in range(sent, due)])
            sent = due
        time.sleep(_TICK_S)


class Message(NamedTuple):
    """A message that a topic is filled with; ``head`` is what ``bridge.pulsar.wire.batches.head_of`` returned."""

    payload: bytes
    head: bytes
    event_ms: int


class OurSide:
    """Pulsar, and ``format("pulsebridge")``."""

    name = "ours"
    _SCHEMAS: Final = {
        "value": "value binary",
        "pruned": "value binary, __key string, __publishTime timestamp",
    }

    def __init__(self, settings: PulsarSettings, **options: str) -> None:
        self.settings = settings
        self._options = connection_options(settings) | options

    def fill(self, partitions: int, count: int) -> str:
        messages = [Message(PAYLOAD, head_of(_device(n), properties(n)), 1_767_225_600_000) for n in range(_DEVICES)]
        batch = [messages[n % _DEVICES] for n in range(_BATCH)]
        return self.store(partitions, (batch[: min(_BATCH, count - first)] for first in range(0, count, _BATCH)))

    def store(self, partitions: int, batches: Iterable[list[Message]]) -> str:
        """Make a topic and store these batches in its partitions in turn. Returns its name."""
        topic = self._topic(partitions)
        with self._sending(topic, partitions) as send:
            for number, batch in enumerate(batches):
                send(number % partitions, batch)
        return topic

    def paced(self, topic: str, count: int, pace: float) -> None:
        with self._sending(topic, 1) as send:
            _paced(count, pace, lambda times: send(0, [Message(at, b"", 0) for at in times]))

    def stream(self, spark: SparkSession, topic: str, columns: str) -> DataFrame:
        reader = spark.readStream.format("pulsebridge").options(**self._options, topic=topic)
        reader = reader.options(predefinedSubscription=f"bench-{uuid.uuid4().hex[:8]}", startingOffsets="earliest")
        schema = self._SCHEMAS.get(columns)
        return (reader if schema is None else reader.schema(schema)).load()

    def batch(self, spark: SparkSession, topic: str, columns: str, tasks: int | None) -> DataFrame:
        reader = spark.read.format("pulsebridge").options(**self._options, topic=topic)
        if tasks is not None:
            reader = reader.option("minPartitions", str(tasks))
        schema = self._SCHEMAS.get(columns)
        return (reader if schema is None else reader.schema(schema)).load()

    def _topic(self, partitions: int) -> str:
        topic = self.settings.readings_topic(f"bench-{uuid.uuid4().hex[:8]}")
        with PulsarAdmin(self.settings) as admin:
            admin.create_partitioned(topic, partitions)
        return topic

    @contextmanager
    def _sending(self, topic: str, partitions: int) -> Iterator[Callable[[int, list[Message]], None]]:
        """Give what sends messages to a partition; at the end all are stored. Raises RuntimeError when one is not."""
        lost: list[Any] = []
        pending = threading.Semaphore(50)

        def stored(error: Any) -> None:
            if error is not None:
                lost.append(error)
            pending.release()

        with PulsarClient(self.settings) as client:
            producers = [client.batch_producer(partition_name(topic, n)) for n in range(partitions)]

            def send(partition: int, messages: list[Message]) -> None:
                if not pending.acquire(timeout=60):
                    raise RuntimeError("Pulsar stored nothing for a minute")
                producers[partition].send(messages, stored)

            yield send
            for _ in range(50):
                if not pending.acquire(timeout=60):
                    raise RuntimeError("Pulsar stored nothing for a minute")
        if lost:
            raise RuntimeError(f"a message was not stored: {lost[0]}")


class KafkaSide:
    """Kafka, and ``format("kafka")``."""

    name = "kafka"
    _COLUMNS: Final = {
        "value": ("value",),
        "pruned": ("value", "CAST(key AS STRING) AS key", "timestamp"),
        "all": ("*",),
    }

    def __init__(self, broker: KafkaBroker) -> None:
        self._broker = broker

    def fill(self, partitions: int, count: int) -> str:
        topic = self._topic(partitions)
        send, wait = self._broker.sender(topic)
        devices = [(_device(n), properties(n)) for n in range(_DEVICES)]
        for number in range(count):
            send(number // _BATCH % partitions, PAYLOAD, *devices[number % _DEVICES])
        wait()
        return topic

    def paced(self, topic: str, count: int, pace: float) -> None:
        send, wait = self._broker.sender(topic)

        def send_all(times: list[bytes]) -> None:
            for at in times:
                send(0, at, "", {})

        _paced(count, pace, send_all)
        wait()

    def stream(self, spark: SparkSession, topic: str, columns: str) -> DataFrame:
        return self._load(spark.readStream.format("kafka"), topic, columns)

    def batch(self, spark: SparkSession, topic: str, columns: str, tasks: int | None) -> DataFrame:
        reader = spark.read.format("kafka")
        return self._load(reader if tasks is None else reader.option("minPartitions", str(tasks)), topic, columns)

    def _load(self, reader: Any, topic: str, columns: str) -> DataFrame:
        options = {
            "kafka.bootstrap.servers": self._broker.address,
            "subscribe": topic,
            "startingOffsets": "earliest",
        }
        options["includeHeaders"] = str(columns == "all").lower()
        frame: DataFrame = reader.options(**options).load()
        return frame.selectExpr(*self._COLUMNS[columns])

    def _topic(self, partitions: int) -> str:
        topic = f"bench-{uuid.uuid4().hex[:8]}"
        self._broker.create(topic, partitions)
        return topic
