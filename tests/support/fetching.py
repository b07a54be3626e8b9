"""Devices that fetch their commands over HTTP, and the settings and processes that serve them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import yaml

from bridge.contract.commands import Command
from bridge.mqtt.device import DeviceClient
from bridge.mqtt.types import Message
from bridge.protocols.handler import Address
from bridge.settings import PulsarSettings, Settings
from bridge.settings.http import HttpSettings
from pulsebridge.local.stack import LocalStack
from tests.support.merging import merged
from tests.support.push import parking_settings
from tests.support.waiting import await_end, patient, poll_for

__all__ = ["HttpDevice", "Statuses", "fetch_settings", "fetched_in_order", "ingest_of_commands", "listens"]


def fetch_settings(
    stack: LocalStack, namespaces: PulsarSettings, http: dict[str, Any] | None = None, **push: Any
) -> Settings:
    """Return settings by which devices fetch the commands of ``tests.support.push.command``, on any free port."""
    found = parking_settings(stack, namespaces, **push)
    root = found.push.client_id
    commands = {
        "topics": [f"{root}/{{device}}/commands"],
        "client_id": f"{found.mqtt.client_id}-dev",
        "absent_after": "1s",
    }
    made = HttpSettings(**merged({"port": 0, "commands": commands}, http or {}))
    changes = {"messaging_protocols": ("http",), "http": made}
    settings = found.model_copy(update=changes)
    assert settings.fetch_problem(made.commands) is None
    return settings


class Statuses:
    """Sees the signs of life and absence as push does."""

    def __init__(self, settings: Settings) -> None:
        self.seen: list[tuple[str, str]] = []
        self._filter = f"{settings.push.client_id}/+/status"
        client_id = f"{settings.mqtt.client_id}-statuses"
        self._client = DeviceClient(settings.mqtt, client_id, on_message=self._on_message)

    def __enter__(self) -> Statuses:
        self._client.connect(30)
        self._client.subscribe(self._filter)
        return self

    def __exit__(self, *exc: object) -> None:
        self._client.close()

    def _on_message(self, message: Message) -> None:
        self.seen.append((message.topic.split("/")[-2], message.payload.decode()))

    def last(self, device: str) -> str:
        return next((status for one, status in reversed(self.seen) if one == device), "")

    def becomes(self, status: str, *devices: str) -> None:
        poll_for(lambda: {self.last(device) for device in devices} == {status}, 60, f"{devices} to be {status}")


class HttpDevice:
    """A device that fetches and confirms until the block ends; keeps what it got, in order.

    ``by``: ``post`` confirms with an answer, ``after`` with the next fetch, ``none`` never does. ``most`` ends it after
    so many commands.
    """

    def __init__(
        self, address: Address, device: str, *, by: str = "post", most: int = 1 << 30, wait_s: int = 1, token: str = ""
    ) -> None:
        self.url = f"http://{address.host}:{address.port}/devices/{device}/commands"
        self.device = device
        self.got: list[tuple[str, bool]] = []
        self.statuses: list[int] = []
        self._by, self._most, self._wait_s = by, most, wait_s
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._ended = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> HttpDevice:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        await_end(self._thread)
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            with httpx.Client(timeout=patient(60), trust_env=False, headers=self._headers) as client:
                after = ""
                while not self._ended.is_set() and len(self.got) < self._most:
                    after = self._next(client, after)
        except BaseException as e:  # noqa: BLE001 raised at the end of the block
            self._failure = e

    def _next(self, client: httpx.Client, after: str) -> str:
        query = {"wait": str(self._wait_s)} | ({"after": after} if after and self._by == "after" else {})
        try:
            answer = client.get(self.url, params=query)
            self.statuses.append(answer.status_code)
            if answer.status_code != 200:
                assert answer.status_code in (204, 409, 503), answer.text
                self._ended.wait(0 if answer.status_code == 204 else 0.1)
                return after
            position, repeat = answer.headers["command-position"], answer.headers["command-repeat"] == "true"
            assert answer.headers["command-topic"].endswith(f"/{self.device}/commands")
            self.got.append((answer.headers["command-id"], repeat))
            while self._by == "post" and not self._ended.is_set():
                done = client.post(f"{self.url}/{position}", content=b"done " + answer.content)
                self.statuses.append(done.status_code)
                if done.status_code in (200, 404):  # 404: it comes again
                    break
                assert done.status_code == 503, done.text
                self._ended.wait(0.1)
            return position
        except httpx.TransportError:
            self.statuses.append(0)
            self._ended.wait(0.1)
            return after

    @property
    def ids(self) -> list[str]:
        return [command_id for command_id, _ in self.got]


def fetched_in_order(devices: Iterable[HttpDevice], commands: Iterable[Command]) -> int:
    """Check that each device got its commands, in order, with each repeat marked. Returns the repeats."""
    devices = list(devices)
    repeats = 0
    for device in {one.device for one in devices}:
        got = [one for each in devices if each.device == device for one in each.got]
        wanted = [one.command_id for one in commands if one.device == device]
        assert list(dict.fromkeys(command_id for command_id, _ in got)) == wanted
        seen: set[str] = set()
        for command_id, repeat in got:
            assert repeat or command_id not in seen, f"{command_id} came again and is not marked"
            repeats += command_id in seen
            seen.add(command_id)
    return repeats


@contextmanager
def ingest_of_commands(
    settings: Settings, port: int, folder: Path, kill_at: str = "", more: tuple[str, ...] = ()
) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """Run ``pulsebridge ingest`` with these settings on a port, as a process that may be killed."""
    config, log = folder / f"fetch-{port}.yaml", folder / f"fetch-{port}.log"
    made = settings.model_copy(update={"http": settings.http.model_copy(update={"port": port})})
    config.write_text(yaml.safe_dump(made.model_dump(mode="json", exclude_defaults=True)), encoding="utf-8")
    command = [sys.executable, "-c", "from pulsebridge.cli.app import main; main()", "ingest", "-c", str(config), *more]
    with log.open("ab") as out:
        env = os.environ | ({"PULSEBRIDGE_KILL_AT": kill_at} if kill_at else {})
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=env)
    try:
        yield process, log
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def listens(address: Address) -> None:
    """Wait until it answers."""

    def answers() -> bool:
        try:
            url = f"http://{address.host}:{address.port}/"
            return httpx.get(url, timeout=30, trust_env=False).status_code == 404
        except httpx.TransportError:
            return False

    poll_for(answers, 60, "ingest to listen")
