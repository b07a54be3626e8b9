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
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml

from bridge.errors import TerminalError, TransientError
from bridge.settings import Settings
from bridge.settings.loading import conf_path, load
from streaming.tables import Tables

if TYPE_CHECKING:
    import altair as alt
    import pandas as pd
    from pyspark.sql import SparkSession

    from bridge.local.stack import LocalStack
    from streaming.demo.processes import Child

__all__ = ["Lab", "plot_device", "plot_live"]

_SERVERS: Final = "PULSEBRIDGE_PULSAR__SERVICE_URL"
_WAIT_S: Final = 120.0


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
        self._spark: SparkSession | None = None
        self.folder = Path(tempfile.mkdtemp(prefix="pulsebridge-lab-"))
        (self.folder / "owner.pid").write_text(str(os.getpid()), encoding="ascii")  # as the local stack does
        self.settings = Settings()

    def __enter__(self) -> Lab:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.close()

    def start(self) -> Lab:
        """Start what is missing: servers, ingest, Spark. Raises what the local stack raises."""
        from bridge.pulsar_admin import PulsarAdmin
        from streaming.demo.processes import Child, pulsebridge_command

        try:
            file = self._write_settings(self._servers())
            self.settings = load(file)
            with PulsarAdmin(self.settings.pulsar, timeout_s=30.0) as admin:
                admin.provision_namespaces()
                admin.create_partitioned(self._topic, self.settings.pulsar.partitions)
            self._ingest = Child(
                "ingest",
                pulsebridge_command("ingest", "--config", str(file)),
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

            self._spark = local_session("pulsebridge-notebook")
        return self._spark

    @property
    def tables(self) -> Tables:
        """The tables of this run."""
        return Tables.of(self.settings.streaming)

    def replay(self, devices: int = 2, readings: int = 288) -> int:
        """Publish real glucose readings over MQTT as some devices; 288 are a day. Return how many were acknowledged.

        Raises MissingExtraError without the recordings, TransientError when the broker did not take them all.
        """
        from bridge.mqtt.device import DeviceClient
        from streaming.demo.payloads import encode
        from streaming.demo.recordings import GLUCOSE, cut
        from streaming.demo.recordings import load as load_recording

        chosen = cut(GLUCOSE, load_recording(GLUCOSE), 100)[:devices]
        self._await_ingest()
        client = DeviceClient(self.settings.mqtt, f"lab-{uuid.uuid4().hex[:8]}", window=100)
        client.connect()
        try:
            for device in chosen:
                for row in device.readings[:readings]:
                    ts = row.ts.isoformat() + "Z"
                    body = encode(
                        device.reading_id(row.seq), ts, "glucose", row.value, time.time_ns() // 1000
                    )
                    client.publish(device.topic, body)
            if not client.flush(_WAIT_S):
                raise TransientError("the MQTT broker did not acknowledge all readings")
        finally:
            client.close()
        return sum(len(device.readings[:readings]) for device in chosen)

    def process(self, at_least: int = 0) -> None:
        """Run the jobs on what has arrived, until bronze holds ``at_least`` rows.

        Raises TransientError when they do not arrive within two minutes.
        """
        from streaming.job import Job, plan_of
        from streaming.stopping import StopRequest

        deadline = time.monotonic() + _WAIT_S
        while True:
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

    def readings(self, device: str) -> pd.DataFrame:
        """Return a device's readings in the order of its own time."""
        silver = self.tables.silver.read(self.spark).where(f"device = '{_quoted(device)}'")
        names = ("event_time", "metric", "value", "unit", "reading_id")
        return silver.select(*names).orderBy("event_time").toPandas()

    def quarantine(self) -> pd.DataFrame:
        """Return what was held back, and why."""
        held = self.tables.quarantine.read(self.spark)
        return held.selectExpr(
            "device", "failed_rules", "reason", "CAST(payload AS STRING) AS payload"
        ).toPandas()

    def alerts(self, device: str) -> pd.DataFrame:
        """Return the commands that the rules made for a device, read from Pulsar."""
        from bridge.contract import COMMANDS_TOPIC

        commands = (
            self.spark.read.format("pulsebridge")
            .options(**self._options(self.settings.pulsar.system_topic(COMMANDS_TOPIC)))
            .load()
            .where(f"__key = '{_quoted(device)}'")
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
        name = f"live_{uuid.uuid4().hex[:8]}"
        messages = (
            self.spark.readStream.format("pulsebridge")
            .options(**self._options(self._topic))
            .option("predefinedSubscription", f"notebook-{name}")
            .option("startingOffsets", "earliest")
            .load()
            .where(f"device = '{_quoted(device)}'")
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
        from pyspark.sql import functions as F

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

        return {**connection_options(self.settings.pulsar), "topic": topic}

    def _servers(self) -> dict[str, Any]:
        if _SERVERS in os.environ:
            return {}
        from bridge.local.stack import LocalStack

        self._stack = LocalStack(Settings().local)
        self._stack.start()
        return self._stack.settings_overrides()

    def _write_settings(self, servers: Mapping[str, Any]) -> Path:
        body: dict[str, dict[str, Any]] = {
            "mqtt": {"client_id": f"lab-ingest-{uuid.uuid4().hex[:8]}"},
            "ingest": {
                "rules": [
                    {
                        "name": "lab",
                        "filter": self._filter,
                        "topic": "lab",
                        "device": "{device}",
                        "command_topic": "devices/{device}/commands",
                    }
                ]
            },
            "streaming": {"root": str(self.folder / "lakehouse"), "topics": ["lab"], "quality_interval_s": 0},
        }
        for path, value in servers.items():
            section, _, name = path.partition(".")
            body.setdefault(section, {})[name] = value
        if self._broker is not None:
            host, _, port = self._broker.removeprefix("mqtt://").partition(":")
            body["mqtt"] |= {"host": host, "port": int(port or 1883)}
        if self._payload is not None:
            body["streaming"]["rules"] = str(self._write_rules(self._payload))
        file = self.folder / "pulsebridge.yaml"
        file.write_text(yaml.safe_dump(body), encoding="utf-8")
        return file

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
            if self._ingest.ended:
                raise self._ingest.failure()
            if time.monotonic() > deadline:
                raise TransientError("ingest has not subscribed", remedy=f"see {self.folder}/ingest.log")
            time.sleep(0.1)


def plot_device(readings: pd.DataFrame, alerts: pd.DataFrame, limit: float = 70.0) -> alt.LayerChart:
    """Return a device's readings as a line, the limit, and each alert as a mark with what it said."""
    import altair as alt
    import pandas as pd

    time_axis = alt.X("event_time:T", title="device's own time")
    line = (
        alt.Chart(readings)
        .mark_line(color="#35608d", strokeWidth=1.5)
        .encode(x=time_axis, y=alt.Y("value:Q", title="glucose, mg/dL", scale=alt.Scale(zero=False)))
    )
    rule = (
        alt.Chart(pd.DataFrame({"limit": [limit]}))
        .mark_rule(color="#b0413e", strokeDash=[4, 4])
        .encode(y="limit:Q")
    )
    marks = (
        alt.Chart(alerts)
        .mark_point(size=70, filled=True, opacity=0.9)
        .encode(
            x=time_axis,
            y="value:Q",
            color=alt.Color("rule:N", title="alert", scale=alt.Scale(range=["#e0a03b", "#b0413e"])),
            tooltip=["rule:N", "message:N", "event_time:T"],
        )
    )
    chart: alt.LayerChart = alt.layer(line, rule, marks).properties(width=760, height=280)
    return chart


def plot_live(rows: pd.DataFrame) -> alt.Chart:
    """Return the readings as they arrived, straight from the stream."""
    import altair as alt

    chart: alt.Chart = (
        alt.Chart(rows)
        .mark_circle(size=18, color="#35608d")
        .encode(
            x=alt.X("arrival_time:T", title="arrival at ingest"),
            y=alt.Y("value:Q", title="glucose, mg/dL", scale=alt.Scale(zero=False)),
            tooltip=["reading_id:N", "event_time:T", "value:Q"],
        )
        .properties(width=760, height=200)
    )
    return chart


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")


def _environment() -> dict[str, str]:
    packages = str(Path(__file__).resolve().parent.parent)
    return {**os.environ, "PYTHONPATH": os.pathsep.join([packages, *sys.path]), "PYTHONUNBUFFERED": "1"}
