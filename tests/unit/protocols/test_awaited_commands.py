"""Sessions of devices on a thread of their own, at a broker by hand: requests from an event loop, bounds, and the stop."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from bridge.contract import COMMAND_ID_PROPERTY, COMMAND_POSITION_PROPERTY
from bridge.contract.commands import CommandPosition
from bridge.contract.tagged_positions import PositionTags
from bridge.errors import ConfigError
from bridge.mqtt.packets import publish_packet
from bridge.mqtt.types import PublishProperties
from bridge.protocols.awaited_commands import AwaitedCommands
from bridge.protocols.commands import CommandOutcome
from bridge.protocols.listening import Listening
from bridge.settings import Settings
from bridge.settings.fetch import FetchSettings
from pulsebridge.local.ports import free_ports
from tests.support.raw_broker import CLOSE, RawBroker
from tests.support.waiting import patient, poll_for

POSITION = PositionTags(b"s" * 32, 3).tagged(CommandPosition(7, 1, -1), "d")


def command(payload: bytes = b"do") -> bytes:
    user = ((COMMAND_ID_PROPERTY, "id-1"), (COMMAND_POSITION_PROPERTY, POSITION))
    properties = PublishProperties(user=user, expiry_s=60)
    return publish_packet("devices/d/commands", payload, 1, 17, properties=properties, mqtt5=True)


class World:
    def __init__(self, broker: RawBroker, listening: Listening, **fetch: Any) -> None:
        self.failures: list[BaseException] = []
        self.loop = listening.loop
        self.broker = broker
        settings = Settings(
            mqtt={"port": broker.port, "keep_alive": "5s"},
            push={"confirm": "device", "presence": {"rules": [{"filter": "devices/+device/status"}]}},
        )
        self.fetch_settings = FetchSettings(**({"topics": ("devices/{device}/commands",)} | fetch))
        service: Any = SimpleNamespace(settings=settings, loop=listening.loop, failed=self.failures.append)
        self.commands = AwaitedCommands(service, self.fetch_settings)

    def call(self, act: Any) -> Any:
        async def run() -> Any:
            return act()

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result()

    def fetch(self, device: str = "d", after: str = "", wait_s: float = 30) -> asyncio.Future[CommandOutcome]:
        return self.call(lambda: self.commands.fetch(device, after, wait_s))  # type: ignore[no-any-return]

    def result(self, future: asyncio.Future[CommandOutcome]) -> CommandOutcome:
        async def run() -> CommandOutcome:
            return await future

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(patient(30))

    @property
    def statuses(self) -> list[tuple[str, bytes]]:
        return [(one.topic, one.payload) for one in self.broker.came if one.topic.endswith("/status")]


@contextmanager
def running(broker: RawBroker, **fetch: Any) -> Iterator[World]:
    listening = Listening()
    listening.start()
    try:
        world = World(broker, listening, **fetch)
        try:
            yield world
        finally:
            world.commands.stop(time.monotonic() + 5)
            world.commands.join()
        assert world.failures == []
    finally:
        listening.end()


def test_a_command_is_given_and_acknowledged_to_the_broker_when_its_answer_is_published() -> None:
    with RawBroker(forwards=command()) as broker, running(broker) as world:
        found = world.result(world.fetch())
        assert found.command is not None
        assert (found.command.payload, found.command.command_id, found.command.repeat) == (b"do", "id-1", False)
        assert broker.acked == []
        done = world.call(lambda: world.commands.confirm("d", POSITION, b"done", failed=False))
        assert world.result(done) == CommandOutcome(confirmed=True)
        (answer,) = (one for one in broker.came if one.topic == "pulsebridge/answers/0/3")
        assert answer.payload == b"done"
        poll_for(lambda: broker.acked == [(4, 17)], 30, "the PUBACK")
        poll_for(lambda: world.statuses[-1][1] == b"online", 30, "the sign of life")
    assert [payload for _, payload in world.statuses] == [b"offline", b"online", b"offline"]
    assert "device-sessions" not in {thread.name for thread in threading.enumerate()}


def test_a_connection_that_ends_is_reported_and_the_next_request_begins_a_new_one() -> None:
    with RawBroker() as broker, running(broker) as world:
        waiting = world.fetch()
        poll_for(lambda: world.statuses, 30, "the session")
        broker.kill()
        assert "MQTT broker ended" in world.result(waiting).unavailable
        assert world.result(world.fetch(wait_s=1)) == CommandOutcome()
        assert broker.connections == 2


def test_a_broker_that_is_away_ends_requests_and_does_not_hold_others() -> None:
    gone: Any = SimpleNamespace(port=free_ports(1)[0], came=[])
    with running(gone) as world:
        assert "MQTT broker" in world.result(world.fetch(wait_s=20)).unavailable
    with RawBroker(lambda _: CLOSE) as closes, running(closes) as world:
        assert world.result(world.fetch(wait_s=20)).unavailable


def test_a_client_that_leaves_gives_its_place_to_the_absence() -> None:
    with RawBroker() as broker, running(broker, absent_after="1s") as world:
        waiting = world.fetch(wait_s=60)
        poll_for(lambda: ("devices/d/status", b"online") in world.statuses, 30, "the sign of life")
        world.loop.call_soon_threadsafe(waiting.cancel)
        poll_for(lambda: world.statuses[-1][1] == b"offline", 30, "the absence")


def test_devices_and_what_they_hold_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bridge.protocols.awaited_commands._HELD_BYTES", 16 * 1024 * 1024)
    with (
        RawBroker(forwards=command(bytes(17 * 1024 * 1024))) as large,
        running(large) as world,
    ):  # larger than any command: it is cut, and is none
        poll_for(lambda: world.result(world.fetch(wait_s=1)) == CommandOutcome(), 30, "a session that has no command")
    with (
        RawBroker(forwards=command(bytes(6 * 1024 * 1024))) as broker,
        running(broker, devices=3) as world,
    ):
        for name in ("a", "b"):
            assert world.result(world.fetch(name)).command is not None
        assert world.result(world.fetch("c", wait_s=3)) != CommandOutcome()  # one of them has ended, perhaps this one
        poll_for(lambda: world.result(world.fetch("d", wait_s=1)) != CommandOutcome(), 30, "room")


def test_too_many_devices_are_turned_away() -> None:
    with RawBroker() as broker, running(broker, devices=2) as world:
        waiting = [world.fetch(name) for name in ("a", "b")]
        assert "too many devices" in world.result(world.fetch("c")).unavailable
        assert not any(one.done() for one in waiting)


@pytest.mark.parametrize("device", ["", "a+b", "a/b", "#", "x" * 2000, "\0", "\ud800"])
def test_what_cannot_be_a_device_has_no_topics(device: str) -> None:
    with RawBroker() as broker, running(broker) as world:
        assert world.commands.topics(device) is None
        assert world.commands.topics("d") is not None


def test_settings_that_serve_no_commands_are_refused() -> None:
    service: Any = SimpleNamespace(settings=Settings(), loop=None, failed=None)
    with pytest.raises(ConfigError, match=r"push\.presence\.rules"):
        AwaitedCommands(service, FetchSettings(topics=("devices/{device}/commands",)))
