"""The job as users run it: spark-submit, killed and started again, stopped in order, one driver per checkpoint."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pulsar
import pytest
from deltalake import DeltaTable

from bridge import contract
from bridge.errors import TerminalError
from bridge.local.ports import free_ports
from bridge.provisioning import provision_commands
from bridge.pulsar_admin import PulsarAdmin
from streaming.checkpoints import CheckpointLock
from tests.support.bronze_rows import reading
from tests.support.endpoint import Endpoint
from tests.support.waiting import poll_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from bridge.local.stack import LocalStack
    from bridge.settings import PulsarSettings

pytestmark = [pytest.mark.spark, pytest.mark.stack]


class Driver:
    """``pulsebridge stream`` as a process; its command becomes spark-submit's JVM."""

    def __init__(self, settings: PulsarSettings, root: Path, log: Path) -> None:
        self.root = root
        self.log = log
        (port,) = free_ports(1)
        self.endpoint = Endpoint(port)
        sets = {
            "metrics.port": str(port),
            "pulsar.service_url": settings.service_url,
            "pulsar.admin_url": settings.admin_url,
            "pulsar.namespace": settings.namespace,
            "pulsar.system_namespace": settings.system_namespace,
            "streaming.root": str(root),
            "streaming.topics": '["wearables"]',
            "streaming.quality_interval_s": "0",
        }
        pairs = [word for path, value in sets.items() for word in ("--set", f"{path}={value}")]
        self._command = [sys.executable, "-c", "from bridge.cli import main; main()", "stream", *pairs]

    def start(self) -> None:
        with self.log.open("ab") as out:
            self._process = subprocess.Popen(
                self._command,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ},
                start_new_session=True,
            )

    def kill(self) -> None:
        """Kill -9 the JVM alone, and wait until the Python beside it has noticed."""
        if self._process.poll() is not None:
            return
        family = psutil.Process(self._process.pid).children(recursive=True)
        self._process.kill()
        self._process.wait()
        _, alive = psutil.wait_procs(family, timeout=30)
        assert not alive, f"outlived their JVM: {alive}"

    def end(self) -> int:
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(timeout=180)

    def check(self) -> bool:
        assert self._process.poll() is None, self.log.read_text()
        return True

    def ids(self, table: str) -> list[str]:
        self.check()
        if not list((self.root / table / "_delta_log").glob("*.json")):
            return []
        rows = DeltaTable(str(self.root / table)).to_pyarrow_table(
            columns=["payload"] if table == "bronze" else ["reading_id"]
        )
        if table != "bronze":
            return [str(v) for v in rows["reading_id"].to_pylist()]
        return [json.loads(v)["id"] for v in rows["payload"].to_pylist()]


def publish(client: pulsar.Client, topic: str, numbers: range) -> list[str]:
    producer = client.create_producer(contract.partition_name(topic, 0), batching_enabled=True)
    for n in numbers:
        message = reading(n, "a", n, 60 if n % 10 == 0 else 100)
        row = message.row()
        properties = {
            contract.P_INGEST: contract.encode_ingest(link="test", protocol="5", rule=None),
            contract.P_DEVICE: "a",
            contract.P_TOPIC: row["mqtt_topic"],
            contract.P_COMMAND_TOPIC: row["command_topic"],
        }
        producer.send_async(
            message.payload,
            lambda *_: None,
            partition_key="a",
            properties=properties,
            event_timestamp=int(message.arrival.timestamp() * 1000),
        )
    producer.flush()
    return [f"a-{n}" for n in numbers]


def commands(client: pulsar.Client, settings: PulsarSettings) -> Counter[str]:
    found: Counter[str] = Counter()
    reader = client.create_reader(settings.system_topic(contract.COMMANDS_TOPIC), pulsar.MessageId.earliest)
    while reader.has_message_available():
        body: dict[str, Any] = json.loads(reader.read_next(10_000).data())
        found[body["rule"] + "/" + body["reading_id"]] += 1
    return found


@pytest.mark.chaos
@pytest.mark.timeout(700)
def test_a_killed_driver_goes_on_where_it_was_and_sigterm_ends_it_in_order(
    stack: LocalStack, namespaces: PulsarSettings, spark: SparkSession, tmp_path: Path
) -> None:
    topic = namespaces.readings_topic("wearables")
    with PulsarAdmin(namespaces, timeout_s=30) as admin:
        admin.create_partitioned(topic, 1)
        provision_commands(admin)
    driver = Driver(namespaces, tmp_path / "lakehouse", tmp_path / "driver.log")
    client = pulsar.Client(namespaces.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        driver.start()
        sent = publish(client, topic, range(1, 301))
        poll_for(lambda: driver.ids("bronze"), 240, "first rows in bronze")
        driver.kill()

        driver.start()
        sent += publish(client, topic, range(301, 401))
        poll_for(lambda: len(set(driver.ids("silver"))) >= len(sent), 240, "all readings in silver")
        rows = driver.endpoint.value("pulsebridge_source_rows_total", query="bronze")
        assert rows >= 100, "what the second driver read"
        assert driver.endpoint.value("pulsebridge_source_behind_entries", query="bronze") == 0
        lock = CheckpointLock(spark, str(tmp_path / "lakehouse" / "checkpoints" / "silver"))
        with pytest.raises(TerminalError, match=r"in use by pid \d+"):
            lock.acquire(wait_s=0)
        expected = {f"glucose-low/a-{n}" for n in range(10, 401, 10)}
        poll_for(
            lambda: commands(client, namespaces).keys() >= expected, 120, "the commands of all low readings"
        )
        bronze, silver = driver.ids("bronze"), driver.ids("silver")
        assert driver.end() == 0, driver.log.read_text()
        lock.acquire()
        lock.release()
    finally:
        client.close()
        driver.kill()
    assert Counter(bronze) == Counter(sent)
    assert Counter(silver) == Counter(sent)
    said = [line for line in driver.log.read_text().splitlines() if " INFO " in line or "WARN " in line]
    assert said == []
