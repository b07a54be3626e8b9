"""docs/operate/move.md, every command of it and in its order, under load, with two real Pulsars."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import yaml
from pyspark.sql import SparkSession

from bridge.mqtt.device import DeviceClient
from bridge.mqtt.types import Message
from pulsebridge.local.stack import LocalStack
from tests.e2e.test_tutorial import run, running
from tests.support.stack import mqtt_settings, new_stack
from tests.support.waiting import poll_for

PAGE = Path(__file__).resolve().parents[2] / "docs/operate/move.md"
DEVICES = ("d0", "d1", "d2", "away")
SETTINGS = """
mqtt: {{host: 127.0.0.1, port: {mqtt}, client_id: {root}}}
pulsar: {{service_url: "{pulsar}", admin_url: "{admin}", namespace: {root}, system_namespace: {root}-system, command_partitions: 2}}
ingest:
  resume_topic: {root}/resume/+device
  routes:
    - {{name: plant, filter: {root}/plant/+device/+metric, topic: plant, device: "{{device}}", reading_id: "{{json:$.id}}", command_topic: "{root}/devices/{{device}}/commands"}}
push:
  client_id: {root}-push
  resume: {{answer_topic: {root}/resumed}}
  presence: {{rules: [{{filter: {root}/devices/+device/status}}]}}
