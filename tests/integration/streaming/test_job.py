"""The job as users run it, on the real stack: killed and started again, stopped in order, run once, and wrongly set."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pulsar
import pytest
import yaml
from deltalake import DeltaTable

from bridge import contract
from bridge.errors import EXIT_USAGE
from bridge.pulsar.admin import PulsarAdmin
from bridge.pulsar.provisioning import provision_commands
from pulsebridge.local.ports import free_ports
from pulsebridge.processes import pulsebridge_command
from sources.subscriptions import retained_topics
from tests.support.delta_rows import delta_rows
from tests.support.endpoint import Endpoint
from tests.support.merging import merged
from tests.support.waiting import patient, poll_for

if TYPE_CHECKING:
    from bridge.settings import PulsarSettings

pytestmark = [pytest.mark.spark, pytest.mark.stack]

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
RULES = {"alerts": [{"name": "hot", "metric": "temperature", "kind": "above", "limit": 30}]}
LOG_LINE = re.compile(r"\d\d:\d\d:\d\d \[(info|warning) ")
LEAVES = 5
"""Fields of a message: its id, temperature, humidity, battery and last_seen."""
SUITE = {
    "name": "hourly",
    "expectations": [
        {
            "type": "expect_column_values_to_be_between",
            "kwargs": {"column": "mean", "max_value": 10**15},
            "meta": {"rule": "mean_range"},
            "severity": "critical",
        }
    ],
    "meta": {},
}


class Driver:
    """``pulsebridge stream`` over a topic, as a process; its JVM is a child."""

    def __init__(self, pulsar: PulsarSettings, folder: Path) -> None:
        self.pulsar, self.folder = pulsar, folder
        self.root, self.log, self.spark_log = (
            folder / "lakehouse",
            folder / "driver.log",
            folder / "spark.log",
        )
        (port,) = free_ports(1)
        self.endpoint = Endpoint(port)
        project = folder / "gx"
        (project / "expectations").mkdir(parents=True)
        (project / "great_expectations.yml").touch()
        (project / "expectations" / "hourly.json").write_text(json.dumps(SUITE), "utf-8")
        (folder / "rules.yaml").write_text(yaml.safe_dump(RULES), "utf-8")
        self.settings: dict[str, Any] = {
            "pulsar": {
                name: getattr(pulsar, name) for name in ("service_url", "admin_url", "namespace", "system_namespace")
            },
            "metrics": {"port": port},
            "streaming": {
                "root": str(self.root),
                "spark": {"log": str(self.spark_log)},
                "topics": ["climate"],
                "modules": [str(EXAMPLES / "climate.py"), str(EXAMPLES / "hourly.py")],
                "suites": str(folder),
                "quality": {"interval": "0s"},
                "trigger": {"views_interval": "1s"},
                "alerts": str(folder / "rules.yaml"),
            },
        }
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *words: str, **streaming: Any) -> subprocess.Popen[bytes]:
        settings = merged(self.settings, {"streaming": streaming})
        config = self.folder / "pulsebridge.yaml"
        config.write_text(yaml.safe_dump(settings), "utf-8")
        command = pulsebridge_command("stream", "--config", str(config), *words)
        with self.log.open("ab") as out:
            self._process = subprocess.Popen(
                command, stdout=out, stderr=subprocess.STDOUT, env={**os.environ}, start_new_session=True
            )
        return self._process

    def ended(self, *words: str, **streaming: Any) -> int:
        """Run it to its own end; return the exit code."""
        return self.start(*words, **streaming).wait(timeout=patient(240))

    def kill(self) -> None:
        """Kill -9 the driver, and wait until its JVM and their workers have noticed."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        family = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        process.wait()
        _, alive = psutil.wait_procs(family, timeout=patient(60))
        assert not alive, f"outlived their driver: {alive}"

    def end(self) -> int:
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGTERM)  # all its processes, as a service manager does
        return self._process.wait(timeout=patient(120))

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Return a table's rows, none before it is made."""
        running = self._process
        assert running is None or running.returncode in (None, 0, -signal.SIGKILL), self.log.read_text()
        return delta_rows(self.root / table)

    def ids(self, table: str) -> Counter[str]:
        """Return how often each message is in a table."""
        if table == "bronze":
            return Counter(json.loads(row["payload"])["id"] for row in self.rows(table))
        return Counter("{ledger}:{entry}:{index}".format(**row["_position"]) for row in self.rows(table))


