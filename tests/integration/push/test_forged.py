"""Clients that pretend to be other devices: forged answers, forged requests to resume, and floods of them.

No broker here has an ACL, so what protects the devices is push alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from bridge.contract import COMMAND_POSITION_PROPERTY
from bridge.mqtt.device import DeviceClient
from bridge.mqtt.types import Message, PublishProperties
from bridge.settings import PulsarSettings, Settings
from pulsebridge.local.stack import LocalStack
from tests.support.ingest import running_ingest
from tests.support.push import (
    command,
    provision,
    push_in_thread,
    push_settings,
    receipts,
    user,
    write_commands,
)
from tests.support.resuming import OffsetDevice, resume_settings
from tests.support.stack import mqtt_settings
from tests.support.waiting import poll_for

pytestmark = pytest.mark.stack

WRONG = "AAAAAAAAAAAAAAAA"


class SilentDevices:
    """Devices behind one connection; each answers when the test says so."""

    def __init__(self, settings: Settings) -> None:
        self.got: dict[str, list[Message]] = {}
        self._settings = settings
        self._client = DeviceClient(settings.mqtt, f"{settings.mqtt.client_id}-devices", on_message=self._on_message)

    @contextmanager
    def listening(self) -> Iterator[SilentDevices]:
        with self._client:
            self._client.subscribe(f"{self._settings.push.client_id}/+/commands/#")
            yield self

    def _on_message(self, message: Message) -> None:
        self.got.setdefault(message.topic.split("/")[1], []).append(message)

    def position(self, device: str) -> str:
        """Return the position of the device's last command, with dots."""
        last = self.got[device][-1]
        if self._settings.push.position_in == "properties":
            return user(last)[COMMAND_POSITION_PROPERTY]
        levels = last.topic.split("/commands/")[1].removesuffix("/repeat")
        return levels.replace("/", ".")

    def answer(self, position: str, payload: bytes, *, failed: bool = False) -> None:
        """Answer as a device of the settings' version of MQTT does, with this position."""
        topic = self._settings.push.answers.topic
        if self._settings.push.position_in == "properties":
            properties = PublishProperties(
                user=(("failed", "1"),) if failed else (), correlation_data=position.encode()
            )
            self._client.publish(f"{topic}/0/0", payload, properties=properties)
        else:
            levels = position.replace(".", "/")
            self._client.publish(f"{topic}/{levels}/failed" if failed else f"{topic}/{levels}", payload)
        assert self._client.flush()


@pytest.mark.parametrize("where", ["properties", "topic"])
def test_h36_a_forged_answer_settles_nothing_and_fails_nothing(
    broker: LocalStack, namespaces: PulsarSettings, where: str
) -> None:
    mqtt = mqtt_settings(broker, protocol="3.1.1" if where == "topic" else "5")
    settings = push_settings(
        namespaces, mqtt, confirm="device", position_in=where, answers={"timeout": "10m"}, drain="500ms"
    )
    provision(settings)
    mine, other = command(settings, "d", 1), command(settings, "e", 1)
    devices = SilentDevices(settings)
    with devices.listening(), push_in_thread(settings) as metrics:
        write_commands(settings, [mine, other])
        poll_for(lambda: len(devices.got) == 2, 60, "both commands at their devices")
        guessed = ".".join(devices.position("d").split(".")[:5])
        own_tag = devices.position("e").split(".")[5:]
        forged = [guessed, f"{guessed}.{WRONG}", ".".join([guessed, *own_tag])]
        for position in forged:
            for failed in (True, False):
                devices.answer(position, b"forged", failed=failed)
        poll_for(lambda: metrics.counters["stray_answers"]._value.get() == 6, 60, "push has read the forged answers")
        assert metrics.counters["forged_answers"]._value.get() == 4, "two have no tag"
        assert metrics.counters["answers"]._value.get() == 0
        assert receipts(settings) == {}
        devices.answer(devices.position("d"), b"true")
        poll_for(lambda: "d-1" in receipts(settings), 60, "the receipt of the true answer")
        (receipt,) = receipts(settings)["d-1"]
        assert (receipt.state, receipt.answer, receipt.attempts) == ("answered", b"true", 1)
        assert len(devices.got["d"]) == 1


