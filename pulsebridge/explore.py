"""A lab for notebooks: servers, ingest, a Spark session, and devices that send real readings.

A ``Lab`` uses the servers that the settings name, or starts a local stack; it stops everything that it started. The
notebooks contain the reads and computations as PySpark. ``pulsebridge.plots`` displays the results.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

from bridge import logs
from bridge.errors import FencedError, TransientError
from bridge.settings import Settings
from bridge.settings.loading import CONFIG_VARIABLE, conf_path, load
from bridge.settings.log import LogSettings
from pulsebridge.plots import Chart, data_docs, plot_commands, show_both

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pulsebridge.command_desk import CommandDesk
    from pulsebridge.demo.recordings import VirtualDevice
    from pulsebridge.local.stack import LocalStack
    from pulsebridge.processes import Child

__all__ = ["Chart", "Feed", "Lab", "data_docs", "plot_commands"]

_SERVERS: Final = "PULSEBRIDGE_PULSAR__SERVICE_URL"
_WAIT_S: Final = 120.0
_SESSION_S: Final = 60
"""Time for which a broker keeps the session of a closed lab, in seconds."""


class Lab:
    """Servers, ingest and Spark for a notebook.

    ``config`` is the reader's own settings file. The default is ``conf/demo``: its topics, its table ``measurements``
    with a suite, its alert rules. Servers that neither the file nor the environment names are started on this machine.
    If the file names Pulsar, a Pulsebridge is running for it, and only Spark is started.

    Until the lab is closed, ``pipelines.read`` finds its tables.
    """

    def __init__(self, config: str | Path | None = None) -> None:
        self._config = config
        self._stack: LocalStack | None = None
        self._ingest: Child | None = None
        self._desk: CommandDesk | None = None
        self._spark: SparkSession | None = None
        self._feeds: list[Feed] = []
        self._subscriptions: list[str] = []
        self._config_before = os.environ.get(CONFIG_VARIABLE)
        self.folder = Path(tempfile.mkdtemp(prefix="pulsebridge-lab-"))
        (self.folder / "owner.pid").write_text(str(os.getpid()), encoding="ascii")  # as the local stack does
        self._file = self.folder / "pulsebridge.yaml"
        self.settings = Settings()

    def __enter__(self) -> Lab:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def start(self) -> Lab:
        """Start the missing parts. Raises ConfigError for invalid settings, and the errors of the local stack."""
        logs.configure(LogSettings(level="warning"))
        show_both()
        try:
            body = self._own_settings()
            attached = "service_url" in body.get("pulsar", {})
            if not attached and _SERVERS not in os.environ:
                self._start_servers(body)
            self._file.write_text(yaml.safe_dump(body), encoding="utf-8")
            os.environ[CONFIG_VARIABLE] = str(self._file)
            self.settings = load(self._file)
            if not attached:
                self._start_ingest()
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Stop the parts that this lab started, and remove its folder."""
        for feed in self._feeds:
            feed.stop()
        if self._desk is not None:
            self._desk.close()
        if self._spark is not None:
            for query in self._spark.streams.active:
                query.stop()
            self._spark.stop()
        if self._ingest is not None:
            self._ingest.ask()
            self._ingest.wait()
        running_before = self._stack is None
        if self._stack is not None:
            self._stack.stop()
        self._desk = self._spark = self._ingest = self._stack = None
        if self._config_before is None:
            os.environ.pop(CONFIG_VARIABLE, None)
        else:
            os.environ[CONFIG_VARIABLE] = self._config_before
        shutil.rmtree(self.folder, ignore_errors=True)
        if running_before and self._subscriptions:
            self._delete_subscriptions()

    @property
    def spark(self) -> SparkSession:
        """The notebook's Spark session, as the job's: of this process, or with SPARK_REMOTE of Spark Connect."""
        if self._spark is None:
            from pulsebridge.spark_session import job_session

            # With this setting an error names the line of its cell.
            lines = {"spark.python.sql.dataFrameDebugging.enabled": "true"}
            self._spark = job_session(self.settings, more=lines)
        return self._spark

    @property
    def source(self) -> dict[str, str]:
        """Options of ``format("pulsebridge")``: the servers, the credentials, and all topics of readings."""
        from bridge.pulsar.admin import PulsarAdmin
        from bridge.routing.readings_topics import topics_to_read

        with PulsarAdmin(self.settings.pulsar) as admin:
            return self._options(",".join(topics_to_read(self.settings, admin.topics)))

    def messages(self, filter: str = "#", **declared: Any) -> DataFrame:
        """Return the stream of MQTT messages that match a filter, from Pulsar's first one. They are decoded as
        ``pipelines.messages`` of a module does. Closing the lab deletes the stream's subscription.
        """
        from streaming.reading import Reader

        subscription = f"notebook-{uuid.uuid4().hex[:8]}"
        self._subscriptions.append(subscription)
        streaming = self.settings.streaming.model_copy(update={"subscription": subscription})
        settings = self.settings.model_copy(update={"streaming": streaming})
        return Reader(self.spark, settings).messages(filter, declared)

    @property
    def root(self) -> str:
        """Folder or URI of the tables that are not in a schema."""
        from streaming.tables import resolve_root

        return resolve_root(self.settings.streaming.root)

    @property
    def desk(self) -> CommandDesk:
        """The command path, started at its first use (see ``pulsebridge.command_desk``)."""
        if self._desk is None:
            from pulsebridge.command_desk import CommandDesk

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

    def publish(self, topic: str, *payloads: bytes | str) -> int:
        """Publish payloads on an MQTT topic. Return how many the broker acknowledged.

        Raises TransientError if the broker did not acknowledge all of them.
        """
        return self._feed((topic, _bytes(payload)) for payload in payloads).wait()

    def replay(
        self, wearables: int = 2, buoys: int = 0, readings: int = 288, fault_every: int = 0, rate: float = 0
    ) -> Feed:
        """Publish real readings over MQTT as some devices, in the background. Glucose is every five minutes (288 are a
        day) and sea temperature every half hour. ``rate``: readings per second; 0: as fast as the broker accepts them.
        A faulty reading follows each ``fault_every`` readings of a device: a value that no sensor measures, no value,
        or truncated JSON.

        Raises MissingExtraError without the recordings.
        """
        from pulsebridge.demo.recordings import BUOY, GLUCOSE, cut
        from pulsebridge.demo.recordings import load as load_recording

        devices = [
            device
            for kind, count in ((GLUCOSE, wearables), (BUOY, buoys))
            for device in (cut(kind, load_recording(kind), 100 if kind is GLUCOSE else 20)[:count])
        ]
        return self._feed(_messages(devices, readings, fault_every), rate)

    def process(self, *flows: str, at_least: int = 0) -> None:
        """Run flows of the pipeline, or all, until bronze has ``at_least`` rows.

        Raises TransientError if they do not arrive within two minutes.
        """
        from streaming.job import Job
        from streaming.loading import pipeline_of
        from streaming.tables import table_of

        deadline = time.monotonic() + _WAIT_S
        while True:
            self._check_servers()
            job = Job(self.spark, self.settings, pipeline_of(self.settings), flows)
            job.prepare()
            job.run(threading.Event(), available_now=True)
            stored = table_of("bronze", self.settings.streaming).read(self.spark).count()
            if stored >= at_least:
                return
            if time.monotonic() > deadline:
                raise TransientError(f"{stored} of {at_least} messages arrived", remedy=f"see {self.folder}/ingest.log")

    # --- the parts of the lab ---

    def _own_settings(self) -> dict[str, dict[str, Any]]:
        from pulsebridge.command_desk import PRESENCE

        file = conf_path("demo/pulsebridge.yaml") if self._config is None else Path(self._config)
        body: dict[str, dict[str, Any]] = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
        streaming = body.setdefault("streaming", {})
        streaming.setdefault("root", str(self.folder / "lakehouse"))
        streaming.setdefault("spark", {}).setdefault("log", str(self.folder / "spark.log"))
        if self._config is None:
            shutil.copytree(conf_path("demo/gx"), self.folder / "gx")  # GX writes its Data Docs there
            streaming["suites"] = str(self.folder / "gx")
            streaming["alerts"] = str(conf_path("demo/rules.yaml"))
        # A separate session at the broker, which expires soon after the lab is closed.
        mqtt = {"client_id": f"lab-{uuid.uuid4().hex[:8]}", "session_expiry": f"{_SESSION_S}s"}
        body["mqtt"] = body.get("mqtt", {}) | mqtt
        body.setdefault("push", {}).setdefault("presence", {}).setdefault("rules", [{"filter": PRESENCE}])
        return body

    def _start_servers(self, body: dict[str, dict[str, Any]]) -> None:
        from pulsebridge.local.stack import LocalStack

        self._stack = LocalStack(Settings().local)
        self._stack.start()
        own_broker = "host" in body["mqtt"]
        for path, value in self._stack.settings_overrides().items():
            section, _, name = path.partition(".")
            if section != "mqtt" or not own_broker:
                body.setdefault(section, {})[name] = value

    def _start_ingest(self) -> None:
        from bridge.pulsar.admin import PulsarAdmin
        from bridge.pulsar.provisioning import provision_commands
        from bridge.routing.readings_topics import topics_to_read
        from pulsebridge.processes import Child, pulsebridge_command

        with PulsarAdmin(self.settings.pulsar, timeout_s=30.0) as admin:
            provision_commands(admin)
            for topic in topics_to_read(self.settings, lambda _: ()):
                admin.create_partitioned(topic, self.settings.pulsar.partitions)
        command = pulsebridge_command("ingest", "--config", str(self._file))
        self._ingest = Child("ingest", command, self.folder / "ingest.log", _environment())
        self._ingest.start()

    def _delete_subscriptions(self) -> None:
        """Delete the subscriptions of this notebook, because they would retain messages without a reader."""
        from bridge.pulsar.admin import PulsarAdmin
        from bridge.routing.readings_topics import topics_to_read
        from sources.subscriptions import delete, retained_topics

        # A query that has just ended may still be connected.
        patient = Retrying(
            retry=retry_if_exception_type(FencedError), stop=stop_after_delay(20), wait=wait_fixed(0.2),
            reraise=True,
        )  # fmt: skip
        with PulsarAdmin(self.settings.pulsar) as admin:
            topics = topics_to_read(self.settings, admin.topics)
            for subscription in self._subscriptions:
                for topic in retained_topics(admin, topics, subscription):
                    patient(delete, admin, [topic])
        self._subscriptions.clear()

    def _options(self, topics: str) -> dict[str, str]:
        from sources import connection_options

        self._check_servers()
        return {**connection_options(self.settings.pulsar), "topics": topics}

    def _check_servers(self) -> None:
        """Raise TransientError that names a server of this lab that ended by itself."""
        if self._stack is not None:
            self._stack.check()

    def _feed(self, messages: Iterable[tuple[str, bytes]], rate: float = 0) -> Feed:
        if self._ingest is not None:  # what is published before ingest has subscribed does not reach it
            self._ingest.await_log("subscribed", _WAIT_S, check=self._check_servers)
        feed = Feed(self.settings, messages, rate)
        self._feeds.append(feed)
        return feed


