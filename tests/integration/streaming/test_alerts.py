"""The query alerts on real Spark state: the same commands after restarts, a crash and an upgrade."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pyspark
import pytest

from bridge.contract import COMMAND_COLUMNS
from bridge.errors import ConfigError, TerminalError
from bridge.settings.loading import conf_path
from streaming import alerts, silver
from streaming.alert_checkpoint import first_version
from streaming.rules import command_id, load_rules
from tests.support.bronze_rows import Message, reading
from tests.support.lakehouse import Lakehouse
from tests.support.silver_rows import Silver, append

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

RULES = """
alerts:
  - {name: low, metric: glucose, kind: below, limit: 70, clear: 90, tell_cleared: true}
  - {name: quiet, kind: silence, after_minutes: 10}
"""


class World(Lakehouse):
    """Bronze to silver by the real query; alerts by a rules file, its emissions kept."""

    def __init__(self, spark: SparkSession, root: Path, rules: Path) -> None:
        super().__init__(spark, root)
        self.rules = rules

    def arrive(self, *messages: Message) -> None:
        super().arrive(*messages)
        self.silver().awaitTermination()

    def judge(self, partitions: int = 2) -> list[dict[str, Any]]:
        """Run alerts over what is new, as the job does; return the commands of this run, in order."""
        found: list[dict[str, Any]] = []
        rules, checkpoint = load_rules(self.rules), self.tables.checkpoint("alerts")
        first = first_version(self.spark, checkpoint)
        rows = alerts.commands(silver.judged_by_the_query(self.spark, self.tables, first), rules)
        assert [(f.name, f.dataType.simpleString()) for f in rows.schema.fields] == list(COMMAND_COLUMNS)

        def keep(batch: DataFrame, number: int) -> None:
            found.extend(row.asDict() for row in batch.collect())

        writer = rows.writeStream.foreachBatch(keep).option("checkpointLocation", checkpoint)
        with session_setting(self.spark, "spark.sql.shuffle.partitions", str(partitions)):
            with alerts.empty_batches(self.spark, rules):
                query = writer.trigger(availableNow=True).start()
            query.awaitTermination()
        operators = [operator for progress in query.recentProgress for operator in progress.stateOperators]
        assert {operator.numStateStoreInstances for operator in operators} <= {2}, "those of the checkpoint"
        assert sum(operator.numRowsDroppedByWatermark for operator in operators) == 0
        return found

    def forget_last_commit(self) -> None:
        commits = Path(self.tables.checkpoint("alerts")) / "commits"
        last = max(int(f.name) for f in commits.glob("[0-9]*"))
        for name in (str(last), f".{last}.crc"):
            (commits / name).unlink(missing_ok=True)


def causes(commands: Iterable[dict[str, Any]]) -> list[str]:
    return [f"{c['cause']} {json.loads(c['payload'])['state']}" for c in commands]


def test_h19_redelivery_and_a_batch_run_again_give_the_same_commands(
    spark: SparkSession, tmp_path: Path
) -> None:
    world = World(spark, tmp_path, conf_path("rules.yaml"))
    low = reading(3, "a", 3, 60)
    world.arrive(reading(1, "a", 1, 90), reading(2, "a", 2, 85), low, reading(4, "b", 1, 100))
    first = world.judge()
    expected = [command_id(rule, "a", "a-3") for rule in ("glucose-falling", "glucose-low")]
    assert [c["command_id"] for c in first] == expected
    body = json.loads(bytes(first[1]["payload"]))
    assert (body["rule"], body["value"], body["device"]) == ("glucose-low", 60.0, "a")
    assert (first[0]["mqtt_topic"], first[0]["qos"], first[0]["retain"]) == ("devices/a/commands", 1, False)
    assert first[0]["expires_at"] > first[0]["emitted_at"]

    world.forget_last_commit()  # as after a crash between the sink and the commit of the batch
    again = world.judge()
    assert [(c["command_id"], bytes(c["payload"])) for c in again] == [
        (c["command_id"], bytes(c["payload"])) for c in first
    ]

    # the low reading comes again (QoS 1), with one that is still low, and a device that takes no commands
    silent = reading(7, "c", 1, 50, command_topic=None)
    world.arrive(Message(5, "a", low.payload), reading(6, "a", 4, 55), silent)
    assert world.judge() == []
    # state outlived the restarts: back above the limit and below again
    world.arrive(reading(9, "a", 6, 69), reading(8, "a", 5, 75))
    assert [c["command_id"] for c in world.judge()] == [command_id("glucose-low", "a", "a-6")]


@contextmanager
def callers() -> Iterator[set[int]]:
    """Connect to each port on which the JVMs of this process listen, again and again, and say what a browser says; yields those ports."""
    done, ports = threading.Event(), set[int]()

    def call() -> None:
        jvms = [one for one in psutil.Process().children() if "SparkSubmit" in " ".join(one.cmdline())]
        while not done.wait(0.002):
            for port in {
                c.laddr.port for jvm in jvms for c in jvm.net_connections("tcp") if c.status == "LISTEN"
            }:
                ports.add(port)
                with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1) as sock:
                    sock.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")

    thread = threading.Thread(target=call)
    thread.start()
    try:
        yield ports
    finally:
        done.set()
        thread.join()


@pytest.mark.skipif(pyspark.__version__ < "4.1", reason="this Spark's Python workers need ports")
def test_h40_who_connects_to_the_ports_of_the_driver_stops_no_batch(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Any page may. A port of the state that the first one to connect gets would leave the query waiting without end."""
    world = World(spark, tmp_path, conf_path("rules.yaml"))
    world.arrive(reading(1, "a", 1, 90), reading(2, "a", 2, 60), reading(3, "b", 1, 60))
    with callers() as ports:
        found = world.judge()
    assert ports
    assert {c["command_id"] for c in found} >= {
        command_id("glucose-low", "a", "a-2"),
        command_id("glucose-low", "b", "b-1"),
    }