@pytest.fixture
def driver(namespaces: PulsarSettings, tmp_path: Path) -> Iterator[Driver]:
    with PulsarAdmin(namespaces, timeout_s=30) as admin:
        admin.create_partitioned(namespaces.readings_topic("climate"), 1)
        provision_commands(admin)
    made = Driver(namespaces, tmp_path)
    try:
        yield made
    finally:
        made.kill()


def publish(pulsar_settings: PulsarSettings, numbers: range) -> list[str]:
    """Publish a message of each number, as ingest does; every tenth is hot. Return their ids."""
    client = pulsar.Client(pulsar_settings.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    topic = contract.partition_name(pulsar_settings.readings_topic("climate"), 0)
    producer = client.create_producer(topic, batching_enabled=True)
    for n in numbers:
        body = {
            "id": f"m-{n}",
            "temperature": 31.5 if n % 10 == 0 else 20.5,
            "humidity": n,
            "battery": 90,
            "last_seen": f"2026-01-02T{n // 60 % 24:02}:{n % 60:02}:00Z",
        }
        properties = {
            contract.P_INGEST: contract.encode_ingest(link="test", protocol="5", rule=None),
            contract.P_DEVICE: "room",
            contract.P_TOPIC: "zigbee2mqtt/room",
            contract.P_COMMAND_TOPIC: "zigbee2mqtt/room/set",
        }
        producer.send_async(
            json.dumps(body).encode(),
            lambda *_: None,
            partition_key="room",
            properties=properties,
            event_timestamp=1_767_355_200_000 + n * 1000,  # noon of 2026-01-02
        )
    producer.flush()
    client.close()
    return [f"m-{n}" for n in numbers]


def commands(settings: PulsarSettings) -> Counter[str]:
    """Return how often each row was commanded about."""
    client = pulsar.Client(settings.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    reader = client.create_reader(settings.system_topic(contract.COMMANDS_TOPIC), pulsar.MessageId.earliest)
    found: Counter[str] = Counter()
    while reader.has_message_available():
        found[json.loads(reader.read_next(10_000).data())["command_id"]] += 1
    client.close()
    return found


@pytest.mark.chaos
@pytest.mark.long
@pytest.mark.timeout(700)
def test_a_killed_driver_goes_on_where_it_was_and_sigterm_ends_it_in_order(
    driver: Driver, namespaces: PulsarSettings
) -> None:
    sent = publish(namespaces, range(300))
    driver.start()
    poll_for(lambda: driver.rows("readings"), 240, "the first readings")
    sent += publish(namespaces, range(300, 400))
    driver.kill()
    sent += publish(namespaces, range(400, 500))
    driver.start(trigger={"max_rows": 70})
    poll_for(lambda: len(driver.rows("climate")) >= len(sent), 240, "all messages in the user's table")
    poll_for(lambda: len(driver.rows("readings")) >= LEAVES * len(sent), 120, "all fields in readings")
    poll_for(lambda: len(driver.rows("alerts")) >= len(sent) // 10, 120, "all alerts")
    poll_for(lambda: sum(row["readings"] for row in driver.rows("hourly")) >= 3 * len(sent), 120, "all in the view")
    poll_for(lambda: driver.ids("bronze").keys() == set(sent), 120, "all in bronze")
    driver.endpoint.await_ready()
    assert driver.endpoint.total("pulsebridge_stream_rows_total", query="climate") > 0
    assert driver.endpoint.total("pulsebridge_stream_validated_rows_total", table="climate", result="good") > 0
    assert driver.end() == 0, driver.log.read_text()
    assert driver.ids("bronze") == Counter(sent)
    assert set(driver.ids("climate").values()) == {1}
    assert Counter(Counter(driver.ids("readings")).values()) == {LEAVES: len(sent)}
    assert len({row["_id"] + row["metric"] for row in driver.rows("readings")}) == LEAVES * len(sent)
    alerts = driver.rows("alerts")
    assert len({row["command_id"] for row in alerts}) == len(alerts) == len(sent) // 10
    assert commands(namespaces).keys() == {row["command_id"] for row in alerts}
    assert sum(row["readings"] for row in driver.rows("hourly")) == 3 * len(sent)
    assert driver.rows("quarantine") == []
    assert "StackOverflowError" not in driver.log.read_text() + driver.spark_log.read_text()
    assert "TransformWithStateInPandas Python worker" in driver.spark_log.read_text()
    others = [line for line in driver.log.read_text().splitlines() if not LOG_LINE.match(line)]
    assert others == [], "the console has the job's own log alone"


@pytest.mark.long
@pytest.mark.timeout(400)
def test_available_now_ends_by_itself_and_a_second_run_adds_nothing(driver: Driver, namespaces: PulsarSettings) -> None:
    sent = publish(namespaces, range(50))
    tables = ("bronze", "readings", "climate", "hourly", "alerts")
    assert driver.ended("--available-now") == 0, driver.log.read_text()
    found = {name: driver.rows(name) for name in tables}
    assert driver.ids("bronze") == Counter(sent)
    assert {name: len(rows) for name, rows in found.items()} == {
        "bronze": 50, "readings": 50 * LEAVES, "climate": 50, "hourly": 3, "alerts": 5,
    }  # fmt: skip
    with PulsarAdmin(namespaces) as admin:
        held = retained_topics(admin, [namespaces.readings_topic("climate")])
    assert {of.subscription: (of.entries, of.committed) for of in held} == {
        f"pulsebridge-{flow}": (0, True) for flow in ("bronze", "readings", "climate", "am2301", "alerts-readings")
    }
    versions = {name: DeltaTable(str(driver.root / name)).version() for name in tables}
    assert driver.ended("--available-now") == 0, driver.log.read_text()
    assert {name: DeltaTable(str(driver.root / name)).version() for name in tables} == versions


MODULE = "from streaming import pipelines as dp\n\n@dp.table{}\ndef mine():\n    return {}\n"


# Each takes a driver of its own. The rest of the wrong rules is in test_alerts.py, of the decodings in test_decoding.py.
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"modules": ["nowhere.py"]}, "streaming.modules: 'nowhere.py': file /"),
        ({"module": "import nothing_of_this_name\n"}, "cannot be imported: ModuleNotFoundError"),
        ({"module": MODULE.format("(suite='lost')", "dp.messages()")}, "suite 'lost' does not exist"),
        ({"module": MODULE.format("(schema='a strng')", "dp.messages()")}, "table 'mine'"),
        pytest.param(
            {"module": MODULE.format("", "dp.messages('a/+', fields='x intt')")},
            "Spark rejects the decoding of ",
            marks=pytest.mark.long,
        ),
        ({"module": MODULE.format("(keys=['dev'])", "dp.messages()")}, "table 'mine': its key 'dev' is not one of its"),
        pytest.param({"module": MODULE.format("", "42")}, "int, which is not a DataFrame", marks=pytest.mark.long),
        ({"rule": {"name": "hot", "table": "nothing", "kind": "sql", "condition": "true"}}, "'nothing'"),
        pytest.param(
            {"rule": {"name": "hot", "table": "climate", "kind": "sql", "condition": "wet > 3"}},
            "`wet`",
            marks=pytest.mark.long,
        ),
        pytest.param(
            {"rule": {"name": "hot", "table": "climate", "kind": "above", "column": "wet", "limit": 3}},
            "wet",
            marks=pytest.mark.long,
        ),
    ],
    ids=["no file", "import", "suite", "schema", "fields", "key", "no frame", "rule", "condition", "column"],
)
def test_a_configuration_error_ends_the_job_with_one_line(driver: Driver, wrong: dict[str, Any], says: str) -> None:
    if "module" in wrong:
        (driver.folder / "wrong.py").write_text(wrong["module"], "utf-8")
        wrong = {"modules": [str(driver.folder / "wrong.py")]}
    if "rule" in wrong:
        (driver.folder / "rules.yaml").write_text(yaml.safe_dump({"alerts": [wrong["rule"]]}), "utf-8")
        wrong = {}
    assert driver.ended("--available-now", **wrong) == EXIT_USAGE
    text = driver.log.read_text()
    assert "Traceback" not in text, text
    lines = [line for line in text.splitlines() if says in line]
    assert len(lines) == 1, text


def test_a_batch_that_cannot_be_written_ends_it_with_one_line(driver: Driver, namespaces: PulsarSettings) -> None:
    publish(namespaces, range(3))
    (driver.folder / "mine.py").write_text(
        MODULE.format("(schema_evolution='fail')", "dp.messages('#', fields='temperature double')"), "utf-8"
    )
    assert driver.ended("--only", "mine", modules=[str(driver.folder / "mine.py")]) == 1
    text = driver.log.read_text()
    assert text.count("[error") == 1, text
    (line,) = [line for line in text.splitlines() if "[error" in line]
    assert "mine failed in batch 0: mine: a message has fields that the table does not know" in line
    assert " — declare them, or set schema_evolution" in line
    assert "Traceback" not in text
