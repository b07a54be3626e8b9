"""The job as users run it: spark-submit, killed and started again, stopped in order, one driver per checkpoint."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pulsar
import pytest
from deltalake import DeltaTable
from streaming.checkpoints import CheckpointLock

from bridge import contract
from bridge.errors import TerminalError
from bridge.local.ports import free_ports
from bridge.provisioning import provision_commands
from bridge.pulsar_admin import PulsarAdmin
from bridge.settings.loading import conf_path
from tests.support.bronze_rows import reading
from tests.support.endpoint import Endpoint
from tests.support.waiting import patient, poll_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from bridge.local.stack import LocalStack
    from bridge.settings import PulsarSettings

pytestmark = [pytest.mark.spark, pytest.mark.stack]


DAY = ("--from", "2026-01-02", "--to", "2026-01-03")
"""Of the readings' arrival."""
TABLES = ("bronze", "silver", "quarantine", "gold", "late")
ONCE = "  - {name: once, metric: glucose, kind: below, limit: 70, clear: 1000}\n"
"""An alert that is never over, after those that are shipped."""


class Driver:
    """``pulsebridge stream`` as a process; its command becomes spark-submit's JVM."""

    def __init__(self, settings: PulsarSettings, root: Path, log: Path, rules: Path) -> None:
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
            "streaming.gold_trigger_s": "2",
            "streaming.queries": '["bronze", "silver", "alerts", "gold"]',
            "streaming.rules": str(rules),
        }
        pairs = [word for path, value in sets.items() for word in ("--set", f"{path}={value}")]
        self._cli = [sys.executable, "-c", "from bridge.cli import main; main()"]
        self._command = [*self._cli, "stream", *pairs]
        self._pairs = pairs

    def start(self, master: str = "local[2]") -> None:
        with self.log.open("ab") as out:
            self._process = subprocess.Popen(
                [*self._command, "--set", f"streaming.master={master}"],
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ},
                start_new_session=True,
            )

    def tables(self, command: str, *words: str) -> str:
        """Run ``pulsebridge tables`` to its end, by spark-submit as users do; return what it prints."""
        ended = subprocess.run(
            [*self._cli, "tables", command, *self._pairs, *words],
            capture_output=True,
            text=True,
            timeout=patient(240),
            check=False,
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    def kill(self) -> None:
        """Kill -9 the JVM alone, and wait until the Python beside it has noticed."""
        if self._process.poll() is not None:
            return
        family = psutil.Process(self._process.pid).children(recursive=True)
        self._process.kill()
        self._process.wait()
        _, alive = psutil.wait_procs(family, timeout=patient(30))
        assert not alive, f"outlived their JVM: {alive}"

    def end(self) -> int:
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(timeout=patient(180))

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

    def read(self, table: str) -> list[dict[str, Any]]:
        self.check()
        if not list((self.root / table / "_delta_log").glob("*.json")):
            return []
        rows: list[dict[str, Any]] = DeltaTable(str(self.root / table)).to_pyarrow_table().to_pylist()
        return rows


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
    producer.close()
    return [f"a-{n}" for n in numbers]


@contextmanager
def readings_meanwhile(client: pulsar.Client, topic: str, first: int) -> Iterator[list[str]]:
    """Publish nine readings every two seconds, none of them low, until the block ends; yields their ids."""
    done = threading.Event()
    sent: list[str] = []

    def run() -> None:
        for n in count(first, 10):
            sent.extend(publish(client, topic, range(n, n + 9)))
            if done.wait(2):
                return

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield sent
    finally:
        done.set()
        thread.join()


def stricter(folder: Path, least: float) -> Path:
    """Return a copy of the shipped suite in which glucose has another least value."""
    suite = json.loads(conf_path("expectations/silver.json").read_text("utf-8"))
    (rule,) = (e for e in suite["expectations"] if e["meta"]["rule"] == "glucose_range")
    rule["kwargs"]["min_value"] = least
    (folder / "stricter.json").write_text(json.dumps(suite), "utf-8")
    return folder / "stricter.json"


def commands(client: pulsar.Client, settings: PulsarSettings) -> Counter[str]:
    found: Counter[str] = Counter()
    reader = client.create_reader(settings.system_topic(contract.COMMANDS_TOPIC), pulsar.MessageId.earliest)
    while reader.has_message_available():
        body: dict[str, Any] = json.loads(reader.read_next(10_000).data())
        found[body["rule"] + "/" + body["reading_id"]] += 1
    reader.close()
    return found


@pytest.mark.chaos
@pytest.mark.long
@pytest.mark.timeout(700)
def test_a_killed_driver_goes_on_where_it_was_and_sigterm_ends_it_in_order(
    stack: LocalStack, namespaces: PulsarSettings, spark: SparkSession, tmp_path: Path
) -> None:
    topic = namespaces.readings_topic("wearables")
    with PulsarAdmin(namespaces, timeout_s=30) as admin:
        admin.create_partitioned(topic, 1)
        provision_commands(admin)
    rules = tmp_path / "rules.yaml"
    rules.write_text(conf_path("rules.yaml").read_text("utf-8") + ONCE, "utf-8")
    driver = Driver(namespaces, tmp_path / "lakehouse", tmp_path / "driver.log", rules)
    client = pulsar.Client(namespaces.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        driver.start()
        sent = publish(client, topic, range(1, 301))
        poll_for(lambda: commands(client, namespaces), 240, "first commands")
        driver.kill()

        driver.start(master="local[1]")
        sent += publish(client, topic, range(301, 401))
        poll_for(lambda: len(set(driver.ids("silver"))) >= len(sent), 240, "all readings in silver")
        driver.endpoint.await_ready()
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
        poll_for(
            lambda: sum(r["readings"] for r in driver.read("gold")) + len(driver.read("late")) >= len(sent),
            120,
            "all readings in gold",
        )
        query = {"query": "gold"}
        # Spark tells of a batch after its table has it.
        poll_for(
            lambda: driver.endpoint.total("pulsebridge_stream_rows_total", **query) >= 100, 60, "gold's rows"
        )
        assert driver.endpoint.value("pulsebridge_stream_written_rows_total", **query, table="gold") > 0
        once = {cause for cause in commands(client, namespaces) if cause.startswith("once/")}
        assert once == {"once/a-10"}, "the state of alerts outlived its driver and one core"
        # beside the running jobs, which stay with their own rules: the low ones leave silver and gold, and say nothing
        before = commands(client, namespaces)
        suite = f"streaming.expectations={stricter(tmp_path, 65)}"
        with readings_meanwhile(client, topic, 401) as more:
            told = driver.tables("rebuild", "silver", *DAY, "--set", suite)
        sent += more
        kept = [name for name in sent if int(name[2:]) % 10]
        assert "rebuilt: arrival from 2026-01-02" in told
        assert re.search("gold: recomputed from silver for [23] days of event time, [1-9]", told), told
        poll_for(lambda: len(driver.ids("silver")) >= len(kept), 120, "what came meanwhile in silver")
        poll_for(
            lambda: sum(r["readings"] for r in driver.read("gold")) >= len(kept) - len(driver.read("late")),
            120,
            "what came meanwhile in gold",
        )
        bronze, silver = driver.ids("bronze"), driver.ids("silver")
        windows, late = driver.read("gold"), driver.read("late")
        held = driver.read("quarantine")
        assert commands(client, namespaces) == before
        assert driver.end() == 0, driver.log.read_text()
        lock.acquire()
        lock.release()
        # what came in by the commands that it caused is Pulsar's, and is told with its end
        told = driver.tables("forget", "--yes", "--wait", "0", "--", "a")
    finally:
        client.close()
        driver.kill()
    assert Counter(bronze) == Counter(sent)
    assert Counter(silver) == Counter(kept)
    commits = Counter(one["operation"] for one in DeltaTable(str(driver.root / "bronze")).history())
    assert commits["OPTIMIZE"] <= 1 + commits["STREAMING UPDATE"] // 30, (
        "the second driver knows what is merged"
    )
    low = {name for name in sent if name not in kept}
    assert {r["reading_id"] for r in held if r["failed_rules"] == ["glucose_range"]} == low
    assert sum(r["readings"] for r in windows) + len(late) == len(kept)
    assert all(r["min_value"] > 65 for r in windows)
    assert len({(r["device"], r["metric"], r["window_start"]) for r in windows}) == len(windows)
    left = {name: len(DeltaTable(str(driver.root / name)).to_pyarrow_table()) for name in TABLES}
    assert left == dict.fromkeys(TABLES, 0)
    assert f"bronze: {len(sent)} rows deleted\nsilver: {len(kept)} rows deleted" in told
    assert f"gold: {len(windows)} rows deleted\nlate: {len(late)} rows deleted" in told
    _, _, remains = told.partition("what is left:")
    assert "bronze: old files keep the deleted rows, for time travel, until VACUUM" in remains
    for namespace in namespaces.all_namespaces:
        assert f"Pulsar {namespace}: what every subscription has read" in remains
    assert f"Pulsar {contract.COMMANDS_TOPIC}" in remains
    said = [line for line in driver.log.read_text().splitlines() if " INFO " in line or "WARN " in line]
    assert said == []
