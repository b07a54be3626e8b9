"""STATE of the host at real brokers: processes that are started, killed and stopped, and one host at a time."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bridge.mqtt.device import DeviceClient
from bridge.mqtt.types import Message
from bridge.settings import PulsarSettings, Settings
from pulsebridge.local.stack import LocalStack
from sparkplug.host import state_payload, state_topic
from tests.support.sparkplug_host import running_host
from tests.support.stack import mqtt_settings
from tests.support.tcp_proxy import TcpProxy
from tests.support.waiting import patient, poll_for

pytestmark = pytest.mark.stack


class Watcher:
    """An edge node that watches the STATE of a host."""

    def __init__(self, settings: Settings) -> None:
        self.host_id = f"host-{uuid.uuid4().hex[:8]}"
        self.states: list[dict[str, Any]] = []
        self.settings = settings
        self.client = DeviceClient(settings.mqtt, f"{settings.mqtt.client_id}-watcher", on_message=self._take)

    def _take(self, message: Message) -> None:
        self.states.append(json.loads(message.payload))

    def await_state(self, online: bool) -> dict[str, Any]:
        """Wait for the last state, and forget all until then."""
        poll_for(lambda: self.states and self.states[-1]["online"] is online, 60, f"a STATE with online {online}")
        found = self.states[-1]
        self.states.clear()
        return found

    def await_stored(self, wanted: Callable[[dict[str, Any]], bool]) -> None:
        """Wait for a retained STATE, as an edge node that connects now gets it. A broker may store it a little later
        than it delivers it.
        """

        def came() -> bool:
            found: list[dict[str, Any]] = []
            name = f"{self.settings.mqtt.client_id}-late-{uuid.uuid4().hex[:8]}"
            with DeviceClient(
                self.settings.mqtt, name, on_message=lambda m: found.append(json.loads(m.payload))
            ) as late:
                late.subscribe(state_topic(self.host_id))
                until = time.monotonic() + 1.0
                while not found and time.monotonic() < until:
                    time.sleep(0.02)
            return bool(found) and wanted(found[-1])

        poll_for(came, 60, "the retained STATE")


@pytest.fixture
def watcher(broker: LocalStack, namespaces: PulsarSettings) -> Iterator[Watcher]:
    """A watcher of the host of this test."""
    made = Watcher(Settings(mqtt=mqtt_settings(broker), pulsar=namespaces))
    with made.client:
        made.client.subscribe(state_topic(made.host_id))
        yield made


@contextmanager
def process(watcher: Watcher, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Run ``pulsebridge sparkplug host``; it is killed at the end unless it has ended."""
    config = folder / "host.yaml"
    config.write_text(
        watcher.settings.model_dump_json(include={"mqtt", "pulsar"}, exclude_unset=True), encoding="utf-8"
    )
    started = subprocess.Popen(
        [sys.executable, "-c", "from pulsebridge.cli.app import main; main()", "sparkplug", "host", "--id", watcher.host_id,
         "--config", str(config)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        yield started
    finally:
        if started.poll() is None:
            started.kill()
        print(started.communicate()[0])


@pytest.mark.tck(
    "tck-id-components-ph-state", "tck-id-operational-behavior-host-application-disconnect-intentional",
    "tck-id-operational-behavior-host-application-termination",
)  # fmt: skip
def test_a_process_that_is_killed_is_offline_by_its_will_and_one_that_is_stopped_says_so(
    watcher: Watcher, tmp_path: Path
) -> None:
    with process(watcher, tmp_path) as first:
        born = watcher.await_state(True)
        watcher.await_stored(lambda state: state == born)
        first.send_signal(signal.SIGKILL)
        assert watcher.await_state(False) == {"online": False, "timestamp": born["timestamp"]}
        watcher.await_stored(lambda state: state == {"online": False, "timestamp": born["timestamp"]})
    with process(watcher, tmp_path) as second:
        again = watcher.await_state(True)
        assert again["timestamp"] > born["timestamp"]
        second.send_signal(signal.SIGTERM)
        last = watcher.await_state(False)
        assert last["timestamp"] > again["timestamp"]
        assert second.wait(patient(30)) == 0
    watcher.await_stored(lambda state: state == last)


def test_one_process_at_a_time_is_the_host_and_another_follows(watcher: Watcher, tmp_path: Path) -> None:
    with process(watcher, tmp_path) as first:
        watcher.await_state(True)
        with running_host(watcher.settings, watcher.host_id) as second:
            poll_for(lambda: second.waiting, 30, "the second process to wait")
            assert not watcher.states
            first.send_signal(signal.SIGKILL)
            poll_for(lambda: second.online, 60, "the second process to be the host")
            poll_for(lambda: watcher.states[-1:] and watcher.states[-1]["online"], 30, "its birth")
            watcher.await_stored(lambda state: state["online"] is True)
    watcher.await_stored(lambda state: state["online"] is False)


@pytest.mark.tck(
    "tck-id-message-flow-hid-sparkplug-state-message-delivered",
)  # fmt: skip
def test_a_state_that_says_offline_is_answered_by_a_birth(watcher: Watcher) -> None:
    with running_host(watcher.settings, watcher.host_id) as host:
        born = watcher.await_state(True)
        poll_for(lambda: host.online, 30, "the host to be online")
        for wrong in (state_payload(born["timestamp"] - 5, online=False), state_payload(0, online=False)):
            watcher.client.publish(state_topic(watcher.host_id), wrong, retain=True)
            poll_for(lambda: len(watcher.states) > 1 and watcher.states[-1] == born, 30, "a further birth")
            watcher.states.clear()
        watcher.await_stored(lambda state: state == born)


@pytest.mark.tck(
    "tck-id-operational-behavior-host-application-multi-server-timestamp",
)  # fmt: skip
def test_a_lost_connection_is_followed_by_one_with_a_later_time(watcher: Watcher) -> None:
    mqtt = watcher.settings.mqtt
    with TcpProxy(mqtt.host, mqtt.port) as proxy:
        through = mqtt.model_copy(update={"host": "127.0.0.1", "port": proxy.port})
        with running_host(watcher.settings.model_copy(update={"mqtt": through}), watcher.host_id):
            born = watcher.await_state(True)
            proxy.cut()
            poll_for(lambda: len(watcher.states) > 1 and watcher.states[-1]["online"], 60, "another birth")
            will, again = watcher.states[0], watcher.states[-1]
            assert will == {"online": False, "timestamp": born["timestamp"]}
            assert again["timestamp"] > born["timestamp"]