"""


def commands_of_the_page() -> list[list[str]]:
    """Return the command lines of each step."""
    text = PAGE.read_text(encoding="utf-8").split("## The steps")[1].split("\n## ")[0]
    return [block.strip().splitlines() for block in re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)]


class Load:
    """Devices that publish readings at QoS 1 and write down what arrives; a writer of commands."""

    def __init__(self, stack: LocalStack, root: str, folder: Path) -> None:
        self.confirmed: list[str] = []
        self.commands: dict[str, list[str]] = defaultdict(list)
        self.got: dict[str, list[tuple[str, bool]]] = defaultdict(list)
        self._root, self._folder, self._ended = root, folder, threading.Event()
        self.client = DeviceClient(mqtt_settings(stack), f"{root}-devices", on_message=self._received, persistent=True)
        self._publisher = DeviceClient(mqtt_settings(stack), f"{root}-publisher", persistent=True)
        self._thread = threading.Thread(target=self._publish)

    def __enter__(self) -> Load:
        for client in (self.client, self._publisher):
            client.connect(30)
        self.client.subscribe(f"{self._root}/devices/+/commands")
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()
        for client in (self.client, self._publisher):
            client.close()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()

    def _received(self, message: Message) -> None:
        assert message.properties is not None
        user = dict(message.properties.user)
        self.got[message.topic.split("/")[-2]].append((user["command-id"], user.get("repeat") == "1"))

    def _publish(self) -> None:
        number = 0
        while not self._ended.wait(0.05):
            ids = [f"{device}-{number}" for device in DEVICES[:3]]
            for one in ids:
                topic = f"{self._root}/plant/{one.split('-')[0]}/climate"
                self._publisher.publish(topic, f'{{"id": "{one}", "value": {number}}}'.encode())
            if self._publisher.flush():
                self.confirmed += ids
            number += 1

    def command(self, config: str, count: int) -> None:
        """Write commands for each device by ``pulsebridge commands send``."""
        lines = []
        for _ in range(count):
            for device in DEVICES:
                name = f"{device}-c{len(self.commands[device])}"
                self.commands[device].append(name)
                lines.append(f'{{"device": "{device}", "command_id": "{name}", "payload": "x"}}')
        (self._folder / "lines.jsonl").write_text("\n".join(lines), encoding="utf-8")
        topic = f"{self._root}/devices/{{device}}/commands"
        run(f"pulsebridge commands send --config {config} --lines lines.jsonl --topic {topic}", self._folder)

    def says(self, device: str, status: bytes) -> None:
        self.client.publish(f"{self._root}/devices/{device}/status", status)
        assert self.client.flush()

    def has_all(self, devices: Sequence[str]) -> bool:
        return all(set(self.commands[name]) <= {one for one, _ in self.got[name]} for name in devices)

    def check(self) -> None:
        for device in DEVICES:
            assert list(dict.fromkeys(one for one, _ in self.got[device])) == self.commands[device]
            first: set[str] = set()
            for one, repeat in self.got[device]:
                assert repeat or one not in first, f"{one} came again and is not marked"
                first.add(one)


@contextmanager
def second_pulsar(stack: LocalStack) -> Iterator[LocalStack]:
    with new_stack(mqtt_url=stack.mqtt_url) as other:
        yield other


@pytest.mark.stack
@pytest.mark.spark
@pytest.mark.e2e
@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_commands_of_the_page_move_an_installation_under_load(
    stack: LocalStack, spark: SparkSession, tmp_path: Path
) -> None:
    (provision, check), (ingest,), (stream_old,), (pending,), (move,), (push,), checkpoints = commands_of_the_page()
    root = mqtt_settings(stack).client_id
    with ExitStack() as undo:
        other = undo.enter_context(second_pulsar(stack))
        for generation, (name, of, suffix) in enumerate((("old", stack, ""), ("new", other, "-2"))):
            text = SETTINGS.format(mqtt=stack.mqtt_port, pulsar=of.pulsar_url, admin=of.admin_url, root=root)
            settings = yaml.safe_load(text)
            for key in ("namespace", "system_namespace"):
                settings["pulsar"][key] += suffix
            settings["pulsar"]["command_generation"] = generation
            (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
        old_ingest, old_push = (line.replace("new.yaml", "old.yaml") for line in (ingest, push))
        load = Load(stack, root, tmp_path)
        run(provision.replace("new.yaml", "old.yaml"), tmp_path)
        with running(old_push, tmp_path):
            with running(old_ingest, tmp_path):
                log = tmp_path / "ingest.log"
                poll_for(lambda: "subscribed at the MQTT broker" in log.read_text(), 60, "ingest's subscription")
                undo.enter_context(load)
                load.command("old.yaml", 20)
                poll_for(lambda: load.has_all(DEVICES), 60, "the first commands")
                load.says("away", b"offline")
                poll_for(lambda: len(load.confirmed) > 100, 60, "readings")
                run(provision, tmp_path)
                run(check, tmp_path)
            with running(ingest, tmp_path):
                load.command("old.yaml", 20)
                run(stream_old, tmp_path)
                poll_for(lambda: load.has_all(DEVICES[:3]), 60, "commands in the old cluster")
                assert "away" in run(pending, tmp_path)
        with running(ingest, tmp_path):
            load.command("old.yaml", 5)  # push does not run
            assert "moved" in run(move, tmp_path)
            with running(push, tmp_path):
                load.command("new.yaml", 10)
                poll_for(lambda: load.has_all(DEVICES[:3]), 90, "commands in the new cluster")
                load.says("away", b"online")
                poll_for(lambda: load.has_all(DEVICES), 90, "what was parked")
            load.stop()
        for line in checkpoints[:-1]:
            subprocess.run(shlex.split(line), cwd=tmp_path, check=True)
        run(f"{checkpoints[-1]} --available-now", tmp_path)
    load.check()
    tables = tmp_path / "build" / "lakehouse"
    rows = spark.read.format("delta").load(str(tables / "readings")).where("metric = 'value'").select("_id").collect()
    ids = [row[0].partition("#")[0] for row in rows]  # with the number of the value in the message
    assert len(ids) == len(set(ids)), "a reading is twice in the table"
    assert set(load.confirmed) <= set(ids)
    bronze = spark.read.format("delta").load(str(tables / "bronze"))
    assert (
        bronze.count()
        == bronze.select("__topic", "partition", "ledger_id", "entry_id", "batch_index").distinct().count()
    )
    assert {row[0].split("/")[-2] for row in bronze.select("__topic").distinct().collect()} == {root, f"{root}-2"}
    shutil.rmtree(tables)
