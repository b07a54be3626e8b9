"""The examples of the tutorial of all tiers, every block of them and in their order, on real servers."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from bridge.mqtt.device import DeviceClient
from bridge.pulsar.admin import PulsarAdmin
from bridge.settings.pulsar import PulsarSettings
from pulsebridge.cli.app import main
from pulsebridge.local.stack import LocalStack
from tests.support.stack import mqtt_settings
from tests.support.waiting import patient, poll_for

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tutorials" / "every-tier.md"


def blocks(stack: LocalStack, folder: Path) -> dict[str, list[tuple[str, str]]]:
    """Return the blocks of each example, (language, text), with the addresses of this stack and a folder for files.

    Spark resolves a relative path in the folder in which its JVM was started, which is not this test's.
    """
    text = PAGE.read_text(encoding="utf-8")
    assert stack.mqtt_host == "127.0.0.1"
    for usual, ours in (
        ("pulsar://127.0.0.1:6650", stack.pulsar_url),
        ("http://127.0.0.1:8080", stack.admin_url),
        ("port: 1883", f"port: {stack.mqtt_port}"),
        ("port=1883", f"port={stack.mqtt_port}"),
        ('"build/', f'"{folder}/build/'),
    ):
        assert usual in text
        text = text.replace(usual, ours)
    found = {}
    for example in text.split("\n## ")[1:]:
        found[example.split(":")[0]] = re.findall(r"^```(\w+)\n(.*?)^```$", example, re.MULTILINE | re.DOTALL)
    return found


def command(line: str) -> list[str]:
    words = shlex.split(line, comments=True)
    assert words[0] == "pulsebridge"
    return [sys.executable, "-c", "from pulsebridge.cli.app import main; main()", *words[1:]]


def run(line: str, cwd: Path) -> str:
    done = subprocess.run(
        command(line),
        cwd=cwd,
        timeout=patient(150),
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, f"{line} ended with {done.returncode}:\n{done.stdout}"
    return done.stdout


def run_here(line: str) -> None:
    """Run a command in this process, in the session of Spark that is there, which it leaves running."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", shlex.split(line, comments=True))
        patch.setattr(SparkSession, "stop", lambda self: None)
        with pytest.raises(SystemExit) as ended:
            main()
    assert ended.value.code == 0, line


def rows_of(spark: SparkSession, folder: Path, table: str, *columns: str) -> list[tuple[Any, ...]]:
    """Return the rows of a table of the pipeline, sorted."""
    found = spark.read.format("delta").load(f"{folder}/build/lakehouse/{table}").select(*columns)
    return sorted(tuple(row) for row in found.collect())


@contextmanager
def running(line: str, cwd: Path) -> Iterator[subprocess.Popen[str]]:
    """Run a command that goes on; it must end with 0 on SIGTERM."""
    with (cwd / f"{line.split()[1]}.log").open("w+") as log:
        process = subprocess.Popen(command(line), cwd=cwd, stdout=log, stderr=subprocess.STDOUT, text=True)
        try:
            yield process
            process.send_signal(signal.SIGTERM)
            code = process.wait(timeout=patient(60))
            log.seek(0)
            assert code == 0, f"{line} ended with {code}:\n{log.read()}"
        finally:
            process.kill()
            process.wait()


def stored(stack: LocalStack) -> int:
    """Return how many messages the example's topic has taken in."""
    with PulsarAdmin(PulsarSettings(admin_url=stack.admin_url)) as admin:
        topic = "persistent://public/pulsebridge/plant"
        return sum(admin.stats(f"{topic}-partition-{n}")["msgInCounter"] for n in range(admin.partition_count(topic)))


