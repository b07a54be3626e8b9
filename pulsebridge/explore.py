"""What the notebooks call: a small run of the whole way in, the tables as pandas, and plots.

The notebooks hold no logic; it is here, typed and tested. A ``Lab`` uses the servers that the settings name, or
starts a local stack of its own; it ends what it started.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml

from bridge.errors import TerminalError, TransientError
from bridge.settings import Settings
from bridge.settings.loading import conf_path, load
from bridge.topic_templates import Filter
from pulsebridge.plots import plot_commands, plot_device, plot_failures, plot_live, plot_versions
from streaming.tables import Table, table_of
from streaming.tables import text as _text

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame, SparkSession

    from bridge.local.stack import LocalStack
    from pulsebridge.lab_commands import CommandDesk
    from pulsebridge.processes import Child

__all__ = ["Lab", "plot_commands", "plot_device", "plot_failures", "plot_live", "plot_versions"]

_SERVERS: Final = "PULSEBRIDGE_PULSAR__SERVICE_URL"
_TABLE: Final = "measurements"
_NAME_LINES: Final = "spark.python.sql.dataFrameDebugging.enabled"
_WAIT_S: Final = 120.0


class Lab:
    """Servers, ingest, Spark and the tables of one small run, to look at device streams.

    Without arguments it has the routes, the table ``measurements``, the suite and the alert rules of ``conf/demo``.
    ``broker`` is the MQTT broker to read (``mqtt://host:port``), default the local stack's. ``decodings`` say which of its
    topics and how a payload becomes rows of ``measurements``, as under ``streaming.tables``: ``{"filter":
    "plant/+device/state", "fields": "temperature double", "id": "$.seq", "time": "$.at"}``. ``alerts`` are rules as in
    ``conf/rules.yaml``. With ``decodings`` there is no suite, and no rule but these.
    """

    def __init__(
        self,
        broker: str | None = None,
        *decodings: Mapping[str, Any],
        alerts: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        self._broker = broker
        self._decodings = decodings
        self._alerts = alerts
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
        """Start what is missing: servers, ingest, Spark. Raises what the local stack raises, ConfigError for decodings
        that will not do.
        """
        from pulsebridge.demo.setup import provision
        from pulsebridge.processes import Child, pulsebridge_command

        try:
            self._write_settings(self._servers())
            self.settings = load(self._file)
            provision(self.settings)
            command = pulsebridge_command("ingest", "--config", str(self._file))
            self._ingest = Child("ingest", command, self.folder / "ingest.log", _environment())
            self._ingest.start()
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """End what this lab started, and remove its folder."""
        if self._desk is not None:
            self._desk.close()
        if self._spark is not None:
            self._spark.stop()
        if self._ingest is not None:
            self._ingest.ask()
            self._ingest.wait()
        if self._stack is not None:
            self._stack.stop()
        self._desk = self._spark = self._ingest = self._stack = None
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
        from sinks.options import sink_options

        return sink_options(self.settings.pulsar, self.settings.max_name_bytes)

    # --- in ---

    def publish(self, topic: str, *payloads: bytes) -> int:
        """Publish payloads on an MQTT topic. Return how many the broker acknowledged.

        Raises TransientError when the broker did not take them all.
        """
        self._await_ingest()
        return self._published((topic, payload) for payload in payloads)

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

    def process(self, at_least: int = 0) -> None:
        """Run the pipeline on what has arrived, until bronze has ``at_least`` rows.

        Raises TransientError when they do not arrive within two minutes.
        """
        from streaming.job import Job
        from streaming.loading import pipeline_of

        deadline = time.monotonic() + _WAIT_S
        while True:
            self._check_servers()
            job = Job(self.spark, self.settings, pipeline_of(self.settings))
            job.prepare()
            job.run(threading.Event(), available_now=True)
            stored = self.table("bronze").count()
            if stored >= at_least:
                return
            if time.monotonic() > deadline:
                raise TransientError(
                    f"{stored} of {at_least} messages arrived", remedy=f"see {self.folder}/ingest.log"
                )

    # --- what is there ---

    def table(self, name: str = _TABLE, version: int | None = None) -> DataFrame:
        """Return the rows of a table, as they are or were at a version."""
        found = self._table(name)
        if version is None:
            return found.read(self.spark)
        return self.spark.sql(f"SELECT * FROM {found.sql} VERSION AS OF {version}")

    def devices(self) -> pd.DataFrame:
        """Return the devices seen, with the number of their rows and the first and last of their times."""
        from pyspark.sql import functions as F

        times = (F.min("event_time").alias("first"), F.max("event_time").alias("last"))
        found = self.table().groupBy("device").agg(F.count("*").alias("rows"), *times)
        return found.orderBy("device").toPandas()

    def readings(self, device: str, version: int | None = None) -> pd.DataFrame:
        """Return a device's rows in the order of its own time, as they are or were at a version."""
        rows = self.table(version=version).where(f"device = {_text(device)}")
        return rows.select("_id", *_columns(rows)).orderBy("event_time").toPandas()

    def history(self) -> pd.DataFrame:
        """Return the versions of the table, the oldest first: when each was made, by what, and with how many rows."""
        found = self.spark.sql(f"DESCRIBE HISTORY {self._table(_TABLE).sql}")
        rows = "CAST(operationMetrics.numOutputRows AS BIGINT) AS rows"
        return found.selectExpr("version", "timestamp", "operation", rows).orderBy("version").toPandas()

    def origin(self, device: str, id: str) -> pd.DataFrame:
        """Return where a row came from: its message in bronze, with its position in Pulsar and its times."""
        of = self.table().where(f"device = {_text(device)} AND _id = {_text(id)}").select("_position")
        place = "topic = __topic AND p.partition <=> b.partition AND ledger = ledger_id AND entry = entry_id"
        found = self.table("bronze").alias("b").join(of.select("_position.*").alias("p"), how="cross")
        rows: pd.DataFrame = (
            found.where(f"{place} AND index <=> batch_index")
            .selectExpr(
                "__topic", "b.partition", "ledger_id", "entry_id", "batch_index", "mqtt_topic", "arrival_time",
                "__publishTime AS publish_time", "CAST(payload AS STRING) AS payload",
            )
            .toPandas()
        )  # fmt: skip
        return rows.T.rename(columns=lambda _: id)

    def verdicts(self) -> pd.DataFrame:
        """Let Great Expectations validate all that the pipeline has processed; a row for each rule of the suite.

        Raises ConfigError when the table has no suite.
        """
        import pandas as pd

        from streaming.quality import all_verdicts
        from streaming.reading import Reader
        from streaming.suites import Suites

        suite = Suites(self.settings.streaming.expectations).suite(_TABLE)
        found = all_verdicts(self.spark, Reader(self.spark, self.settings), _TABLE, suite)
        return pd.DataFrame([one.as_dict() for one in found])

    def quarantine(self) -> pd.DataFrame:
        """Return the rows that failed a rule, and why."""
        return (
            self.table("quarantine")
            .selectExpr("device", "failed_rules", "reason", "CAST(payload AS STRING) AS payload")
            .toPandas()
        )

    def alerts(self, device: str) -> pd.DataFrame:
        """Return the alerts of a device."""
        rows = self.table("alerts").where(f"device = {_text(device)}").orderBy("event_time", "rule")
        return rows.select("rule", "reading_id", "event_time", "value", "message", "command_id").toPandas()

    def live(self, device: str, seconds: float = 10.0) -> pd.DataFrame:
        """Return a device's rows decoded straight from Pulsar, with no table between.

        It starts at the earliest message that Pulsar has and ends when nothing new came, at the latest after ``seconds``.
        """
        from streaming.decoding import decoded

        name = f"live_{uuid.uuid4().hex[:8]}"
        topics = ",".join(map(self.settings.pulsar.readings_topic, self.settings.streaming.topics))
        source = self.spark.readStream.format("pulsebridge").options(**self._options(topics))
        source = source.option("predefinedSubscription", f"notebook-{name}").option(
            "startingOffsets", "earliest"
        )
        decodings = self.settings.streaming.tables[0].decoding
        rows = decoded(source.load(), decodings, self.settings.ingest.all_rules)
        query = (
            rows.where(f"device = {_text(device)} AND _fault IS NULL")
            .select("_id", *_columns(rows))
            .writeStream.format("memory")
            .queryName(name)
            .option("checkpointLocation", str(self.folder / name))
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination(int(max(seconds, 1)))
        finally:
            query.stop()
        return self.spark.table(name).toPandas()

    # --- what the lab runs on ---

    def _table(self, name: str) -> Table:
        return table_of(name, self.settings.streaming)

    def _options(self, topics: str) -> dict[str, str]:
        from sources import connection_options

        self._check_servers()
        return {**connection_options(self.settings.pulsar), "topics": topics}

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
        from pulsebridge.lab_commands import PRESENCE

        body: dict[str, dict[str, Any]] = yaml.safe_load(
            conf_path("demo/pulsebridge.yaml").read_text(encoding="utf-8")
        )
        rules = yaml.safe_load(conf_path("demo/rules.yaml").read_text(encoding="utf-8"))
        if self._decodings:
            routes = [_route(n, one["filter"]) for n, one in enumerate(self._decodings)]
            body["ingest"]["rules"] = routes
            body["streaming"]["topics"] = [route["topic"] for route in routes]
            decodings = [dict(one) for one in self._decodings]
            body["streaming"]["tables"] = [{"name": _TABLE, "decoding": decodings}]
            rules = {"alerts": [dict(rule) for rule in self._alerts]}
        else:
            shutil.copytree(conf_path("demo/gx"), self.folder / "gx")
            body["streaming"]["expectations"] = str(self.folder / "gx")
        file = self.folder / "rules.yaml"
        file.write_text(yaml.safe_dump(rules), encoding="utf-8")
        body["streaming"] |= {
            "root": str(self.folder / "lakehouse"), "rules": str(file), "quality_interval_s": 0
        }  # fmt: skip
        body["mqtt"] = {"client_id": f"lab-ingest-{uuid.uuid4().hex[:8]}"}
        body["push"] = {"presence": [{"filter": PRESENCE}]}
        for path, value in servers.items():
            section, _, name = path.partition(".")
            body.setdefault(section, {})[name] = value
        if self._broker is not None:
            host, _, port = self._broker.removeprefix("mqtt://").partition(":")
            body["mqtt"] |= {"host": host, "port": int(port or 1883)}
        self._file.write_text(yaml.safe_dump(body), encoding="utf-8")

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

    def _await_ingest(self) -> None:
        """Wait until ingest has subscribed: what is published before is not for it."""
        if self._ingest is None:
            raise TerminalError("the lab is not started", remedy="call start() first")
        deadline = time.monotonic() + _WAIT_S
        while "subscribed" not in self._ingest.logged():
            self._check_servers()
            if self._ingest.ended:
                raise self._ingest.failure()
            if time.monotonic() > deadline:
                raise TransientError("ingest has not subscribed", remedy=f"see {self.folder}/ingest.log")
            time.sleep(0.1)


def _route(number: int, filter: str) -> dict[str, str]:
    """Return the topic rule of a decoding."""
    from pulsebridge.lab_commands import command_topic

    route = {"name": f"lab-{number}", "filter": filter, "topic": f"lab-{number}"}
    if "device" in Filter.parse(filter).names:
        route |= {"device": "{device}", "command_topic": command_topic("{device}")}
    return route


def _columns(rows: DataFrame) -> list[str]:
    """Return the columns for people."""
    return [f"`{name}`" for name in rows.columns if not name.startswith("_") and name != "command_topic"]


def _environment() -> dict[str, str]:
    packages = str(Path(__file__).resolve().parent.parent)
    return {**os.environ, "PYTHONPATH": os.pathsep.join([packages, *sys.path]), "PYTHONUNBUFFERED": "1"}
