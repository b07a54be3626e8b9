"""The live audit on real servers: clean although ingest, push and the driver died, and each manipulation found."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pulsar
import pytest
import yaml

from bridge.contract import ALERTS_TOPIC, COMMANDS_TOPIC, RECEIPTS_TOPIC, Receipt, partition_name
from bridge.contract.commands import encode_command
from bridge.mqtt.device import DeviceClient
from bridge.settings import Settings
from bridge.settings.ingest import IngestSettings
from bridge.settings.streaming import StreamingSettings
from bridge.settings.tables import Decoding, TableDeclaration
from pulsebridge.audit.live.findings import Hop, Kind, Report
from pulsebridge.audit.live.run import audit
from pulsebridge.audit.live.tables import DeltaTables, SparkTables
from tests.support.delta_rows import delta_rows
from tests.support.ingest import device, ingest_process, rule_for, stored
from tests.support.push import Devices, PushProcess, command, provision, push_settings, read_topic, receipts
from tests.support.reading_back import quiet
from tests.support.stack import mqtt_settings
from tests.support.waiting import patient, poll_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from bridge.settings import PulsarSettings
    from pulsebridge.local.stack import LocalStack

pytestmark = [pytest.mark.spark, pytest.mark.stack]

EACH = 30
"""Messages of a device; every tenth is hot, so it gets a command."""
DEVICES = [f"d{n}" for n in range(14)]
RULES = {"alerts": [{"name": "hot", "metric": "v", "kind": "above", "limit": 30}]}


class World:
    """A deployment with data, and what a manipulation needs."""

    def __init__(self, settings: Settings, spark: SparkSession, since_us: int) -> None:
        self.settings, self.spark, self.since_us = settings, spark, since_us
        self.root = Path(settings.streaming.root)

    def audit(self, *, strict: bool = False, with_spark: bool = False) -> Report:
        tables = (
            SparkTables(self.spark, lambda name: f"delta.`{self.root / name}`")
            if with_spark
            else DeltaTables(str(self.root))
        )
        return audit(self.settings, tables, self.since_us, time.time_ns() // 1000, strict=strict)

    def frame(self, table: str, where: str) -> DataFrame:
        return self.spark.table(f"delta.`{self.root / table}`").where(where)

    def delete(self, table: str, where: str) -> None:
        self.spark.sql(f"DELETE FROM delta.`{self.root / table}` WHERE {where}").collect()

    def update(self, table: str, change: str, where: str) -> None:
        self.spark.sql(f"UPDATE delta.`{self.root / table}` SET {change} WHERE {where}").collect()

    def append(self, table: str, where: str, **changes: str) -> None:
        """Write the first of these rows a second time, with changed columns."""
        rows = self.frame(table, where).limit(1)
        for name, change in changes.items():
            rows = rows.selectExpr("* EXCEPT (" + name + ")", f"{change} AS {name}")
        rows.select(*self.frame(table, "true").columns).write.format("delta").mode("append").save(
            str(self.root / table)
        )

    def message(self, table: str, where: str) -> str:
        """Return a condition for all rows of the message of the first of these rows."""
        at = self.frame(table, where).select("_position").collect()[0][0]
        return f"_position.ledger = {at['ledger']} AND _position.entry = {at['entry']} AND _position.index = {at['index']} AND _position.partition = {at['partition']}"

    def first(self, where: str) -> str:
        """Return a condition for one alert."""
        row = self.frame("alerts", where).selectExpr("min(command_id)").collect()[0]
        return f"command_id = '{row[0]}'"

    def send(self, local: str, payload: bytes, key: str, properties: dict[str, str]) -> None:
        client = pulsar.Client(self.settings.pulsar.service_url, logger=quiet())
        topic = partition_name(self.settings.pulsar.system_topic(local), 0)
        client.create_producer(topic).send(payload, partition_key=key, properties=properties)
        client.close()


def publish(client: DeviceClient, root: str, numbers: range) -> None:
    confirmed: list[int] = []
    count = 0
    for number in numbers:
        for name in DEVICES:
            body = json.dumps({"n": number, "v": 31.5 if number % 10 == 0 else 20.5}).encode()
            client.publish(f"{root}/{name}/temp", body, confirmed=confirmed.append)
            count += 1
    client.publish(f"{root}/broken/temp", b'{"n": 1', confirmed=confirmed.append)
    poll_for(lambda: len(confirmed) > count, 120, "the broker has all messages")


def stream(settings: Settings, folder: Path) -> subprocess.Popen[bytes]:
    config = folder / "stream.yaml"
    config.write_text(yaml.safe_dump(settings.model_dump(mode="json", exclude_defaults=True)), "utf-8")
    words = ("-c", "from pulsebridge.cli.app import main; main()", "stream", "-c", str(config))
    with (folder / "stream.log").open("ab") as out:
        return subprocess.Popen(
            [sys.executable, *words], stdout=out, stderr=out, env={**os.environ}, start_new_session=True
        )


@pytest.fixture
def world(stack: LocalStack, namespaces: PulsarSettings, spark: SparkSession, tmp_path: Path) -> World:
    """A deployment in which ingest, the driver and push were killed once, when all has arrived."""
    since_us = time.time_ns() // 1000 - 1_000_000
    base = push_settings(namespaces, mqtt_settings(stack))
    root = base.mqtt.client_id
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(RULES), "utf-8")
    route = rule_for(root, command_topic=f"{base.push.client_id}/{{device}}/commands", sequence="{json:$.n}")
    climate = TableDeclaration(
        name="climate", decoding=Decoding(filter=f"{root}/+device/temp", fields="n bigint, v double"), keys=()
    )
    settings = base.model_copy(
        update={
            "ingest": IngestSettings(routes=(route,)),
            "streaming": StreamingSettings(
                root=str(tmp_path / "lakehouse"), topics=("fleet",), tables=(climate,), alerts=tmp_path / "rules.yaml"
            ),
        }
    )
    provision(settings)
    with ingest_process(settings, tmp_path) as ingest, device(settings.mqtt, "sender") as client:
        publish(client, root, range(1, EACH // 2 + 1))
        poll_for(lambda: len(stored(namespaces, "fleet")) > 10, 60, "the first messages")
        ingest.send_signal(signal.SIGKILL)
        ingest.wait()
        with ingest_process(settings, tmp_path):
            publish(client, root, range(EACH // 2 + 1, EACH + 1))
            wanted = EACH * len(DEVICES) + 2
            poll_for(lambda: len({(s.key, s.payload) for s in stored(namespaces, "fleet")}) >= wanted - 1, 60, "all")
    folder = Path(settings.streaming.root)
    with Devices(settings), PushProcess(settings, tmp_path, "first") as push:
        driver = stream(settings, tmp_path)
        try:
            poll_for(lambda: delta_rows(folder / "bronze"), 240, "the first rows")
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()
            push.owns().kill()
            driver = stream(settings, tmp_path)
            with PushProcess(settings, tmp_path, "second"):
                due = EACH // 10 * len(DEVICES)
                poll_for(lambda: len(receipts(settings)) >= due, 240, "all receipts")
                rows = 2 * EACH * len(DEVICES)
                poll_for(lambda: len(delta_rows(folder / "readings")) >= rows, 120, "all readings")
                poll_for(lambda: len(delta_rows(folder / "climate")) >= rows // 2, 120, "all typed rows")
                poll_for(lambda: len(delta_rows(folder / "bronze")) >= rows // 2 + 2, 120, "all messages")
                poll_for(lambda: len(delta_rows(folder / "alerts")) >= due, 120, "all alerts")
                poll_for(lambda: len(delta_rows(folder / "quarantine")) >= 4, 120, "the broken messages")
            os.killpg(driver.pid, signal.SIGTERM)
            driver.wait(timeout=patient(120))
        finally:
            if driver.poll() is None:
                os.killpg(driver.pid, signal.SIGKILL)
                driver.wait()
    return World(settings, spark, since_us)


class Change(NamedTuple):
    """A manipulation, and the finding that it causes."""

    hop: str
    kind: str
    device: str
    do: Callable[[World], Any]


def _double_receipt(world: World) -> None:
    found = next(m for m in read_topic(world.settings, RECEIPTS_TOPIC) if m.partition_key() == "d0")
    world.send(RECEIPTS_TOPIC, found.data(), "d0", {})


def _lost_command(world: World) -> None:
    """A receipt of a command that the commands topic lacks."""
    now = time.time_ns() // 1000 - 10_000
    world.send(RECEIPTS_TOPIC, Receipt("lost", "d1", "x", "delivered", emitted_at_us=now).encode(), "d1", {})


def _rejected(world: World) -> None:
    """A receipt of a rejected command without its dead letter."""
    world.send(RECEIPTS_TOPIC, Receipt("no-letter", "d2", "x", "rejected").encode(), "d2", {})


def _alert_without_command(world: World) -> None:
    body = {"command_id": "alone", "to_device": "d3", "rule": "hot"}
    world.send(ALERTS_TOPIC, json.dumps(body).encode(), "d3", {})


def _receipt_missing(world: World) -> None:
    """A command that push's subscription has acknowledged, without a receipt: it was skipped."""
    one = command(world.settings, "d4", 99, emitted_at_us=time.time_ns() // 1000 - 10_000)
    world.send(COMMANDS_TOPIC, one.payload, "d4", encode_command(one))
    client = pulsar.Client(world.settings.pulsar.service_url, logger=quiet())
    topic = partition_name(world.settings.pulsar.system_topic(COMMANDS_TOPIC), 0)
    consumer = client.subscribe(topic, "pulsebridge-push")
    while True:
        message = consumer.receive(20_000)
        consumer.acknowledge(message)
        if message.properties().get("command.id") == one.command_id:
            break
    client.close()


def _gap(world: World) -> None:
    """A message that the device sent and Pulsar lacks: its next number is two more."""
    found = next(s for s in stored(world.settings.pulsar, "fleet") if s.key == "d5")
    client = pulsar.Client(world.settings.pulsar.service_url, logger=quiet())
    topic = partition_name(world.settings.pulsar.readings_topic("fleet"), found.partition)
    properties = found.properties
    for number in (EACH + 2, EACH + 3):
        client.create_producer(topic).send(
            json.dumps({"n": number, "v": 1}).encode(), partition_key="d5", properties=properties
        )
    client.close()


def _bronze(n: int) -> str:
    return f"device = 'd{n}' AND get_json_object(CAST(payload AS STRING), '$.n') = '5'"


def _typed(n: int) -> str:
    return f"device = 'd{n}' AND n = 5"


def _reading(n: int) -> str:
    return f"device = 'd{n}' AND metric = 'n' AND value = 5"


_BROKEN = "`table` = 'readings'"
CHANGES = [
    Change(Hop.BRONZE, Kind.MISSING, "d0", lambda w: w.delete("bronze", _bronze(0))),
    Change(Hop.BRONZE, Kind.REPEATED, "d1", lambda w: w.append("bronze", _bronze(1))),
    Change(Hop.BRONZE, Kind.ALTERED, "d2", lambda w: w.update("bronze", "payload = CAST('x' AS BINARY)", _bronze(2))),
    Change(Hop.BRONZE, Kind.ALTERED, "d3", lambda w: w.update("bronze", "device = 'd99'", _bronze(3))),
    Change(
        Hop.BRONZE, Kind.REORDERED, "d4",
        lambda w: w.update("bronze", "stored_at = stored_at - INTERVAL 1 HOUR", _bronze(4)),
    ),
    Change(
        Hop.BRONZE, Kind.UNEXPECTED, "d13",
        lambda w: w.append("bronze", _bronze(13), batch_index="CAST(batch_index + 100000 AS INT)"),
    ),
    Change(Hop.table("climate"), Kind.MISSING, "d6", lambda w: w.delete("climate", _typed(6))),
    Change(Hop.table("climate"), Kind.REPEATED, "d7", lambda w: w.append("climate", _typed(7))),
    Change(Hop.table("climate"), Kind.ALTERED, "d8", lambda w: w.update("climate", "device = 'd98'", _typed(8))),
    Change(
        Hop.table("climate"), Kind.ALTERED, "d9",
        lambda w: w.update("climate", "arrival_time = arrival_time - INTERVAL 1 HOUR", _typed(9)),
    ),
    Change(
        Hop.table("readings"), Kind.MISSING, "d10",
        lambda w: w.delete("readings", w.message("readings", _reading(10))),
    ),
    Change(Hop.table("readings"), Kind.REPEATED, "d11", lambda w: w.append("readings", _reading(11))),
    Change(
        Hop.table("readings"), Kind.MISSING, "broken",
        lambda w: w.delete("quarantine", f"{_BROKEN} AND {w.message('quarantine', _BROKEN)}"),
    ),
    Change(Hop.ALERTS, Kind.MISSING, "d0", lambda w: w.delete("alerts", w.first("to_device = 'd0'"))),
    Change(Hop.ALERTS, Kind.REPEATED, "d1", lambda w: w.append("alerts", w.first("to_device = 'd1'"))),
    Change(
        Hop.ALERTS, Kind.UNEXPECTED, "d2",
        lambda w: w.append("alerts", w.first("to_device = 'd2'"), command_id="'forged'"),
    ),
    Change(Hop.RECEIPTS, Kind.UNEXPECTED, "d1", _lost_command),
    Change(Hop.DEAD_LETTERS, Kind.MISSING, "d2", _rejected),
    Change(Hop.COMMANDS, Kind.MISSING, "d3", _alert_without_command),
    Change(Hop.RECEIPTS, Kind.MISSING, "d4", _receipt_missing),
    Change(Hop.DEVICE, Kind.MISSING, "d5", _gap),
]  # fmt: skip


@pytest.mark.chaos
@pytest.mark.timeout(1500)
def test_a_run_with_kills_is_clean_and_each_manipulation_is_found(world: World) -> None:
    clean = world.audit()
    assert clean.found == []
    assert clean.read["Pulsar"] >= EACH * len(DEVICES) + 2
    assert clean.read["commands"] >= EACH // 10 * len(DEVICES)
    assert world.audit(with_spark=True).found == []
    copies = clean.copies.get(Hop.RECEIPTS, 0)
    for change in CHANGES:
        change.do(world)
    _double_receipt(world)
    report = world.audit()
    assert report.copies[Hop.RECEIPTS] == copies + 1
    seen = {(f.hop, f.kind, f.device) for f in report.found}
    # The messages that make the gap, and the alert without a command, lack their rows as well.
    more = {
        (Hop.BRONZE, Kind.MISSING, "d5"),
        (Hop.table("climate"), Kind.MISSING, "d5"),
        (Hop.table("readings"), Kind.MISSING, "d5"),
        (Hop.ALERTS, Kind.MISSING, "d3"),
        (Hop.RECEIPTS, Kind.UNEXPECTED, "d2"),
    }
    wanted = {change[:3] for change in CHANGES}
    assert wanted <= seen
    assert seen <= wanted | more
    now = time.time_ns() // 1000
    assert all(world.since_us <= f.at_us <= now for f in report.found if f.device != "d9")
    assert {(f.hop, f.kind, f.device) for f in world.audit(with_spark=True).found} == seen
    assert any(f.hop == Hop.RECEIPTS and f.kind == Kind.REPEATED for f in world.audit(strict=True).found)
