"""The job through a Spark Connect server gives what it gives with a driver of its own; and Spark's own pipelines."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pulsar
import pytest
import yaml
from pyarrow import parquet

from bridge import contract
from bridge.pulsar.admin import PulsarAdmin
from bridge.pulsar.provisioning import provision_commands
from bridge.settings import PulsarSettings
from pulsebridge.processes import pulsebridge_command
from tests.support.connect import connect_server, environment, spark_command, spark_options
from tests.support.delta_rows import delta_rows
from tests.support.waiting import patient

pytestmark = [pytest.mark.spark, pytest.mark.stack]
pytest.importorskip("grpc")

ROOT: Final = Path(__file__).resolve().parents[3]
EXAMPLES: Final = ROOT / "examples"
RULES: Final = {
    "alerts": [
        {"name": "hot", "metric": "temperature", "kind": "above", "limit": 30},
        {
            "name": "humid",
            "table": "comfort",
            "kind": "sql",
            "condition": "humidity > 70 AND temperature < 25",
        },
        {"name": "each", "table": "comfort", "kind": "sql", "condition": "humidity > 90", "every": "message"},
    ]
}
TABLES: Final = ("bronze", "readings", "gold", "device_latest", "alerts", "quarantine", "comfort", "hourly", "climate")
OF_THE_RUN: Final = {
    "stored_at",
    "validated_at",
    "created_at",
    "expires_at",
    "run_at",
    "rows_since",
    "rows_until",
}
"""Columns that say when a run was."""
BODIES: Final = (
    {"temperature": 21.5, "humidity": 45, "occupied": True},
    {"temperature": 12.0, "humidity": 45, "occupied": True},  # cold, and the room is occupied: a warning
    {"temperature": 12.0, "humidity": 45, "occupied": False},
    {"temperature": 99.0, "humidity": 50.5, "occupied": False},  # too hot, and no whole percent: quarantine
    {"temperature": 20.0, "humidity": 95, "occupied": False},
    {"temperature": 16.0, "humidity": 80, "occupied": False},
    {"temperature": 31.0, "humidity": 40, "color": {"x": 0.3}},
)


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Spark Connect server."""
    with connect_server(tmp_path_factory.mktemp("connect")) as address:
        yield address


@pytest.fixture
def config(namespaces: PulsarSettings, tmp_path: Path) -> dict[str, Any]:
    """Publish the messages, make the suites, and return the settings of a job."""
    with PulsarAdmin(namespaces, timeout_s=30) as admin:
        admin.create_partitioned(namespaces.readings_topic("rooms"), 1)
        provision_commands(admin)
    publish(namespaces)
    shutil.copytree(EXAMPLES / "gx", tmp_path / "gx")
    made = [sys.executable, str(EXAMPLES / "comfort.py"), str(tmp_path)]
    subprocess.run(made, env=environment(), check=True, timeout=patient(120), capture_output=True)
    damp = yaml.safe_load((EXAMPLES / "damp.yaml").read_text("utf-8"))
    rules = {"alerts": [*RULES["alerts"], *damp["alerts"]]}
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rules), "utf-8")
    names = ("service_url", "admin_url", "namespace", "system_namespace")
    return {
        "pulsar": {name: getattr(namespaces, name) for name in names},
        "streaming": {
            "topics": ["rooms"],
            "built_in": ["bronze", "readings", "gold", "device_latest", "alerts"],
            "modules": [str(EXAMPLES / name) for name in ("comfort.py", "hourly.py", "climate.py")],
            "suites": str(tmp_path),
            "alerts": str(tmp_path / "rules.yaml"),
        },
    }


