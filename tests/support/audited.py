"""A running deployment for the audit, whose parts were killed once, and thirty manipulations of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pulsar
import yaml
from deltalake import DeltaTable

from bridge.contract import (
    ALERTS_TOPIC,
    COMMANDS_TOPIC,
    PUSH_SUBSCRIPTION,
    RECEIPTS_TOPIC,
    Receipt,
    partition_name,
)
from bridge.contract.commands import encode_command
from bridge.mqtt.device import DeviceClient
from bridge.settings import Settings
from bridge.settings.ingest import IngestSettings
from bridge.settings.streaming import StreamingSettings
from bridge.settings.tables import Decoding, TableDeclaration
from pulsebridge.audit.live.findings import Hop, Kind
from tests.support.ingest import IN_ORDER, device, ingest_process, rule_for, stored
from tests.support.push import Devices, PushProcess, command, provision, push_settings, receipts
from tests.support.reading_back import quiet
from tests.support.stack import mqtt_settings
from tests.support.waiting import patient, poll_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from bridge.settings import PulsarSettings
    from pulsebridge.local.stack import LocalStack

__all__ = ["CHANGES", "DEVICES", "EACH", "FOLLOWING", "Change", "World", "deployment"]

EACH = 30
"""Messages of a device; every tenth is hot, so it gets a command."""
DEVICES = [f"d{n}" for n in range(14)]
RULES = {"alerts": [{"name": "hot", "metric": "v", "kind": "above", "limit": 30}]}


class World:
    """A running deployment, and what a manipulation needs."""

    def __init__(self, settings: Settings, spark: SparkSession, since_us: int, push: PushProcess) -> None:
        self.settings, self.spark, self.since_us, self.push = settings, spark, since_us, push
        self.root = Path(settings.streaming.root)

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
            rows = rows.selectExpr(f"* EXCEPT ({name})", f"{change} AS {name}")
        rows = rows.select(*self.frame(table, "true").columns)
        rows.write.format("delta").mode("append").save(str(self.root / table))

    def exchange(self, table: str, one: str, other: str) -> None:
        """Exchange the positions of two rows."""
        rows = [self.frame(table, where).selectExpr("to_json(_position)").collect()[0][0] for where in (one, other)]
        kind = self.frame(table, "true").schema["_position"].dataType.simpleString()
        a, b = (f"from_json('{text}', '{kind}')" for text in rows)
        self.update(table, f"_position = CASE WHEN {one} THEN {b} ELSE {a} END", f"({one}) OR ({other})")

    def message(self, table: str, where: str) -> str:
        """Return a condition for all rows of the message of the first of these rows."""
        at = self.frame(table, where).select("_position").collect()[0][0]
        names = ("ledger", "entry", "index", "partition")
        return " AND ".join(f"_position.{name} = {at[name]}" for name in names)

    def first(self, where: str) -> str:
        """Return a condition for one alert."""
        row = self.frame("alerts", where).selectExpr("min(command_id)").collect()[0]
        return f"command_id = '{row[0]}'"

    def send(self, topic: str, *messages: tuple[bytes, str, dict[str, str]]) -> None:
        """Write messages, as payload, key and properties, into a partition."""
        client = pulsar.Client(self.settings.pulsar.service_url, logger=quiet())
        producer = client.create_producer(topic)
        for payload, key, properties in messages:
            producer.send(payload, partition_key=key, properties=properties)
        client.close()

    def system(self, local: str) -> str:
        """Return the first partition of a system topic."""
        return partition_name(self.settings.pulsar.system_topic(local), 0)

    def readings(self, name: str, *payloads: bytes) -> None:
        """Write readings of a device into its partition, as ingest would."""
        found = next(s for s in stored(self.settings.pulsar, "fleet") if s.key == name)
        topic = partition_name(self.settings.pulsar.readings_topic("fleet"), found.partition)
        self.send(topic, *((one, name, found.properties) for one in payloads))

    def commands(self, name: str, *numbers: int) -> list[str]:
        """Write commands to a device, and return their ids. Push is stopped before."""
        self.push.kill()
        written = [command(self.settings, name, n, emitted_at_us=time.time_ns() // 1000 - 10_000) for n in numbers]
        self.send(self.system(COMMANDS_TOPIC), *((one.payload, name, encode_command(one)) for one in written))
        return [one.command_id for one in written]

    def receipt(self, name: str, command_id: str, state: str = "delivered", emitted_at_us: int = 0) -> None:
        one = Receipt(command_id, name, "x", state, emitted_at_us=emitted_at_us)
        self.send(self.system(RECEIPTS_TOPIC), (one.encode(), name, {}))


def _publish(client: DeviceClient, root: str, numbers: range) -> None:
    confirmed: list[int] = []
    count = 0
    for number in numbers:
        for name in DEVICES:
            body = json.dumps({"n": number, "v": 31.5 if number % 10 == 0 else 20.5}).encode()
            client.publish(f"{root}/{name}/temp", body, confirmed=confirmed.append)
            count += 1
    client.publish(f"{root}/broken/temp", b'{"n": 1', confirmed=confirmed.append)
    poll_for(lambda: len(confirmed) > count, 120, "the broker has all messages")


def _stream(settings: Settings, folder: Path) -> subprocess.Popen[bytes]:
    config = folder / "stream.yaml"
    config.write_text(yaml.safe_dump(settings.model_dump(mode="json", exclude_defaults=True)), "utf-8")
    words = ("-c", "from pulsebridge.cli.app import main; main()", "stream", "-c", str(config))
    with (folder / "stream.log").open("ab") as out:
        return subprocess.Popen(
            [sys.executable, *words], stdout=out, stderr=out, env={**os.environ}, start_new_session=True
        )


def _end(driver: subprocess.Popen[bytes], with_signal: int) -> None:
    if driver.poll() is None:
        os.killpg(driver.pid, with_signal)
        driver.wait(timeout=patient(120))


def _rows(folder: Path) -> int:
    return int(DeltaTable(str(folder)).count()) if list((folder / "_delta_log").glob("*.json")) else 0


def _settings(stack: LocalStack, namespaces: PulsarSettings, folder: Path) -> tuple[Settings, str]:
    base = push_settings(namespaces, mqtt_settings(stack))
    root = base.mqtt.client_id
    (folder / "rules.yaml").write_text(yaml.safe_dump(RULES), "utf-8")
    route = rule_for(root, command_topic=f"{base.push.client_id}/{{device}}/commands", sequence="{json:$.n}")
    climate = TableDeclaration(
        name="climate", decoding=Decoding(filter=f"{root}/+device/temp", fields="n bigint, v double"), keys=()
    )
    streaming = StreamingSettings(
        root=str(folder / "lakehouse"), topics=("fleet",), tables=(climate,), alerts=folder / "rules.yaml"
    )  # fmt: skip
    return base.model_copy(update={"ingest": IngestSettings(routes=(route,)), "streaming": streaming}), root


@contextmanager
def deployment(
    stack: LocalStack,
    namespaces: PulsarSettings,
    spark: SparkSession,
    folder: Path,
) -> Iterator[World]:
    """Run ingest, push and the driver, each killed once; yield when all messages have arrived everywhere."""
    since_us = time.time_ns() // 1000 - 1_000_000
    settings, root = _settings(stack, namespaces, folder)
    provision(settings)
    lakehouse, commands = Path(settings.streaming.root), EACH // 10 * len(DEVICES)
    with ExitStack() as running:
        with ingest_process(settings, folder) as ingest, device(settings.mqtt, "sender", window=IN_ORDER) as client:
            _publish(client, root, range(1, EACH // 2 + 1))
            poll_for(lambda: len(stored(namespaces, "fleet")) > 10, 60, "the first messages")
            ingest.send_signal(signal.SIGKILL)
            ingest.wait()
            running.enter_context(ingest_process(settings, folder))
            _publish(client, root, range(EACH // 2 + 1, EACH + 1))
        wanted = EACH * len(DEVICES) + 1
        poll_for(lambda: len({(s.key, s.payload) for s in stored(namespaces, "fleet")}) >= wanted, 60, "all")
        copies = len(stored(namespaces, "fleet"))
        running.enter_context(Devices(settings))
        driver = _stream(settings, folder)
        running.callback(lambda: _end(driver, signal.SIGKILL))
        with PushProcess(settings, folder, "first") as push:
            poll_for(lambda: _rows(lakehouse / "bronze"), 240, "the first rows")
            _end(driver, signal.SIGKILL)
            push.owns().kill()
        driver = _stream(settings, folder)
        push = running.enter_context(PushProcess(settings, folder, "second"))
        poll_for(lambda: len(receipts(settings)) >= commands, 240, "all receipts")
        for name, rows in {
            "bronze": copies, "quarantine": 4, "alerts": commands, "climate": wanted - 1, "readings": 2 * (wanted - 1),
        }.items():  # fmt: skip
            poll_for(lambda name=name, rows=rows: _rows(lakehouse / name) >= rows, 120, f"all of {name}")
        yield World(settings, spark, since_us, push)


class Change(NamedTuple):
    """A manipulation, and the finding that it causes."""

    hop: str
    kind: str
    device: str
    do: Callable[[World], Any]


def _lost_command(world: World) -> None:
    """Write a receipt of a command that the commands topic lacks."""
    world.receipt("d1", "lost", emitted_at_us=time.time_ns() // 1000 - 10_000)


def _alert_without_command(world: World) -> None:
    body = {"command_id": "alone", "to_device": "d3", "rule": "hot"}
    world.send(world.system(ALERTS_TOPIC), (json.dumps(body).encode(), "d3", {}))


def _skipped_command(world: World) -> None:
    """Acknowledge commands in place of push, so that one has no receipt."""
    (skipped,) = world.commands("d4", 99)
    client = pulsar.Client(world.settings.pulsar.service_url, logger=quiet())
    consumer = client.subscribe(world.system(COMMANDS_TOPIC), PUSH_SUBSCRIPTION)
    found = ""
    while found != skipped:
        message = consumer.receive(20_000)
        consumer.acknowledge(message)
        found = message.properties().get("command.id", "")
    client.close()


def _exchanged_receipts(world: World) -> None:
    for one in reversed(world.commands("d8", 97, 98)):
        world.receipt("d8", one)


def _receipt_of_another(world: World) -> None:
    (one,) = world.commands("d9", 96)
    world.receipt("d10", one)


def _reading_of(n: int, number: int = 5) -> bytes:
    return json.dumps({"n": number, "v": n}).encode()


def _bronze(n: int) -> str:
    return f"device = 'd{n}' AND get_json_object(CAST(payload AS STRING), '$.n') = '5'"


def _typed(n: int, number: int = 5) -> str:
    return f"device = 'd{n}' AND n = {number}"


def _reading(n: int) -> str:
    return f"device = 'd{n}' AND metric = 'n' AND value = 5"


def _bad(table: str) -> str:
    return f"`table` = '{table}'"


_HOUR_AGO = "- INTERVAL 1 HOUR"
_MOVED = (
    "named_struct('topic', _position.topic, 'partition', _position.partition, 'ledger', _position.ledger, "
    "'entry', _position.entry, 'index', CAST(_position.index + 100000 AS INT), 'element', _position.element)"
)
_CLIMATE, _READINGS = Hop.table("climate"), Hop.table("readings")
CHANGES = [
    Change(Hop.BRONZE, Kind.MISSING, "d0", lambda w: w.delete("bronze", _bronze(0))),
    Change(Hop.BRONZE, Kind.REPEATED, "d1", lambda w: w.append("bronze", _bronze(1))),
    Change(Hop.BRONZE, Kind.ALTERED, "d2", lambda w: w.update("bronze", "payload = CAST('x' AS BINARY)", _bronze(2))),
    Change(Hop.BRONZE, Kind.ALTERED, "d3", lambda w: w.update("bronze", "device = 'd99'", _bronze(3))),
    Change(Hop.BRONZE, Kind.REORDERED, "d4",
           lambda w: w.update("bronze", f"stored_at = stored_at {_HOUR_AGO}", _bronze(4))),
    Change(Hop.BRONZE, Kind.UNEXPECTED, "d13",
           lambda w: w.append("bronze", _bronze(13), batch_index="CAST(batch_index + 100000 AS INT)")),
    Change(Hop.BRONZE, Kind.MISSING, "d12", lambda w: w.delete("bronze", "device = 'd12'")),
    Change(_CLIMATE, Kind.MISSING, "d6", lambda w: w.delete("climate", _typed(6))),
    Change(_CLIMATE, Kind.REPEATED, "d7", lambda w: w.append("climate", _typed(7))),
    Change(_CLIMATE, Kind.ALTERED, "d8", lambda w: w.update("climate", "device = 'd98'", _typed(8))),
    Change(_CLIMATE, Kind.ALTERED, "d9",
           lambda w: w.update("climate", f"arrival_time = arrival_time {_HOUR_AGO}", _typed(9))),
    Change(_CLIMATE, Kind.REORDERED, "d10", lambda w: w.exchange("climate", _typed(10, 6), _typed(10, 20))),
    Change(_CLIMATE, Kind.UNEXPECTED, "d11", lambda w: w.append("climate", _typed(11), _position=_MOVED)),
    Change(_CLIMATE, Kind.REPEATED, "broken", lambda w: w.append("quarantine", _bad("climate"))),
    Change(_READINGS, Kind.MISSING, "d10", lambda w: w.delete("readings", w.message("readings", _reading(10)))),
    Change(_READINGS, Kind.REPEATED, "d11", lambda w: w.append("readings", _reading(11))),
    Change(_READINGS, Kind.ALTERED, "d12", lambda w: w.update("readings", "device = 'd97'", _reading(12))),
    Change(_READINGS, Kind.MISSING, "broken",
           lambda w: w.delete("quarantine", f"{_bad('readings')} AND {w.message('quarantine', _bad('readings'))}")),
    Change(Hop.ALERTS, Kind.MISSING, "d0", lambda w: w.delete("alerts", w.first("to_device = 'd0'"))),
    Change(Hop.ALERTS, Kind.REPEATED, "d1", lambda w: w.append("alerts", w.first("to_device = 'd1'"))),
    Change(Hop.ALERTS, Kind.UNEXPECTED, "d2",
           lambda w: w.append("alerts", w.first("to_device = 'd2'"), command_id="'forged'")),
    Change(Hop.COMMANDS, Kind.MISSING, "d3", _alert_without_command),
    Change(Hop.RECEIPTS, Kind.UNEXPECTED, "d1", _lost_command),
    Change(Hop.RECEIPTS, Kind.MISSING, "d4", _skipped_command),
    Change(Hop.RECEIPTS, Kind.REORDERED, "d8", _exchanged_receipts),
    Change(Hop.RECEIPTS, Kind.ALTERED, "d9", _receipt_of_another),
    Change(Hop.DEAD_LETTERS, Kind.MISSING, "d2", lambda w: w.receipt("d2", "no-letter", "rejected")),
    Change(Hop.DEVICE, Kind.MISSING, "d5", lambda w: w.readings("d5", _reading_of(5, EACH + 2))),
    Change(Hop.DEVICE, Kind.REORDERED, "d6",
           lambda w: w.readings("d6", _reading_of(6, EACH + 2), _reading_of(6, EACH + 1))),
    Change(Hop.DEVICE, Kind.REPEATED, "d7", lambda w: w.readings("d7", _reading_of(7, EACH))),
]  # fmt: skip
FOLLOWING = {
    *((hop, Kind.MISSING, name) for hop in (Hop.BRONZE, _CLIMATE, _READINGS) for name in ("d5", "d6", "d7")),
    (Hop.ALERTS, Kind.MISSING, "d3"),
    (Hop.RECEIPTS, Kind.UNEXPECTED, "d2"),
}
"""Findings that may follow: forged messages may lack their rows at first, a forged receipt has no command."""
