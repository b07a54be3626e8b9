"""The peer: a Kafka broker of one node, and the jars of Spark's own Kafka source. Both come by their coordinates."""

from __future__ import annotations

import base64
import subprocess
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from pulsebridge.downloads.ivy import Artifact
from pulsebridge.downloads.spark_jars import spark_modules
from pulsebridge.local.ports import free_ports, is_free
from tests.bench.processes import running
from tests.support.ivy_jars import jars, java_home

__all__ = ["KafkaBroker", "kafka_running", "kafka_source_jars"]

_KAFKA: Final = (
    Artifact("org.apache.kafka", "kafka_2.13", "4.3.1", transitive=True),
    Artifact("org.apache.logging.log4j", "log4j-slf4j-impl", "2.24.3", transitive=True),
    Artifact("org.apache.logging.log4j", "log4j-core", "2.24.3", transitive=True),
)
_LOGGING: Final = """<?xml version="1.0" encoding="UTF-8"?>
<Configuration status="WARN"><Appenders><Console name="C"/></Appenders>
<Loggers><Root level="WARN"><AppenderRef ref="C"/></Root></Loggers></Configuration>
"""
_PROPERTIES: Final = """process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={data}
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
auto.create.topics.enable=false
num.partitions=1
"""
_QUEUE: Final = 100_000


class KafkaBroker:
    """A running broker, and a client that fills its topics."""

    def __init__(self, address: str) -> None:
        self.client: dict[str, Any] = {"bootstrap.servers": address, "log_level": 0}
        """What its clients are made with."""
        self.address = address

    def create(self, topic: str, partitions: int) -> None:
        """Make a topic."""
        from confluent_kafka.admin import AdminClient, NewTopic

        admin = AdminClient(self.client)
        admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(30)

    def sender(self, topic: str) -> tuple[Callable[[int, bytes, str, Mapping[str, str]], None], Callable[[], None]]:
        """Return what sends a message, by partition, payload, key and headers, and what waits until all are stored."""
        from confluent_kafka import Producer

        lost: list[Any] = []

        def stored(error: Any, _message: Any) -> None:
            if error is not None:
                lost.append(error)

        producer = Producer({**self.client, "linger.ms": 1, "queue.buffering.max.messages": _QUEUE})

        def send(partition: int, payload: bytes, key: str, headers: Mapping[str, str]) -> None:
            while True:
                try:
                    producer.produce(
                        topic,
                        payload,
                        key,
                        partition,
                        on_delivery=stored,
                        headers=[(name, value.encode()) for name, value in headers.items()],
                    )
                except BufferError:
                    producer.poll(0.05)
                    continue
                producer.poll(0)
                return

        def wait() -> None:
            producer.flush(60)
            if lost:
                raise RuntimeError(f"a message was not stored: {lost[0]}")

        return send, wait


@contextmanager
def kafka_running(folder: Path) -> Iterator[KafkaBroker]:
    """Run a broker on free ports until the block ends. Raises TransientError when its jars cannot be had."""
    home = jars("kafka-broker", _KAFKA)
    java = java_home()
    port, controller = free_ports(2)
    (folder / "kafka").mkdir()
    properties, logging = folder / "kafka/server.properties", folder / "kafka/log4j2.xml"
    properties.write_text(_PROPERTIES.format(port=port, controller=controller, data=folder / "kafka/data"))
    logging.write_text(_LOGGING)
    base = [f"{java}/bin/java", f"-Dlog4j2.configurationFile={logging}", "-cp", f"{home}/*"]
    subprocess.run(
        [*base, "kafka.tools.StorageTool", "format", "-t", _cluster_id(), "-c", str(properties)],
        check=True,
        capture_output=True,
    )
    broker = KafkaBroker(f"127.0.0.1:{port}")
    command = [base[0], "-Xmx1g", "-XX:+UseSerialGC", *base[1:], "kafka.Kafka", str(properties)]
    with running(command, folder / "kafka.log", ready=lambda: not is_free(port) and _answers(broker)):
        yield broker


def kafka_source_jars() -> list[Path]:
    """Return the jars of the Kafka source of the installed Spark. Raises TransientError when they cannot be had."""
    source = Artifact("org.apache.spark", "spark-sql-kafka-0-10_2.13", version("pyspark"), transitive=True)
    return sorted(jars(f"kafka-source-{source.version}", (source,), spark_modules()).glob("*.jar"))


def _answers(broker: KafkaBroker) -> bool:
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    try:
        AdminClient(broker.client).list_topics(timeout=1)
    except KafkaException:
        return False
    return True


def _cluster_id() -> str:
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
