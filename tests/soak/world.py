"""The world of a soak: devices, ingest, push and tables on a stack whose data is kept from piece to piece."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import pulsar
import pyarrow.compute as pc
import yaml
from deltalake import DeltaTable
from pyarrow import RecordBatchReader

from bridge.contract import COMMANDS_TOPIC, partition_name
from bridge.contract.commands import encode_command
from bridge.mqtt.types import Message
from bridge.pulsar.admin import PulsarAdmin
from bridge.settings import PulsarSettings, Settings
from pulsebridge.local.stack import LocalStack
from tests.chaos.world import TOPIC, World
from tests.soak.account import Arrivals
from tests.soak.sampling import disk_bytes, sample_of
from tests.support.fleet import Fleet
from tests.support.push import Devices, PushProcess, command, provision, push_settings
from tests.support.reading_back import patiently, quiet
from tests.support.stack import mqtt_settings, provisioned
from tests.support.tcp_proxy import TcpProxy
from tests.support.waiting import patient, poll_for

__all__ = ["SoakWorld", "State", "soak_world"]

DEVICES: Final = 20
RATE: Final = 40.0
"""Messages a second."""
COMMANDS_S: Final = 0.25
"""Seconds between two commands."""


@dataclass
class State:
    """What a piece hands to the next one."""

    namespace: str = ""
    root: str = ""
    seconds: float = 0.0
    confirmed: list[int] = field(default_factory=list)
    written: dict[str, int] = field(default_factory=dict)
    """Commands written, by device."""
    readings: dict[str, int] = field(default_factory=dict)
    commands: dict[str, int] = field(default_factory=dict)
    """The last number that arrived of each device."""

    @classmethod
    def load(cls, file: Path) -> State:
        """Return the state of the last piece, a new one before the first."""
        return cls(**json.loads(file.read_text("utf-8"))) if file.exists() else cls()

    def store(self, file: Path) -> None:
        """Write it for the next piece."""
        file.write_text(json.dumps(asdict(self)) + "\n", "utf-8")


class SoakWorld:
    """Everything that runs; ``kills`` counts what was disturbed."""

    def __init__(self, stack: LocalStack, folder: Path, proxy: TcpProxy, state: State) -> None:
        self.stack = stack
        self.state = state
        self.kills: Counter[str] = Counter()
        self.readings, self.commands = Arrivals(dict(state.readings)), Arrivals(dict(state.commands))
        self._folder = folder
        self.pulsar = self._provisioned()
        self.ingest = World(stack, folder, proxy, pulsar_settings=self.pulsar, client_id=state.root or None)
        state.root = self.ingest.root
        mqtt = mqtt_settings(stack, client_id=state.root, keep_alive="5s", reconnect_max="500ms")
        self.settings: Settings = push_settings(self.pulsar, mqtt, confirm="device", offline={"probe_min": "2s"})
        provision(self.settings)
        self._push: PushProcess | None = None
        self._stream: subprocess.Popen[bytes] | None = None
        self.fleet: Fleet | None = None
        self.sending, self._stopping = threading.Event(), threading.Event()
        self.sending.set()
        self._threads = [
            threading.Thread(target=run, daemon=True) for run in (self._write_commands, self._read_readings)
        ]

    def _provisioned(self) -> PulsarSettings:
        if self.state.namespace:
            names = {"namespace": self.state.namespace, "system_namespace": f"{self.state.namespace}-system"}
            return provisioned(self.stack, partitions=2, **names)
        made = provisioned(self.stack, partitions=2)
        self.state.namespace = made.namespace
        with PulsarAdmin(made, timeout_s=30) as admin:
            admin.create_partitioned(made.readings_topic(TOPIC), 2)
        return made

    # --- processes ---

    def start(self, name: str) -> None:
        """Start ingest, push or stream."""
        if name == "ingest":
            self.ingest.start()
        elif name == "push":
            self._push = PushProcess(self.settings, self._folder)
        else:
            config = self._folder / "stream.yaml"
            decoding = {"filter": "#", "format": "raw", "fields": "text string"}
            body = {
                "pulsar": self.pulsar.model_dump(mode="json", exclude_defaults=True),
                "streaming": {
                    "root": str(self._folder / "tables"),
                    "topics": [TOPIC],
                    "built_in": [],
                    "trigger": {"interval": "2s"},
                    "tables": [{"name": "soak", "decoding": [decoding]}],
                    "spark": {"log": str(self._folder / "spark.log")},
                },
                "metrics": {"port": 0},
            }
            config.write_text(yaml.safe_dump(body), "utf-8")
            line = [sys.executable, "-c", "from pulsebridge.cli.app import main; main()", "stream", "-c", str(config)]
            with (self._folder / "stream.log").open("ab") as log:
                self._stream = subprocess.Popen(line, stdout=log, stderr=log)

    def pids(self) -> dict[str, int]:
        """Return the pids of all that is measured."""
        assert self.ingest.process is not None
        assert self._push is not None
        assert self._stream is not None
        own = {"ingest": self.ingest.process.pid, "push": self._push.pid, "stream": self._stream.pid}
        return {**own, **self.stack.pids}

    def kill(self, name: str) -> None:
        """Kill a process or a server with -9 and start it again."""
        if name in ("mqtt", "pulsar"):
            self.stack.kill(name)  # type: ignore[arg-type]
            self.stack.restart(name)  # type: ignore[arg-type]
            return
        if name == "ingest":
            self.ingest.kill_worker()
        elif name == "push":
            assert self._push is not None
            self._push.kill()
        else:
            assert self._stream is not None
            self._stream.kill()
            self._stream.wait()
        self.start(name)

    def ended(self) -> list[str]:
        """Return what has ended by itself."""
        alive = {"push": self._push is not None and _runs(self._push.pid)}
        for name, process in (("ingest", self.ingest.process), ("stream", self._stream)):
            alive[name] = process is not None and process.poll() is None
        return [f"{name} ended by itself" for name, runs in alive.items() if not runs]

    def end(self) -> None:
        """End all threads and processes."""
        self.sending.clear()
        self._stopping.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(patient(20))
        if self.fleet is not None:
            self.fleet.stop()
        self.ingest.end_or_kill()
        if self._push is not None and _runs(self._push.pid):
            self._push.kill()
        if self._stream is not None and self._stream.poll() is None:
            self._stream.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._stream.wait(patient(30))
            self._stream.kill()
            self._stream.wait()

    # --- messages ---

    def begin(self) -> None:
        """Begin to publish, to write commands and to count."""
        self.fleet = self.ingest.fleet(devices=DEVICES, rate=RATE, confirmed=self.state.confirmed)
        self.fleet.__enter__()
        for thread in self._threads:
            thread.start()

    def _write_commands(self) -> None:
        """Write a command to one device after the other until the end, and count what Pulsar has confirmed."""
        client = pulsar.Client(self.pulsar.service_url, logger=quiet())
        topic = partition_name(self.settings.pulsar.system_topic(COMMANDS_TOPIC), 0)
        producer = patiently(client.create_producer, topic, send_timeout_millis=0)
        turn = 0
        while self.sending.is_set() and not self._stopping.wait(COMMANDS_S):
            device = f"d{turn % DEVICES}"
            turn += 1
            number = self.state.written.get(device, 0)
            self.state.written[device] = number + 1
            one = replace(command(self.settings, device, number), payload=f"{number} {time.time()}".encode())
            producer.send_async(
                one.payload, lambda _result, _id: None, partition_key=device, properties=encode_command(one)
            )
        producer.flush()
        client.close()

    def command_received(self, device: str, message: Message) -> None:
        """Count a command at its device."""
        number, _, sent_at = message.payload.partition(b" ")
        self.commands.arrived(device, int(number), float(sent_at))

    def _read_readings(self) -> None:
        """Count the readings in Pulsar until the end. A message that Pulsar delivers twice counts once."""
        client = pulsar.Client(self.pulsar.service_url, logger=quiet())
        topic = self.pulsar.readings_topic(TOPIC)
        consumer = patiently(client.subscribe, topic, "soak", initial_position=pulsar.InitialPosition.Earliest)
        places: dict[int, tuple[int, int, int]] = {}
        while not self._stopping.is_set():
            with suppress(pulsar.PulsarException):  # nothing new, or Pulsar was killed and sends it again
                message = consumer.receive(500)
                consumer.acknowledge(message)
                found = message.message_id()
                place = (found.ledger_id(), found.entry_id(), found.batch_index())
                if place > places.get(found.partition(), (-1, -1, -1)):
                    places[found.partition()] = place
                    device, _, number = message.data().decode().partition("#")
                    self.readings.arrived(device, int(number), message.event_timestamp() / 1000)
        client.close()

    # --- samples and the account ---

    def sent(self) -> dict[str, int]:
        """Return how many readings of each device the MQTT broker has confirmed."""
        assert self.fleet is not None
        return {f"d{n:03d}": count for n, count in enumerate(self.fleet.confirmed)}

    def sample(self) -> dict[str, Any]:
        """Return a sample of everything, by ``kind name``."""
        found: dict[str, Any] = sample_of(self.pids())
        messages = max(1, self.readings.total + self.commands.total)
        found["disk mqtt"] = disk_bytes(self.stack.data_dir / "mqtt/data")
        found["disk_per_message pulsar"] = disk_bytes(self.stack.data_dir / "pulsar/data") / messages
        found["disk_per_message tables"] = disk_bytes(self._folder / "tables") / messages
        found["lag readings"] = self.readings.lacking(self.sent())
        found["lag commands"] = self.commands.lacking(dict(self.state.written))
        found["latency readings"], found["latency commands"] = self.readings.latency_s(), self.commands.latency_s()
        with suppress(Exception):  # Pulsar may be dead
            found["lag tables"] = self._backlog()
        return found

    def _backlog(self) -> int:
        topic = self.pulsar.readings_topic(TOPIC)
        with PulsarAdmin(self.pulsar, timeout_s=5) as admin:
            of = [admin.stats(partition_name(topic, n))["subscriptions"] for n in range(2)]
        return sum(
            int(one["msgBacklog"]) for found in of for name, one in found.items() if name.startswith("pulsebridge")
        )

    def rows(self) -> tuple[int, int]:
        """Return how many different messages the table has, and how many rows are second copies."""
        numbers: dict[str, set[int]] = {}
        rows = 0
        for batch in RecordBatchReader.from_stream(
            DeltaTable(str(self._folder / "tables/soak")).scan(columns=["text"])
        ):
            for text in pc.cast(batch["text"], "string").to_pylist():
                device, _, number = text.partition("#")
                numbers.setdefault(device, set()).add(int(number))
                rows += 1
        different = sum(map(len, numbers.values()))
        return different, rows - different

    def account(self) -> list[str]:
        """Stop sending, wait until all has arrived, and return the faults."""
        assert self.fleet is not None
        self.sending.clear()
        self._threads[0].join(patient(60))
        self.fleet.stop()
        self.state.confirmed = list(self.fleet.confirmed)
        faults = self.ended()

        def whole() -> bool:
            lacking = self.readings.lacking(self.sent()) + self.commands.lacking(self.state.written)
            return not lacking and self.rows()[0] >= self.readings.total

        try:
            poll_for(whole, 100, "every message", every=2.0)
        except AssertionError:
            faults += [f"{self.readings.lacking(self.sent())} readings are missing in Pulsar"]
            faults += [f"{self.commands.lacking(self.state.written)} commands are missing at their devices"]
            faults += [f"the table has {self.rows()[0]} of {self.readings.total} readings"]
        self.state.readings, self.state.commands = self.readings.last, self.commands.last
        return [*faults, *self.readings.faults, *self.commands.faults]


def _runs(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@contextmanager
def soak_world(stack: LocalStack, folder: Path, state: State) -> Iterator[SoakWorld]:
    """Run everything until the block ends; ``state`` is that of the last piece, and gets that of this one."""
    with ExitStack() as closing:
        proxy = closing.enter_context(TcpProxy(stack.mqtt_host, stack.mqtt_port))
        one = SoakWorld(stack, folder, proxy, state)
        closing.callback(one.end)
        closing.enter_context(Devices(one.settings, lambda _device, _count: True, received=one.command_received))
        for name in ("push", "ingest", "stream"):
            one.start(name)
        one.begin()
        rows = folder / "tables/soak/_delta_log"
        before = len(list(rows.glob("*.json")))
        poll_for(lambda: len(list(rows.glob("*.json"))) > before + 1, 120, "the first rows of this piece", every=1.0)
        yield one