@pytest.mark.stack
@pytest.mark.spark
@pytest.mark.e2e
@pytest.mark.timeout(900)
@pytest.mark.long
def test_the_examples_run_in_their_order(
    stack: LocalStack, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = blocks(stack, tmp_path)
    assert list(found) == ["Ingest", "Source", "Streaming", "Sink", "Push"]
    (_, settings), (_, shell), (_, publish) = found["Ingest"]
    (tmp_path / "pulsebridge.yaml").write_text(settings, encoding="utf-8")
    explain, ingest = shell.splitlines()
    ((_, source),) = found["Source"]
    stream, show, module, rules, parts, suite, added, upkeep = (text for _, text in found["Streaming"])
    ((_, sink),) = found["Sink"]
    (_, push), (_, presence), *_ = found["Push"]  # its device is run by test_resume.py

    (tmp_path / "presence.yaml").write_text(presence, encoding="utf-8")
    assert "devices/+device/status" in run("pulsebridge config show --config presence.yaml", tmp_path)
    explained = run(explain, tmp_path)
    assert "devices/press-3/commands" in explained

    received: list[bytes] = []
    with ExitStack() as undo:
        device = DeviceClient(mqtt_settings(stack), "press-3", on_message=lambda m: received.append(m.payload))
        undo.enter_context(device)
        device.subscribe("devices/press-3/commands")
        with running(ingest, tmp_path):
            # A message published before ingest has subscribed has no subscriber, so publish until one arrives.
            poll_for(lambda: (exec(publish, {}), stored(stack))[1], 60, "a reading in Pulsar", every=0.3)
        here: dict[str, Any] = {}
        exec(source, here)  # its own call for a session gets the one of all tests
        rows = spark.read.format("delta").load(f"{tmp_path}/build/my-first-query/table").collect()
        assert {(r.device, r.mqtt_topic) for r in rows} == {("press-3", "plant/press-3/climate")}
        run(stream.strip(), tmp_path)
        exec(show, here)
        # However often it was published: one id, one row for each field.
        assert rows_of(spark, tmp_path, "readings", "device", "metric", "value") == [
            ("press-3", "id", None), ("press-3", "pressure", 2.1), ("press-3", "temperature", 41.5), ("press-3", "ts", None),
        ]  # fmt: skip

        for name, text in (("plant.py", module), ("rules.yaml", rules), ("suite.py", suite)):
            assert text.startswith(f"# {name}\n")
            (tmp_path / name).write_text(text, encoding="utf-8")
        subprocess.run(
            [sys.executable, "suite.py"],
            cwd=tmp_path, check=True, timeout=patient(150), env={**os.environ, "GX_ANALYTICS_ENABLED": "false"},
        )  # fmt: skip
        with (tmp_path / "pulsebridge.yaml").open("a", encoding="utf-8") as file:
            file.write(added)
        for part in parts.splitlines():  # they run until they are stopped: here, until all is done
            run(f"{part.removesuffix(' &')} --available-now", tmp_path)
        columns = ("device", "temperature", "pressure", "_rescued_data", "_id")
        assert rows_of(spark, tmp_path, "presses", *columns) == [("press-3", 41.5, 2.1, None, "press-3-1")]
        assert rows_of(spark, tmp_path, "hourly", "device", "mean", "messages") == [("press-3", 41.5, 1)]
        assert rows_of(spark, tmp_path, "alerts", "rule", "to_device") == [("too-hot", "press-3")]
        assert {r for (r,) in rows_of(spark, tmp_path, "quality_results", "success")} == {True}
        for line in upkeep.splitlines():
            run_here(line)
        assert rows_of(spark, tmp_path, "presses", *columns) == [("press-3", 41.5, 2.1, None, "press-3-1")]
        exec(sink, here)
        with running(push.strip(), tmp_path):
            poll_for(lambda: len(received) >= 2, 60, "the commands at the device")
    alert, reset = sorted(map(json.loads, received), key=len, reverse=True)
    assert reset == {"reset": True}
    assert (alert["rule"], alert["device"], alert["value"]) == ("too-hot", "press-3", 41.5)