@pytest.mark.long
def test_silence_and_hysteresis_outlive_restarts_a_crash_and_an_upgrade(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "rules.yaml").write_text(RULES)
    world = World(spark, tmp_path / "tables", tmp_path / "rules.yaml")

    def arrive(*rows: tuple[str, float, float]) -> None:
        """Device and number, minute, value."""
        more = [
            Silver(name, name[0], 60 * minute, float(value), fields={"command_topic": "t"})
            for name, minute, value in rows
        ]
        append(spark, world.tables, more)

    arrive(("a-1", 0, 60), ("b-1", 0, 100))
    as_before(world)
    arrive(("a-2", 5, 60), ("b-2", 5, 100))
    assert causes(world.judge()) == ["low/a-1 raised"], (
        "from the last version that was read, and with new state"
    )

    arrive(("b-3", 20, 100), ("c-1", 18, 100))
    silent = world.judge(partitions=5)
    assert causes(silent) == ["quiet/a-2 raised"], "by the batch that follows, without any data of the device"
    world.forget_last_commit()
    again = world.judge()
    assert [(c["command_id"], bytes(c["payload"])) for c in again] == [
        (c["command_id"], bytes(c["payload"])) for c in silent
    ]

    # Back, between limit and clear; and a reading that came before the watermark, which is not late for that.
    arrive(("a-3", 21, 80), ("c-2", 18.5, 50))
    assert sorted(causes(world.judge())) == ["low/c-2 raised", "quiet/a-3 cleared"]
    arrive(("a-4", 22, 60), ("a-5", 23, 90))
    assert causes(world.judge()) == ["low/a-5 cleared"]

    with (
        session_setting(
            spark, "spark.sql.streaming.stateStore.providerClass", "HDFSBackedStateStoreProvider"
        ),
        pytest.raises(ConfigError, match=r"needs the state store RocksDB.*conf/spark-defaults\.conf"),
    ):
        world.judge()


@contextmanager
def session_setting(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    before = str(spark.conf.get(name))
    spark.conf.set(name, value)
    try:
        yield
    finally:
        spark.conf.set(name, before)


def as_before(world: World) -> None:
    """Make a checkpoint with the operator of earlier releases over what silver has."""

    def last(key: Any, chunks: Any, state: Any) -> Any:
        state.update((json.dumps({"v": 1, "newest": {}}),))
        yield from ()

    folder = world.tables.checkpoint("alerts")
    rows = world.tables.silver.read_stream(world.spark).select("device", "reading_id").groupBy("device")
    old = rows.applyInPandasWithState(last, "command_id string", "newest string", "append", "NoTimeout")
    query = old.writeStream.format("noop").option("checkpointLocation", folder)
    query.trigger(availableNow=True).start().awaitTermination()


def test_an_old_checkpoint_that_has_not_caught_up_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    metadata = tmp_path / "alerts" / "state/0/_metadata/metadata"
    metadata.parent.mkdir(parents=True)
    metadata.write_text('v1\n{"operatorInfo":{"operatorId":0,"operatorName":"applyInPandasWithState"}}')
    with pytest.raises(TerminalError, match="has not caught up with silver — let that release finish it"):
        first_version(spark, str(tmp_path / "alerts"))