class Feed:
    """Messages that a separate thread publishes."""

    def __init__(self, settings: Settings, messages: Iterable[tuple[str, bytes]], rate: float) -> None:
        self._mqtt = settings.mqtt
        self._messages = messages
        self._pause_s = 1 / rate if rate else 0.0
        self._stop = threading.Event()
        self._failure: Exception | None = None
        self._sent = 0
        self._thread = threading.Thread(target=self._run, name="lab-feed", daemon=True)
        self._thread.start()

    def wait(self) -> int:
        """Wait until all are sent. Return how many the broker acknowledged.

        Raises TransientError if it did not acknowledge all of them.
        """
        self._thread.join()
        if self._failure is not None:
            raise self._failure
        return self._sent

    def stop(self) -> None:
        """Stop sending."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        from bridge.mqtt.device import DeviceClient

        client = DeviceClient(self._mqtt, f"lab-{uuid.uuid4().hex[:8]}", window=100)
        try:
            client.connect()
            for topic, payload in self._messages:
                if self._stop.wait(self._pause_s):
                    break
                client.publish(topic, payload)
                self._sent += 1
            if not client.flush(_WAIT_S):
                raise TransientError("the MQTT broker did not acknowledge all readings")
        except Exception as e:  # noqa: BLE001 — re-raised in the waiting thread
            self._failure = e
        finally:
            client.close()


def _messages(devices: Iterable[VirtualDevice], readings: int, fault_every: int) -> Iterator[tuple[str, bytes]]:
    """Yield topic and payload of each reading, alternating between the devices."""
    from pulsebridge.demo.recordings import FAULTS, encode, encode_fault

    chosen = list(devices)
    for n in range(readings):
        for device in chosen:
            if n >= len(device.readings):
                continue
            row = device.readings[n]
            name, ts, now_us = device.reading_id(row.seq), row.ts.isoformat() + "Z", time.time_ns() // 1000
            yield device.topic, encode(name, ts, device.kind.metric, row.value, now_us)
            if fault_every and (n + 1) % fault_every == 0:
                kind = FAULTS[(n + 1) // fault_every % len(FAULTS)]
                yield device.topic, encode_fault(kind, f"{name}-x", ts, device.kind.metric, now_us)


def _bytes(payload: bytes | str) -> bytes:
    return payload.encode() if isinstance(payload, str) else payload


def _environment() -> Mapping[str, str]:
    packages = str(Path(__file__).resolve().parent.parent)
    return {**os.environ, "PYTHONPATH": os.pathsep.join([packages, *sys.path]), "PYTHONUNBUFFERED": "1"}