def publish(settings: PulsarSettings) -> None:
    """Publish each body from two devices, and one that is no JSON."""
    client = pulsar.Client(settings.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    topic = contract.partition_name(settings.readings_topic("rooms"), 0)
    producer = client.create_producer(topic)
    payloads = [(room, json.dumps(body).encode()) for body in BODIES for room in ("bath", "hall")]
    for n, (room, payload) in enumerate([*payloads, ("bath", b"{broken")]):
        about = {
            contract.P_INGEST: contract.encode_ingest(link="test", protocol="5", rule=None),
            contract.P_DEVICE: room,
            contract.P_TOPIC: f"zigbee2mqtt/{room}",
            contract.P_COMMAND_TOPIC: f"zigbee2mqtt/{room}/set",
        }
        at = 1_767_355_200_000 + n * 60_000  # from noon of 2026-01-02 on
        producer.send(payload, partition_key=room, properties=about, event_timestamp=at)
    client.close()


def job(config: dict[str, Any], folder: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run the job to the end of what is there."""
    folder.mkdir(exist_ok=True)
    streaming = {**config["streaming"], "root": str(folder / "lakehouse"), "subscription": folder.name}
    (folder / "pulsebridge.yaml").write_text(yaml.safe_dump({**config, "streaming": streaming}), "utf-8")
    command = pulsebridge_command("stream", "--config", str(folder / "pulsebridge.yaml"), "--available-now")
    return subprocess.run(
        [*command, *words], env=environment(**more), cwd=folder, timeout=patient(300), check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def tables_of(config: dict[str, Any], folder: Path, **more: str) -> dict[str, list[str]]:
    """Run the job; return the rows of each table, but for the time of the run."""
    done = job(config, folder, **more)
    assert done.returncode == 0, done.stdout[-6000:]
    assert "expect_column_mean_to_be_between(humidity)" in done.stdout, "a verdict only is named"
    return {name: rows_of(folder / "lakehouse" / name) for name in (*TABLES, "quality_results")}


def rows_of(table: Path) -> list[str]:
    kept = [{k: v for k, v in row.items() if k not in OF_THE_RUN} for row in delta_rows(table)]
    return sorted(json.dumps(row, default=repr, sort_keys=True) for row in kept)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_job_gives_the_same_through_spark_connect_and_walk_d(
    config: dict[str, Any], remote: str, tmp_path: Path
) -> None:
    here = tables_of(config, tmp_path / "here")
    good = [json.loads(row) for row in here["comfort"]]
    assert len(good) == 2 * (len(BODIES) - 1)
    cold = "expect_column_values_to_be_between(temperature)#2"
    assert [row["_warnings"] for row in good if row["temperature"] == 12.0 and row["occupied"]] == 2 * [[cold]]
    assert sum(len(row["_warnings"]) for row in good) == 2
    bad = [json.loads(row) for row in here["quarantine"] if json.loads(row)["table"] == "comfort"]
    failed = [
        "expect_column_values_to_be_between(temperature)",
        "expect_column_values_to_be_whole(humidity)",
    ]
    assert sorted(row["failed_rules"] for row in bad) == [*2 * [failed], ["undecodable"]]
    verdicts = [json.loads(row) for row in here["quality_results"]]
    found = {row["rule"]: (row["severity"], row["splits_rows"], row["success"], row["unexpected"])
             for row in verdicts if row["table"] == "comfort"}  # fmt: skip
    assert found == {
        failed[0]: ("critical", True, False, 2),
        failed[1]: ("critical", True, False, 2),
        cold: ("warning", True, False, 2),
        "expect_column_mean_to_be_between(humidity)": ("info", False, True, None),
    }
    assert (tmp_path / "gx/uncommitted/data_docs/local_site/index.html").is_file()
    assert {json.loads(row)["rule"] for row in here["alerts"]} == {"hot", "humid", "each", "damp", "blink", "fan"}

    there = tables_of(config, tmp_path / "there", SPARK_REMOTE=remote)
    assert {name: rows for name, rows in here.items() if not rows} == {}
    for name, rows in here.items():
        assert there[name] == rows, name
    done = job(config, tmp_path / "there", "--only", "comfort", SPARK_REMOTE=remote)
    assert done.returncode == 0, done.stdout[-6000:]
    assert rows_of(tmp_path / "there" / "lakehouse" / "comfort") == there["comfort"], "a second run adds nothing"


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_commands_on_tables_have_the_session_of_the_job(
    config: dict[str, Any], remote: str, tmp_path: Path
) -> None:
    there = {"SPARK_REMOTE": remote}
    done = job(config, tmp_path, "--only", "bronze", "--only", "comfort", **there)
    assert done.returncode == 0, done.stdout[-6000:]
    verdicts = json.loads(stdout_of(tmp_path, there, "quality", "run", "comfort", "--json", code=1))
    assert any(one["rule"] == "expect_column_mean_to_be_between(humidity)" for one in verdicts)
    counted = "        2  comfort  expect_column_values_to_be_between(temperature)\n"
    assert counted in stdout_of(tmp_path, there, "quarantine", "list", "--table", "comfort")
    rebuilt = stdout_of(tmp_path, there, "tables", "rebuild", "comfort")
    assert rebuilt == "comfort: 15 messages give 12 rows, and 3 in quarantine\n"
    log = tmp_path / "build/spark-upkeep.log"
    assert not log.exists()
    assert json.loads(stdout_of(tmp_path, {}, "quality", "run", "comfort", "--json", code=1)) == verdicts
    assert log.is_file()


def stdout_of(folder: Path, more: Mapping[str, str], *words: str, code: int = 0) -> str:
    """Run a command beside the settings; return its stdout. ``more`` are environment variables."""
    done = subprocess.run(
        pulsebridge_command(*words), env=environment(**more), cwd=folder, timeout=patient(300), check=False,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == code, done.stderr[-6000:]
    return done.stdout


@pytest.mark.thorough
@pytest.mark.timeout(400)
def test_what_ends_the_job_is_one_line_through_spark_connect(
    config: dict[str, Any], remote: str, tmp_path: Path
) -> None:
    config["streaming"] |= {"quality": {"on_bad_share": "stop", "max_bad_share": 0.01, "min_batch_rows": 1}}
    done = job(config, tmp_path / "stop", "--only", "comfort", SPARK_REMOTE=remote)
    assert done.returncode == 1, done.stdout[-6000:]
    line = "comfort failed in batch 0: comfort: 3 of 15 rows of a batch failed a rule"
    assert line in done.stdout, done.stdout[:3000] + done.stdout[-3000:]
    assert "JVM stacktrace" not in done.stdout
    assert "Traceback" not in done.stdout
    assert rows_of(tmp_path / "stop" / "lakehouse" / "comfort") == []


@pytest.mark.long
@pytest.mark.timeout(900)
def test_walk_e_the_source_in_a_spark_declarative_pipeline(config: dict[str, Any], tmp_path: Path) -> None:
    for name in ("declarative.py", "spark-pipeline.yml"):
        text = (EXAMPLES / name).read_text("utf-8").replace("file:///tmp", tmp_path.as_uri())
        (tmp_path / name).write_text(text, "utf-8")
    (tmp_path / "pulsebridge.yaml").write_text(yaml.safe_dump(config), "utf-8")

    def run() -> list[str]:
        done = subprocess.run(
            [spark_command("spark-pipelines"), "run", *spark_options(tmp_path), "--conf", "spark.sql.catalogImplementation=hive"],
            env=environment(PULSEBRIDGE_CONFIG=str(tmp_path / "pulsebridge.yaml"), SPARK_LOCAL_IP="127.0.0.1"),
            cwd=tmp_path, timeout=patient(300), check=False, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
        return [
            f"{row['device']} {row['humidity']:g}"
            for row in parquet.read_table(tmp_path / "spark-warehouse" / "damp").to_pylist()
        ]

    damp = ["bath 80", "bath 95", "hall 80", "hall 95"]
    assert sorted(run()) == damp
    assert parquet.read_table(tmp_path / "spark-warehouse" / "rooms").num_rows == 2 * len(BODIES)
    publish(PulsarSettings(**config["pulsar"]))
    assert sorted(run()) == sorted(2 * damp), "what was read is not read again"
