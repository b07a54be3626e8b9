"""The loop alone: device → ingest → Pulsar → one stateless rule → Pulsar → push → device, beside Kafka → the same rule → Kafka.

200 readings a second, open loop, with the settings of this project; no other query runs. Every tenth reading calls for
a command. For the peer a client writes to the log and reads from it, so that its way is shorter by the two MQTT hops.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final

from bridge.errors import PulsebridgeError
from bridge.settings import PulsarSettings
from pulsebridge.downloads.spark_jars import delta_jars
from pulsebridge.local.stack import LocalStack
from sources.options import connection_options
from tests.bench.kafka import KafkaBroker, kafka_running, kafka_source_jars
from tests.bench.processes import bench_folder, pulsebridge, running
from tests.bench.results import Figure, percentile
from tests.support.spark import build_session, stop_session
from tests.support.waiting import poll_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.bench.loop import Fleet

__all__ = ["measure_alone"]

ROUNDS: Final = 3
RATE: Final = 200
WARM_S: Final = 40
WARM_AGAIN_S: Final = 10
SECONDS: Final = 30
EVERY: Final = 10
PEER: Final = "Spark's Kafka source and sink"
READING: Final = "id STRING, ts TIMESTAMP, glucose DOUBLE"
"""What a device sends, for from_json."""


def measure_alone(stack: LocalStack, fleet_of: type[Fleet], config: Path) -> tuple[list[Figure], list[str]]:
    """Return ``loop.alone.p50`` and ``.p99``."""
    left_out: list[str] = []
    late: dict[str, dict[float, list[float]]] = {}
    with bench_folder() as folder, ExitStack() as run:
        jars = list(delta_jars())
        kafka = None
        try:
            jars += kafka_source_jars()
            kafka = run.enter_context(kafka_running(folder))
        except (PulsebridgeError, ImportError) as e:
            left_out.append(f"Spark's Kafka source and sink beside the loop alone: {e}")
        for part in ("ingest", "push"):
            command = pulsebridge(part, "--config", str(config))
            log = folder / f"{part}.log"
            run.enter_context(running(command, log, ready=lambda log=log, part=part: _ready(log, part)))
        spark = build_session(
            folder, {"spark.eventLog.enabled": "false", "spark.jars": ",".join(map(str, jars))}, lasting=True
        )
        run.callback(stop_session, spark)
        for number in range(ROUNDS):
            warm = WARM_AGAIN_S if number else WARM_S
            ways = {"ours": lambda place, warm=warm: _ours(spark, stack, fleet_of, place, warm)}
            if kafka is not None:
                ways["kafka"] = lambda place, warm=warm: _kafka(spark, kafka, place, warm)
            for name, way in ways.items():
                waits = way(folder / f"{name}-{number}")
                for share in (0.5, 0.99):
                    late.setdefault(name, {}).setdefault(share, []).append(percentile(waits, share))
                print(
                    f"  {name}: p50 {percentile(waits, 0.5):.0f} ms, p99 {percentile(waits, 0.99):.0f} ms",
                    flush=True,
                )
    beside = {share: (PEER, median(of)) for share, of in late.get("kafka", {}).items()}
    return [
        Figure(f"loop.alone.p{share * 100:.0f}", median(of), "ms", *beside.get(share, ()))
        for share, of in late["ours"].items()
    ], left_out


def _ready(log: Path, part: str) -> bool:
    text = log.read_text(errors="replace")
    return "subscribed at the MQTT broker" in text if part == "ingest" else bool(text)


def _ours(spark: SparkSession, stack: LocalStack, fleet_of: type[Fleet], place: Path, warm: int) -> list[float]:
    from pyspark.sql import functions as F

    settings = PulsarSettings(service_url=stack.pulsar_url, admin_url=stack.admin_url)
    connection = connection_options(settings)
    messages = (
        spark.readStream.format("pulsebridge")
        .options(**connection, topic=settings.readings_topic("wearables"))
        .options(predefinedSubscription=place.name, startingOffsets="latest")
        .options(columns="payload,device,command_topic", waitingForNonExistedTopic="true")
        .load()
    )
    reading = F.from_json(F.col("payload").cast("string"), READING)
    commands = (
        messages.select("device", "command_topic", reading.alias("r"))
        .where("r.glucose < 70")
        .select(
            F.concat(F.lit(f"{place.name}-"), "r.id").alias("command_id"),
            "device",
            F.col("command_topic").alias("mqtt_topic"),
            F.encode(F.to_json(F.struct(F.col("r.id").alias("reading_id"))), "UTF-8").alias("payload"),
        )
    )
    query = (
        commands.writeStream.format("pulsebridge_commands")
        .options(**connection)
        .option("checkpointLocation", str(place))
        .start()
    )
    fleet = fleet_of(stack)
    try:
        fleet.start()
        fleet.send(warm, until=lambda: None)
        fleet.forget()
        fleet.send(SECONDS)
        poll_for(fleet.complete, 90, "a command for each reading that calls for one")
        return fleet.latencies_ms()
    finally:
        fleet.close()
        query.stop()


def _kafka(spark: SparkSession, broker: KafkaBroker, place: Path, warm: int) -> list[float]:
    from pyspark.sql import functions as F

    readings, commands = f"{place.name}-readings", f"{place.name}-commands"
    for topic in (readings, commands):
        broker.create(topic, 2)
    source: DataFrame = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", broker.address)
        .options(subscribe=readings, startingOffsets="earliest")
        .load()
    )
    reading = F.from_json(F.col("value").cast("string"), READING)
    rows = (
        source.select("key", reading.alias("r"))
        .where("r.glucose < 70")
        .select("key", F.to_json(F.struct(F.col("r.id").alias("reading_id"))).alias("value"))
    )
    query = (
        rows.writeStream.format("kafka")
        .option("kafka.bootstrap.servers", broker.address)
        .option("topic", commands)
        .option("checkpointLocation", str(place))
        .start()
    )
    due: dict[str, float] = {}
    arrived: dict[str, float] = {}
    try:
        with _reading(broker, commands, arrived):
            for seconds in (warm, SECONDS):
                due.clear()
                _send(broker, readings, seconds, due)
                poll_for(lambda: due.keys() <= arrived.keys(), 90, "a command for each reading that calls for one")
    finally:
        query.stop()
    return [(arrived[name] - at) * 1000 for name, at in due.items()]


def _send(broker: KafkaBroker, topic: str, seconds: int, due: dict[str, float]) -> None:
    send, wait = broker.sender(topic)
    begin = time.monotonic()
    for number in range(seconds * RATE):
        at = begin + number / RATE
        threading.Event().wait(max(0.0, at - time.monotonic()))
        low = number % EVERY == EVERY - 1
        name = f"{seconds}-{number}"
        if low:
            due[name] = at
        body = f'{{"id":"{name}","ts":"2026-01-01T00:00:00Z","glucose":{60.0 if low else 110.0}}}'
        send(number % 2, body.encode(), f"bench-{number % 20:03}", {})
    wait()


@contextmanager
def _reading(broker: KafkaBroker, topic: str, arrived: dict[str, float]) -> Iterator[None]:
    """Note when each command comes."""
    import json

    from confluent_kafka import Consumer

    ended = threading.Event()
    consumer = Consumer(
        {
            **broker.client,
            "group.id": topic,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 5,
        }
    )
    consumer.subscribe([topic])

    def read() -> None:
        while not ended.is_set():
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                arrived.setdefault(json.loads(message.value())["reading_id"], time.monotonic())

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        consumer.close()