def test_h36_a_device_proves_itself_to_the_next_owner_by_what_it_got_from_the_former(
    stack: LocalStack, namespaces: PulsarSettings
) -> None:
    settings = push_settings(
        namespaces, mqtt_settings(stack), confirm="device", answers={"timeout": "10m"}, drain="100ms"
    )
    provision(settings)
    devices = SilentDevices(settings)
    with devices.listening():
        with push_in_thread(settings):
            write_commands(settings, [command(settings, "d", 1)])
            poll_for(lambda: devices.got.get("d"), 60, "the command")
        first = devices.position("d")
        assert len(first.split(".")) == 6
        with push_in_thread(settings):
            poll_for(lambda: len(devices.got["d"]) == 2, 60, "the command from the next owner")
            assert devices.position("d") == first
            devices.answer(first, b"true")
            poll_for(lambda: "d-1" in receipts(settings), 60, "the receipt")


@pytest.mark.parametrize("protocol", ["3.1.1", "5"])
def test_h36_a_forged_request_to_resume_sends_nothing_again(
    broker: LocalStack, namespaces: PulsarSettings, protocol: str
) -> None:
    where = "topic" if protocol == "3.1.1" else "properties"
    settings = resume_settings(
        broker, namespaces, position_in=where, resume={"interval": "0s", "allow_earliest": False}
    )
    provision(settings)
    commands = [command(settings, "d", n) for n in range(10)]
    with (
        running_ingest(settings),
        push_in_thread(settings) as metrics,
        OffsetDevice(settings, "d", protocol=protocol) as device,
        OffsetDevice(settings, "e", protocol=protocol) as hostile,
        DeviceClient(settings.mqtt, f"{settings.mqtt.client_id}-forger") as forger,
    ):
        write_commands(settings, [*commands, command(settings, "e", 0)])
        device.awaits(commands)
        hostile.awaits([command(settings, "e", 0)])
        mark = "/" if where == "topic" else "."
        guessed = mark.join(device.places["3"].split(mark)[:5])
        hostile_tag = hostile.places["0"].split(mark)[5:]
        forged = ["earliest", guessed, f"{guessed}{mark}{WRONG}", mark.join([guessed, *hostile_tag])]
        for request in [*forged, hostile.places["0"]]:
            forger.publish(f"{settings.mqtt.client_id}/resume/d", request.encode())
        assert forger.flush()
        poll_for(lambda: len(device.answers) == 5, 60, "an answer to each request")
        assert all("error" in answer for answer in device.answers)
        device.ask(device.places["7"])
        device.goes_on_with(commands[8:])
        assert [text for text in device.got if text != "answer"] == [*(str(n) for n in range(10)), "8", "9"]
        assert metrics.counters["resume_answers"].labels("error")._value.get() == 5


def test_h47_a_flood_of_requests_delays_no_command_and_gets_few_answers(
    broker: LocalStack, namespaces: PulsarSettings
) -> None:
    settings = resume_settings(broker, namespaces, resume={"interval": "1h"}, limits={"window": 4})
    provision(settings)
    commands = [command(settings, "d", n) for n in range(40)]
    root = settings.mqtt.client_id
    topics: list[str] = []
    with (
        running_ingest(settings),
        push_in_thread(settings) as metrics,
        OffsetDevice(settings, "d") as device,
        DeviceClient(settings.mqtt, f"{root}-forger", on_message=lambda m: topics.append(m.topic)) as forger,
    ):
        forger.subscribe(f"{settings.push.resume.answer_topic}/#")
        write_commands(settings, commands[:20])
        device.awaits(commands[:20])
        for n in range(300):
            forger.publish(f"{root}/resume/d", b"not a position %d" % n)
            forger.publish(f"{root}/resume/invented-{n}", b"earliest")
        write_commands(settings, commands[20:])
        device.awaits(commands)
        poll_for(lambda: metrics.counters["resume_requests"]._value.get() == 600, 120, "push has read the requests")
        device.ask(device.places["9"])  # the flood does not use up what the device itself may ask
        device.goes_on_with(commands[10:])
        counts = {
            one: metrics.counters["resume_answers"].labels(one)._value.get() for one in ("error", "dropped", "unknown")
        }
        assert counts == {"error": 1, "dropped": 299, "unknown": 300}
        assert topics == [f"{settings.push.resume.answer_topic}/d"] * 2
