"""What the notebooks call: a small run of the whole way in, the tables as pandas, and plots.

The notebooks hold no logic; it is here, typed and tested. A ``Lab`` uses the servers that the settings name, or
starts a local stack of its own; it ends what it started.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml

from bridge.errors import TerminalError, TransientError
from bridge.settings import Settings
from bridge.settings.loading import conf_path, load
from pulsebridge.plots import plot_commands, plot_device, plot_failures, plot_live, plot_versions
from streaming.tables import Table, Tables

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame, SparkSession

    from bridge.local.stack import LocalStack
    from pulsebridge.lab_commands import CommandDesk
    from pulsebridge.processes import Child

__all__ = ["Lab", "plot_commands", "plot_device", "plot_failures", "plot_live", "plot_versions"]

_SERVERS: Final = "PULSEBRIDGE_PULSAR__SERVICE_URL"
_NAME_LINES: Final = "spark.python.sql.dataFrameDebugging.enabled"
_WAIT_S: Final = 120.0
_ALL_ROWS: Final = 1_000_000


class Lab:
    """A place to look at device streams: servers, ingest, Spark and the tables of one small run.

    ``broker`` is the MQTT broker to read (``mqtt://host:port``), default the local stack's; ``filter`` says which of
    its topics, with the captures that name device and metric; ``payload`` names the JSON paths of a reading where
    they are not those of ``conf/rules.yaml``, for example ``{"id": "$.seq", "time": "$.at", "value": "$.value"}``.
    """

    def __init__(
        self,
        broker: str | None = None,
        filter: str = "wearables/+device/+metric",
        payload: Mapping[str, str] | None = None,
    ) -> None:
        self._broker = broker
        self._filter = filter
        self._payload = payload
        self._stack: LocalStack | None = None
        self._ingest: Child | None = None
        self._desk: CommandDesk | None = None
        self._spark: SparkSession | None = None
        self.folder = Path(tempfile.mkdtemp(prefix="pulsebridge-lab-"))
        (self.folder / "owner.pid").write_text(str(os.getpid()), encoding="ascii")  # as the local stack does
        self._file = self.folder / "pulsebridge.yaml"
        self.settings = Settings()

    def __enter__(self) -> Lab:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.close()

    def start(self) -> Lab:
        """Start what is missing: servers, ingest, Spark. Raises what the local stack raises."""
        from bridge.pulsar_admin import PulsarAdmin
        from pulsebridge.processes import Child, pulsebridge_command

        try:
            self._write_settings(self._servers())
            self.settings = load(self._file)
            with PulsarAdmin(self.settings.pulsar, timeout_s=30.0) as admin:
                admin.provision_namespaces()
                admin.create_partitioned(self._topic, self.settings.pulsar.partitions)
            self._ingest = Child(
                "ingest",
                pulsebridge_command("ingest", "--config", str(self._file)),
                self.folder / "ingest.log",
                _environment(),
            )
            self._ingest.start()
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """End what this lab started, and remove its folder."""
        if self._desk is not None:
            self._desk.close()
            self._desk = None
        if self._spark is not None:
            self._spark.stop()
            self._spark = None
        if self._ingest is not None:
            self._ingest.ask()
            self._ingest.wait()
            self._ingest = None
        if self._stack is not None:
            self._stack.stop()
            self._stack = None
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def spark(self) -> SparkSession:
        """The notebook's own Spark session."""
        if self._spark is None:
            from streaming.session import local_session

            # An error names the cell's line that it comes of.
            self._spark = local_session("pulsebridge-notebook", more={_NAME_LINES: "true"})
        return self._spark

    @property
    def tables(self) -> Tables:
        """The tables of this run."""
        return Tables.of(self.settings.streaming)

    @property
    def desk(self) -> CommandDesk:
        """The way of commands, started when it is first asked for (see ``pulsebridge.lab_commands``)."""
        if self._desk is None:
            from pulsebridge.lab_commands import CommandDesk

            desk = CommandDesk(self.settings, self._file, _environment(), lambda: self.spark, self._options)
            try:
                desk.start()
            except BaseException:
                desk.close()
                raise
            self._desk = desk
        return self._desk

    def sink_options(self) -> dict[str, str]:
        """Return the options of ``format("pulsebridge_commands")`` for this lab."""
        from streaming.alerts import sink_options

        return sink_options(self.settings.pulsar, self.settings.max_name_bytes)

    def publish(self, device: str, *payloads: bytes) -> int:
        """Publish payloads over MQTT as a device. Return how many the broker acknowledged.

        Raises TransientError when the broker did not take them all.
        """
        self._await_ingest()
        return self._published((f"wearables/{device}/glucose", payload) for payload in payloads)

    def replay(self, devices: int = 2, readings: int = 288, fault_every: int = 0) -> int:
        """Publish real glucose readings over MQTT as some devices; 288 are a day. After each ``fault_every`` of a device
        follows a faulty one: a value that no sensor measures, none at all, or JSON that was cut. Return how many were
        acknowledged.

        Raises MissingExtraError without the recordings, TransientError when the broker did not take them all.
        """
        from pulsebridge.demo.recordings import FAULTS, GLUCOSE, cut, encode, encode_fault
        from pulsebridge.demo.recordings import load as load_recording

        chosen = cut(GLUCOSE, load_recording(GLUCOSE), 100)[:devices]
        self._await_ingest()

        def messages() -> Iterator[tuple[str, bytes]]:
            for device in chosen:
                for n, row in enumerate(device.readings[:readings], 1):
                    ts, now_us = row.ts.isoformat() + "Z", time.time_ns() // 1000
                    name = device.reading_id(row.seq)
                    yield device.topic, encode(name, ts, "glucose", row.value, now_us)
                    if fault_every and n % fault_every == 0:
                        kind = FAULTS[n // fault_every % len(FAULTS)]
                        yield device.topic, encode_fault(kind, f"{name}-x", ts, "glucose", now_us)

        return self._published(messages())

    def _published(self, messages: Iterable[tuple[str, bytes]]) -> int:
        from bridge.mqtt.device import DeviceClient

        self._check_servers()
        client = DeviceClient(self.settings.mqtt, f"lab-{uuid.uuid4().hex[:8]}", window=100)
        client.connect()
        count = 0
        try:
            for topic, payload in messages:
                client.publish(topic, payload)
                count += 1
            if not client.flush(_WAIT_S):
                self._check_servers()
                raise TransientError("the MQTT broker did not acknowledge all readings")
        finally:
            client.close()
        return count

    def process(self, at_least: int = 0) -> None:
        """Run the jobs on what has arrived, until bronze holds ``at_least`` rows.

        Raises TransientError when they do not arrive within two minutes.
        """
        from streaming.stopping import StopRequest

        from streaming.job import Job, plan_of

        deadline = time.monotonic() + _WAIT_S
        while True:
            self._check_servers()
            job = Job(self.spark, plan_of(self.settings), available_now=True)
            try:
                job.prepare()
                job.run(StopRequest())
            finally:
                job.close()
            stored = self.tables.bronze.read(self.spark).count()
            if stored >= at_least:
                return
            if time.monotonic() > deadline:
                raise TransientError(
                    f"{stored} of {at_least} readings arrived", remedy=f"see {self.folder}/ingest.log"
                )

    def devices(self) -> pd.DataFrame:
        """Return the devices seen: readings, first and last, lowest and highest."""
        from pyspark.sql import functions as F

        silver = self.tables.silver.read(self.spark)
        return (
            silver.groupBy("device", "metric")
            .agg(
                F.count("*").alias("readings"),
                *(f("value").alias(n) for n, f in (("lowest", F.min), ("highest", F.max))),
            )
            .orderBy("device", "metric")
            .toPandas()
        )

    def readings(self, device: str, version: int | None = None) -> pd.DataFrame:
        """Return a device's readings in the order of its own time, as silver has them or had them at a version."""
        from pyspark.sql import functions as F

        silver = _at(self.spark, self.tables.silver, version).where(F.col("device") == device)
        names = ("event_time", "metric", "value", "unit", "reading_id")
        return silver.select(*names).orderBy("event_time").toPandas()

    def history(self) -> pd.DataFrame:
        """Return the versions of silver, the oldest first: when each was made, by what, and with how many rows."""
        from pyspark.sql import functions as F

        found = self.spark.sql(f"DESCRIBE HISTORY {self.tables.silver.sql}")
        metrics = F.col("operationMetrics")
        rows = F.coalesce(metrics["numTargetRowsInserted"], metrics["numOutputRows"]).cast("bigint")
        return (
            found.select("version", "timestamp", "operation", rows.alias("rows"))
            .orderBy("version")
            .toPandas()
        )

    def origin(self, device: str, reading_id: str) -> pd.DataFrame:
        """Return where a reading of silver came from: its message in bronze, with its place in Pulsar and its times."""
        from pyspark.sql import functions as F

        from streaming.tables import POSITION_COLUMNS

        found = self.tables.silver.read(self.spark).where(
            (F.col("device") == device) & (F.col("reading_id") == reading_id)
        )
        message = self.tables.bronze.read(self.spark).join(
            found.select(*POSITION_COLUMNS), list(POSITION_COLUMNS), "left_semi"
        )
        times = ("mqtt_topic", "arrival_time", "__publishTime AS publish_time")
        text = "CAST(payload AS STRING) AS payload"
        rows: pd.DataFrame = message.selectExpr(*POSITION_COLUMNS, *times, text).toPandas()
        return rows.T.rename(columns=lambda _: reading_id)

    def verdicts(self) -> pd.DataFrame:
        """Let Great Expectations judge all that the jobs have judged so far; a row for each rule of the suite."""
        from streaming.job import plan_of
        from streaming.quality import make_verdicts

        suite = plan_of(self.settings).suite
        make_verdicts(self.spark, self.tables, suite, datetime.fromtimestamp(0, timezone.utc), _ALL_ROWS)
        results = self.tables.quality_results.read(self.spark)
        last = results.agg({"run_at": "max"}).first()
        assert last is not None  # an aggregate without keys gives one row
        names = ("rule", "expectation", "splits_rows", "success", "evaluated", "unexpected")
        rows: pd.DataFrame = results.where(results["run_at"] == last[0]).select(*names).toPandas()
        return rows.sort_values("rule", ignore_index=True)

    def quarantine(self) -> pd.DataFrame:
        """Return what was held back, and why."""
        held = self.tables.quarantine.read(self.spark)
        return held.selectExpr(
            "device", "failed_rules", "reason", "CAST(payload AS STRING) AS payload"
        ).toPandas()

    def alerts(self, device: str) -> pd.DataFrame:
        """Return the commands that the rules made for a device, read from Pulsar."""
        from pyspark.sql import functions as F

        from bridge.contract import COMMANDS_TOPIC

        commands = (
            self.spark.read.format("pulsebridge")
            .options(**self._options(self.settings.pulsar.system_topic(COMMANDS_TOPIC)))
            .load()
            .where(F.col("__key") == device)
        )
        fields = "rule string, reading_id string, value double, message string, ts timestamp"
        parsed = commands.selectExpr(f"from_json(CAST(payload AS STRING), '{fields}') AS c").select("c.*")
        return (
            parsed.dropDuplicates(["rule", "reading_id"])
            .withColumnRenamed("ts", "event_time")
            .orderBy("event_time")
            .toPandas()
        )

    def live(self, device: str, seconds: float = 10.0) -> pd.DataFrame:
        """Watch the stream itself, Pulsar to this notebook without a table, and return a device's rows.

        It starts at the earliest message that Pulsar holds and ends when nothing new came, at the latest after
        ``seconds``.
        """
        from pyspark.sql import functions as F

        name = f"live_{uuid.uuid4().hex[:8]}"
        messages = (
            self.spark.readStream.format("pulsebridge")
            .options(**self._options(self._topic))
            .option("predefinedSubscription", f"notebook-{name}")
            .option("startingOffsets", "earliest")
            .load()
            .where(F.col("device") == device)
            .select("arrival_time", "mqtt_topic", "payload")
        )
        query = (
            messages.writeStream.format("memory")
            .queryName(name)
            .option("checkpointLocation", str(self.folder / name))
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination(int(max(seconds, 1)))
        finally:
            query.stop()
        fields = "ts timestamp, glucose double, id string"
        rows = self.spark.table(name).select(
            "arrival_time", F.from_json(F.col("payload").cast("string"), fields).alias("p")
        )
        return rows.selectExpr(
            "arrival_time", "p.id AS reading_id", "p.ts AS event_time", "p.glucose AS value"
        ).toPandas()

    # --- what the lab runs on ---

    @property
    def _topic(self) -> str:
        return self.settings.pulsar.readings_topic("lab")

    def _options(self, topic: str) -> dict[str, str]:
        from sources import connection_options

        self._check_servers()
        return {**connection_options(self.settings.pulsar), "topic": topic}

    def _check_servers(self) -> None:
        """Raise TransientError that names a server of the lab's own which ended by itself."""
        if self._stack is not None:
            self._stack.check()

    def _servers(self) -> dict[str, Any]:
        if _SERVERS in os.environ:
            return {}
        from bridge.local.stack import LocalStack

        self._stack = LocalStack(Settings().local)
        self._stack.start()
        return self._stack.settings_overrides()

    def _write_settings(self, servers: Mapping[str, Any]) -> None:
        from pulsebridge.lab_commands import PRESENCE, command_topic

        body: dict[str, dict[str, Any]] = {
            "mqtt": {"client_id": f"lab-ingest-{uuid.uuid4().hex[:8]}"},
            "ingest": {
                "rules": [
                    {
                        "name": "lab",
                        "filter": self._filter,
                        "topic": "lab",
                        "device": "{device}",
                        "command_topic": command_topic("{device}"),
                    }
                ]
            },
            "push": {"presence": [{"filter": PRESENCE}]},
            "streaming": {
                "root": str(self.folder / "lakehouse"),
                "topics": ["lab"],
                "quality_interval_s": 0,
            },
        }
        for path, value in servers.items():
            section, _, name = path.partition(".")
            body.setdefault(section, {})[name] = value
        if self._broker is not None:
            host, _, port = self._broker.removeprefix("mqtt://").partition(":")
            body["mqtt"] |= {"host": host, "port": int(port or 1883)}
        if self._payload is not None:
            body["streaming"]["rules"] = str(self._write_rules(self._payload))
        self._file.write_text(yaml.safe_dump(body), encoding="utf-8")

    def _write_rules(self, payload: Mapping[str, str]) -> Path:
        rules = yaml.safe_load(conf_path("rules.yaml").read_text(encoding="utf-8"))
        rules["readings"] = [{"filter": "#", "metric": "glucose", **payload}]
        file = self.folder / "rules.yaml"
        file.write_text(yaml.safe_dump(rules), encoding="utf-8")
        return file

    def _await_ingest(self) -> None:
        """Wait until ingest has subscribed: what is published before is not for it."""
        if self._ingest is None:
            raise TerminalError("the lab is not started", remedy="call start() first")
        deadline = time.monotonic() + _WAIT_S
        while "subscribed" not in (self.folder / "ingest.log").read_text(encoding="utf-8"):
            self._check_servers()
            if self._ingest.ended:
                raise self._ingest.failure()
            if time.monotonic() > deadline:
                raise TransientError("ingest has not subscribed", remedy=f"see {self.folder}/ingest.log")
            time.sleep(0.1)


def _at(spark: SparkSession, table: Table, version: int | None) -> DataFrame:
    if version is None:
        return table.read(spark)
    return spark.sql(f"SELECT * FROM {table.sql} VERSION AS OF {version}")


def _environment() -> dict[str, str]:
    packages = str(Path(__file__).resolve().parent.parent)
    return {**os.environ, "PYTHONPATH": os.pathsep.join([packages, *sys.path]), "PYTHONUNBUFFERED": "1"}
