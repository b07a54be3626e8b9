"""Devices of each protocol, all with the same manners: in order per topic, and again until it is acknowledged."""

from __future__ import annotations

import base64
import queue
import socket
import subprocess
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
from prometheus_client import REGISTRY

from bridge.contract import partition_name
from bridge.ingest.service import IngestService
from bridge.mqtt.device import DeviceClient
from bridge.protocols.handler import Address
from bridge.pulsar.admin import PulsarAdmin, rest_path
from bridge.pulsar.provisioning_plan import subscription_step
from bridge.settings import Settings
from bridge.settings.fetch import FetchSettings
from bridge.settings.http import HttpSettings
from bridge.settings.ingest import IngestSettings
from bridge.settings.pulsar import PulsarSettings
from bridge.settings.push import PushSettings
from bridge.settings.rules import TopicRule
from pulsebridge.local.stack import LocalStack
from tests.support.merging import merged
from tests.support.stack import mqtt_settings
from tests.support.waiting import await_end, patient

LIMIT = 20
"""Messages that each protocol's handler has in flight at most."""


class Peer(ABC):
    """The devices of one protocol. ``acked`` counts what the handler has acknowledged."""

    protocol: str

    def __init__(self, stack: LocalStack, namespaces: PulsarSettings) -> None:
        self.mqtt = mqtt_settings(stack, protocol="3.1.1")
        self.root = self.mqtt.client_id
        self.namespaces = namespaces

    def settings(self, **ingest: Any) -> Settings:
        """Return settings that run this protocol alone; each device writes to the Pulsar topic ``fleet``."""
        rule = TopicRule(name="fleet", filter=f"{self.root}/+device/+metric", topic="fleet", device="{device}")
        return Settings(
            messaging_protocols=(self.protocol,),
            mqtt=self.mqtt,
            pulsar=self.namespaces,
            http=HttpSettings(port=0, limits={"in_flight": LIMIT, "store_timeout": "2m"}),
            ingest=IngestSettings(**merged({"routes": (rule,), "limits": {"in_flight": LIMIT // 2}}, ingest)),
        )

    @contextmanager
    def opened(self, service: IngestService) -> Iterator[Peer]:
        """Connect the devices to a service that runs."""
        self.open(service)
        try:
            yield self
        finally:
            self.close()

    @abstractmethod
    def open(self, service: IngestService) -> None: ...

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def send(self, topic: str, payload: bytes) -> None:
        """Publish, without waiting for anything."""

    @property
    @abstractmethod
    def acked(self) -> int: ...

    def command_settings(self) -> Settings:
        """Return settings by which push serves commands to devices that fetch them, over a link that is older than MQTT 5."""
        topic = f"{self.root}-push/{{device}}/commands"
        push = {
            "client_id": f"{self.root}-push",
            "confirm": "device",
            "position_in": "topic",
            "answers": {"topic": f"{self.root}/answers", "timeout": "2s"},
            "presence": {"rules": [{"filter": f"{self.root}-push/+device/status"}]},
            "groups": {"topic": topic},
        }
        commands = {"topics": [topic], "client_id": f"{self.root}-dev", "absent_after": "1s"}
        made = self.settings()
        http = made.http.model_copy(update={"commands": FetchSettings(**commands)})
        pulsar = self.namespaces.model_copy(update={"command_partitions": 1})
        return made.model_copy(update={"push": PushSettings(**push), "http": http, "pulsar": pulsar})

    def fetching(self, service: IngestService, device: str) -> AbstractContextManager[Fetcher]:
        """Return a connection of a device that fetches; only of protocols in ``FETCHING``."""
        raise NotImplementedError


class Fetcher(NamedTuple):
    """What a connected device does. ``fetch`` returns position, whether it is a repeat, and payload; None without one."""

    fetch: Callable[[int, str], tuple[str, bool, bytes] | None]
    confirm: Callable[[str, bytes], bool]


class MqttPeer(Peer):
    """One device client with a publish in flight at a time; its broker is between it and the handler."""

    protocol = "mqtt"

    def open(self, service: IngestService) -> None:
        self.before = acknowledged()
        self.client = DeviceClient(self.mqtt, f"{self.root}-dev", window=1)
        self.client.connect(30)

    def close(self) -> None:
        self.client.close()

    def send(self, topic: str, payload: bytes) -> None:
        self.client.publish(topic, payload)

    @property
    def acked(self) -> int:
        return int(acknowledged() - self.before)


def acknowledged() -> float:
    """Return how many PUBACKs ingest has sent in this process."""
    return sum(
        sample.value
        for metric in REGISTRY.collect()
        for sample in metric.samples
        if sample.name == "pulsebridge_ingest_acked_total"
    )


class _Threaded(Peer):
    """A thread for each topic, which publishes one after the other and again until it is acknowledged."""

    def open(self, service: IngestService) -> None:
        (self.address,) = service.running.listeners[self.protocol]
        self._queues: dict[str, queue.SimpleQueue[bytes | None]] = {}
        self._threads: list[threading.Thread] = []
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._acked = 0

    def close(self) -> None:
        self._ended.set()
        for one in self._queues.values():
            one.put(None)
        for thread in self._threads:
            await_end(thread, 30)

    @property
    def acked(self) -> int:
        return self._acked

    def send(self, topic: str, payload: bytes) -> None:
        if topic not in self._queues:
            self._queues[topic] = queue.SimpleQueue()
            thread = threading.Thread(target=self._run, args=(topic, self._queues[topic]), daemon=True)
            self._threads.append(thread)
            thread.start()
        self._queues[topic].put(payload)

    def _run(self, topic: str, payloads: queue.SimpleQueue[bytes | None]) -> None:
        with self.device(self.address) as publish:
            while (payload := payloads.get()) is not None:
                while not self._ended.is_set():
                    if publish(topic, payload):
                        with self._lock:
                            self._acked += 1
                        break
                    self._ended.wait(0.1)

    @contextmanager
    def device(self, address: Address) -> Iterator[Callable[[str, bytes], bool]]:
        """Yield what publishes a message and returns whether it was acknowledged."""
        raise NotImplementedError


class HttpPeer(_Threaded):
    protocol = "http"

    @contextmanager
    def device(self, address: Address) -> Iterator[Callable[[str, bytes], bool]]:
        with httpx.Client(base_url=f"http://{address.host}:{address.port}", timeout=180, trust_env=False) as client:

            def publish(topic: str, payload: bytes) -> bool:
                try:
                    answer = client.post(f"/topics/{topic}", params={"qos": "1"}, content=payload)
                except httpx.TransportError:
                    return False
                assert answer.status_code in (200, 202, 503), answer.text
                return answer.status_code != 503

            yield publish

    @contextmanager
    def fetching(self, service: IngestService, device: str) -> Iterator[Fetcher]:
        (address,) = service.running.listeners[self.protocol]
        base = f"http://{address.host}:{address.port}/devices/{device}/commands"
        with httpx.Client(timeout=180, trust_env=False) as client:

            def fetch(wait_s: int, after: str) -> tuple[str, bool, bytes] | None:
                answer = client.get(base, params={"wait": str(wait_s)} | ({"after": after} if after else {}))
                if answer.status_code != 200:
                    assert answer.status_code in (204, 409, 503), answer.text
                    return None
                headers = answer.headers
                return headers["command-position"], headers["command-repeat"] == "true", answer.content

            yield Fetcher(fetch, lambda at, answer: client.post(f"{base}/{at}", content=answer).status_code == 200)


class LinePeer(_Threaded):
    """Devices of the third party's protocol in ``tests/support/line_protocol``."""

    protocol = "line"

    @contextmanager
    def device(self, address: Address) -> Iterator[Callable[[str, bytes], bool]]:
        with (
            socket.create_connection(address, timeout=180) as connection,
            connection.makefile("rb") as answers,
        ):

            def publish(topic: str, payload: bytes) -> bool:
                try:
                    connection.sendall(f"1 {topic} {base64.b64encode(payload).decode()}\n".encode())
                    return answers.readline().decode().strip() in ("1 OK", "1 DEAD")
                except OSError:
                    return False

            yield publish

    @contextmanager
    def fetching(self, service: IngestService, device: str) -> Iterator[Fetcher]:
        (address,) = service.running.listeners[self.protocol]
        with (
            socket.create_connection(address, timeout=180) as connection,
            connection.makefile("rb") as answers,
        ):

            def asked(line: str) -> list[str]:
                connection.sendall(f"{line}\n".encode())
                return answers.readline().decode().split()[1:]

            def fetch(wait_s: int, after: str) -> tuple[str, bool, bytes] | None:
                found = asked(f"? {device} {wait_s} {after}".rstrip())
                return None if len(found) < 2 else (found[0], found[1] == "1", base64.b64decode("".join(found[2:])))

            def confirm(at: str, answer: bytes) -> bool:
                return asked(f"! {device} {at} {base64.b64encode(answer).decode()}") == ["OK"]

            yield Fetcher(fetch, confirm)


PEERS: dict[str, type[Peer]] = {"mqtt": MqttPeer, "http": HttpPeer, "line": LinePeer}
FETCHING = ("http", "line")
"""Protocols whose devices fetch their commands."""


def install_line_protocol(target: Path) -> None:
    """Install the third party's package into a folder, as pip does it for everybody."""
    source = Path(__file__).parent / "line_protocol"
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"),
            *("--no-build-isolation", "--no-index", "--target", str(target), str(source)),
        ],
        check=True,
        timeout=patient(120),
    )


@contextmanager
def held(namespaces: PulsarSettings) -> Iterator[None]:
    """Make Pulsar block every producer of the topic ``fleet`` in the ``with`` block: it neither stores nor refuses.

    A backlog quota that is reached, with the policy that ingest provisions; no other topics are touched. The
    topic must hold a message.
    """
    quota = f"/namespaces/{namespaces.tenant}/{namespaces.namespace}/backlogQuota?backlogQuotaType=destination_storage"
    topic = namespaces.readings_topic("fleet")
    with PulsarAdmin(namespaces, timeout_s=30) as admin:
        for number in range(admin.partition_count(topic)):
            admin.do(subscription_step(partition_name(topic, number), "holds"))
        body = {"limitSize": 1, "limitTime": -1, "policy": "producer_request_hold"}
        admin.request("POST", quota, body=body)
        unload(admin, topic)
        try:
            yield
        finally:
            admin.request("POST", quota, body=body | {"limitSize": -1})
            unload(admin, topic)


def unload(admin: PulsarAdmin, topic: str) -> None:
    for number in range(admin.partition_count(topic)):
        admin.request("PUT", f"/{rest_path(partition_name(topic, number))}/unload")
