"""Edge nodes written by others, from their births to a command: through MQTT broker, ingest, Pulsar, the rows, and push."""

from __future__ import annotations

import queue
import shutil
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from bridge.contract import P_TOPIC
from bridge.contract.commands import Command
from bridge.settings import PulsarSettings, PushSettings, Settings
from bridge.settings.ingest import IngestSettings
from pulsebridge.local.stack import LocalStack
from sparkplug.nodes import Births, NodeState
from sparkplug.payloads import command
from sparkplug.rows import METRIC_ROW, Message, metric_rows, node_of
from sparkplug.values import NUMBERS
from tests.support.ingest import running_ingest, stored
from tests.support.push import provision, push_in_thread, write_commands
from tests.support.sparkplug_host import running_host
from tests.support.stack import mqtt_settings
from tests.support.waiting import patient, poll_for

pytestmark = pytest.mark.stack

_NODES: Final = Path(__file__).parents[2] / "support" / "sparkplug_peers"
GROUP: Final = "Plant 1"


@pytest.fixture(scope="module")
def environments(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return the Python of an environment with a package, installed at its first use. The test is skipped without it."""
    made: dict[str, Path] = {}

    def python_with(package: str, interpreter: str) -> Path:
        if package not in made:
            folder = tmp_path_factory.mktemp("peer") / "env"
            subprocess.run([interpreter, "-m", "venv", str(folder)], check=True, timeout=patient(60))
            python = folder / "bin" / "python"
            done = subprocess.run(
                [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", package],
                capture_output=True, text=True, timeout=patient(120), check=False,
            )  # fmt: skip
            if done.returncode:
                pytest.skip(f"{package} cannot be installed: {done.stderr.strip()[-300:]}")
            made[package] = python
        return made[package]

    return python_with


class Peer:
    """A process of an edge node. ``lines`` is what it prints."""

    def __init__(self, python: Path, script: str, stack: LocalStack, node: str) -> None:
        self.process = subprocess.Popen(
            [python, str(_NODES / script), stack.mqtt_host, str(stack.mqtt_port), GROUP, node],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        self._lines: queue.Queue[str] = queue.Queue()
        self.seen: list[str] = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.strip())

    def await_line(self, text: str) -> None:
        """Wait for a line that it prints."""

        def came() -> bool:
            while not self._lines.empty():
                self.seen.append(self._lines.get())
            return text in self.seen

        poll_for(came, 60, f"{text!r} from the edge node, which printed {self.seen}")

    def publish(self, number: float) -> None:
        """Have it publish a number."""
        assert self.process.stdin is not None
        self.seen.clear()
        self.process.stdin.write(f"{number}\n")
        self.process.stdin.flush()
        self.await_line("published")

    def kill(self) -> None:
        """Kill it, so that the MQTT broker publishes its will."""
        self.process.kill()
        self.process.wait()
        self._thread.join()
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()


class Plant:
    """Ingest and push with the preset."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of all messages in Pulsar."""
        found: dict[str, list[Message]] = {}
        for n, one in enumerate(stored(self.settings.pulsar, "sparkplug")):
            node = node_of(one.properties[P_TOPIC])
            assert node == one.key
            message = Message(
                1, n, 0, "sparkplug", one.partition, one.properties[P_TOPIC], one.payload, one.event_ms * 1000
            )
            found.setdefault(node, []).append(message)
        names = [name for name, _ in METRIC_ROW]
        return [
            dict(zip(names, row, strict=True))
            for messages in found.values()
            for row in metric_rows(NodeState(), Births({}), messages, 60_000_000)
        ]

    def await_rows(self, count: int, **wanted: Any) -> list[dict[str, Any]]:
        """Wait for rows with these values."""

        def found() -> list[dict[str, Any]] | None:
            rows = [row for row in self.rows() if all(row[name] == value for name, value in wanted.items())]
            return rows if len(rows) >= count else None

        rows = poll_for(found, 60, f"{count} rows with {wanted}", every=0.5)
        assert rows is not None
        return rows

    def command(self, node: str, device: str | None, metric: str, value: str, kind: str) -> None:
        """Write a command to the node or its device."""
        topic = f"spBv1.0/{GROUP}/NCMD/{node}" if device is None else f"spBv1.0/{GROUP}/DCMD/{node}/{device}"
        payload = command(time.time_ns() // 1_000_000, metric, value, NUMBERS[kind])
        write_commands(self.settings, [Command(uuid.uuid4().hex, f"{GROUP}/{node}", topic, payload)])


@pytest.fixture
def plant(stack: LocalStack, namespaces: PulsarSettings) -> Iterator[Plant]:
    """Ingest and push, until the test ends."""
    mqtt = mqtt_settings(stack)
    settings = Settings(
        mqtt=mqtt,
        pulsar=namespaces.model_copy(update={"command_partitions": 1, "partitions": 1}),
        ingest=IngestSettings(presets=("sparkplug",)),
        push=PushSettings(client_id=f"{mqtt.client_id}-push"),
    )
    provision(settings)
    with running_ingest(settings), push_in_thread(settings):
        yield Plant(settings)


def test_pysparkplug(plant: Plant, stack: LocalStack, environments: Any) -> None:
    node = f"n{uuid.uuid4().hex[:6]}"
    peer = Peer(environments("pysparkplug==0.6.1", sys.executable), "pysparkplug_node.py", stack, node)
    try:
        peer.await_line("born")
        plant.await_rows(1, message_type="DBIRTH")
        born = {row["metric"]: row for row in plant.rows()}
        assert (born["small"]["integer"], born["large"]["text"], born["temp"]["value"]) == (-7, str(2**63 + 5), 1.5)
        assert (born["ratio"]["value"], born["on"]["truth"], born["note"]["text"]) == (0.25, True, "Grüße")
        assert (born["none"]["is_null"], born["none"]["datatype"], born["setpoint"]["integer"]) == (True, "Int32", -3)
        assert (born["speed"]["integer"], born["speed"]["device_id"]) == (-300, "D")
        assert {row["device"] for row in born.values()} == {f"{GROUP}/{node}"}
        peer.publish(7)
        (data,) = plant.await_rows(1, message_type="NDATA")
        (of_device,) = plant.await_rows(1, message_type="DDATA")
        assert (data["metric"], data["value"], of_device["metric"], of_device["integer"]) == ("temp", 7.0, "speed", -7)
        plant.command(node, None, "setpoint", "-41", "Int32")
        peer.await_line("command setpoint None -41")
        plant.command(node, "D", "speed", "9", "Int16")
        peer.await_line("command speed None 9")
    finally:
        peer.kill()
    (death,) = plant.await_rows(1, message_type="NDEATH")
    assert (death["metric"], death["bd_seq"]) == ("bdSeq", born["bdSeq"]["bd_seq"])
    assert {row["mark"] for row in plant.rows()} == {None}
    assert not any(row["_fault"] for row in plant.rows())


def test_mqtt_spb_wrapper(plant: Plant, stack: LocalStack, environments: Any) -> None:
    node = f"n{uuid.uuid4().hex[:6]}"
    peer = Peer(environments("mqtt-spb-wrapper==2.1.2", sys.executable), "mqtt_spb_wrapper_node.py", stack, node)
    try:
        peer.await_line("born")
        plant.await_rows(1, message_type="DBIRTH")
        born = {row["metric"]: row for row in plant.rows()}
        assert (born["DATA/temp"]["value"], born["DATA/on"]["truth"], born["DATA/note"]["text"]) == (1.5, True, "Grüße")
        assert '"columns":["a","b"]' in born["DATA/table"]["json"]
        peer.publish(7)
        (data,) = plant.await_rows(1, message_type="NDATA")
        (of_device,) = plant.await_rows(1, message_type="DDATA")
        assert (data["metric"], data["value"], of_device["metric"], of_device["integer"]) == ("temp", 7.0, "speed", -7)
        plant.command(node, None, "setpoint", "-41", "Int64")
        peer.await_line("command setpoint None -41")
        plant.command(node, "D", "stop", "true", "Boolean")
        peer.await_line("command stop None True")
    finally:
        peer.kill()
    plant.await_rows(1, message_type="NDEATH")
    assert not any(row["_fault"] for row in plant.rows())


def newer_python() -> str:
    """Return a Python that aiospb 8 runs on. The test is skipped without one."""
    if sys.version_info >= (3, 12):
        return sys.executable
    asks = (
        ["uv", "python", "find", "--offline", "3.12"],
        ["pyenv", "prefix", "3.12"],
        ["python3.12", "-c", "import sys; print(sys.executable)"],
    )
    for ask in asks:
        if shutil.which(ask[0]):
            done = subprocess.run(ask, capture_output=True, text=True, check=False, timeout=patient(60))
            found = Path(done.stdout.strip())
            if done.returncode == 0:
                return str(found / "bin" / "python" if found.is_dir() else found)
    pytest.skip("there is no Python 3.12")


def test_aiospb_waits_for_its_host(plant: Plant, stack: LocalStack, environments: Any) -> None:
    node = f"n{uuid.uuid4().hex[:6]}"
    peer = Peer(environments("aiospb==8.1.3", newer_python()), "aiospb_node.py", stack, node)
    try:
        peer.await_line("connected")
        assert plant.rows() == []
        with running_host(plant.settings, f"host-{node}"):
            plant.await_rows(1, message_type="DBIRTH")
            born = {row["metric"]: row for row in plant.rows()}
            assert (born["temp"]["value"], born["on"]["truth"], born["note"]["text"]) == (3.0, True, "Grüße")
            assert (born["setpoint"]["integer"], born["speed"]["integer"]) == (-3, -300)
            peer.publish(7)
            (data,) = plant.await_rows(1, message_type="NDATA")
            assert (data["metric"], data["value"]) == ("temp", 7.0)
            assert {row["mark"] for row in plant.rows()} == {None}
            plant.command(node, None, "setpoint", "-41", "Int32")
            peer.await_line("command setpoint None -41")
            plant.command(node, "D", "speed", "9", "Int16")
            peer.await_line("command speed None 9")
            plant.await_rows(1, message_type="DDATA", metric="speed", integer=9)
    finally:
        peer.kill()
    (death,) = plant.await_rows(1, message_type="NDEATH")
    assert (death["metric"], death["bd_seq"]) == ("bdSeq", born["bdSeq"]["bd_seq"])
    # It gives messages that it sends at once one seq, so there may be gaps after the commands.
    assert not any(row["_fault"] for row in plant.rows())


def test_aiospb_before_version_4_does_not_speak_sparkplug_b(environments: Any) -> None:
    python = environments("aiospb==3.0.4", sys.executable)
    shown = subprocess.run(
        [python, "-c", "import inspect; from aiospb.mqtt import encoding; print(inspect.getsource(encoding))"],
        capture_output=True, text=True, timeout=patient(60), check=True,
    ).stdout  # fmt: skip
    assert "json.dumps" in shown
    assert "protobuf" not in shown
