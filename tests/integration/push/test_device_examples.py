"""The devices in examples/devices, each as a process at a real MQTT broker, and this test beside it as push."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from bridge.contract.commands import Command, CommandPosition
from bridge.contract.tagged_positions import PositionTags, new_secret, read_from
from bridge.mqtt.device import DeviceClient
from bridge.mqtt.types import Message
from bridge.push.actions import Push
from bridge.push.device_protocol import DeviceAnswer, outgoing, parse_answer
from bridge.settings.mqtt import MqttSettings
from bridge.settings.push import PushSettings
from tests.support.secured import mosquitto
from tests.support.waiting import patient, poll_for

ROOT: Final = Path(__file__).resolve().parents[3]
EXAMPLES: Final = ROOT / "examples/devices"
ARDUINO: Final = ROOT / "tests/support/arduino"
PARTITION: Final = 3


def program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def compiled(folder: Path, *command: str | Path) -> list[str]:
    done = subprocess.run(
        [*map(str, command), "-Wall", "-Wextra", "-Werror", "-o", "device"],
        cwd=folder, check=False, capture_output=True, text=True, timeout=patient(120),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [str(folder / "device")]


def here(name: str, folder: Path, port: int) -> Path:
    """Copy an example, with the port of the broker of this test."""
    text = (EXAMPLES / name).read_text(encoding="utf-8")
    assert text.count("1883") == 1
    copy = folder / Path(name).name
    copy.write_text(text.replace("1883", str(port)), encoding="utf-8")
    return copy


def python(folder: Path, port: int) -> list[str]:
    return [sys.executable, str(here("device.py", folder, port))]


def micropython(folder: Path, port: int) -> list[str]:
    found = program("micropython")
    if subprocess.run([found, "-c", "import umqtt.simple"], check=False, capture_output=True).returncode:
        pytest.skip("MicroPython has no umqtt.simple: `micropython -m mip install umqtt.simple`, or set MICROPYPATH")
    return [found, str(here("device_micropython.py", folder, port))]


def c(folder: Path, port: int) -> list[str]:
    gcc = program("gcc")
    if subprocess.run([gcc, "-E", "-"], input=b"#include <mosquitto.h>", check=False, capture_output=True).returncode:
        pytest.skip("mosquitto.h is not installed: libmosquitto-dev")
    return compiled(folder, gcc, here("device.c", folder, port), "-lmosquitto")


def arduino(folder: Path, port: int) -> list[str]:
    library = os.environ.get("ARDUINO_MQTT")
    if library is None:
        pytest.skip("ARDUINO_MQTT does not name a folder with the library 256dpi/arduino-mqtt")
    source = Path(library) / "src"
    sketch = here("arduino/arduino.ino", folder, port)
    c_files = sorted((source / "lwmqtt").glob("*.c"))
    subprocess.run([program("gcc"), "-c", *map(str, c_files)], cwd=folder, check=True, timeout=patient(120))
    objects = [folder / f"{file.stem}.o" for file in c_files]
    return compiled(
        folder, program("g++"), "-std=c++17", f"-I{ARDUINO}", f"-isystem{source}", "-x", "c++", sketch,
        ARDUINO / "main.cpp", source / "MQTTClient.cpp", "-x", "none", *objects,
    )  # fmt: skip


PROGRAMS: Final = {"press-5": python, "press-6": micropython, "press-7": arduino, "press-8": c}


def test_the_sketch_compiles_against_the_declarations_of_its_library(tmp_path: Path) -> None:
    command = [program("g++"), "-std=c++17", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", f"-I{ARDUINO}"]
    sketch = ["-x", "c++", str(EXAMPLES / "arduino/arduino.ino")]
    done = subprocess.run([*command, f"-I{ARDUINO / 'declarations'}", *sketch], check=False, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()


class World:
    """Push for one device: it publishes commands in push's form, and reads the device's answers as push does."""

    def __init__(self, device: str, port: int) -> None:
        self.device = device
        self.tags = PositionTags(new_secret(), PARTITION)
        self.settings = PushSettings(confirm="device", position_in="properties" if device == "press-5" else "topic")
        self.mqtt = MqttSettings(host="127.0.0.1", port=port, protocol="5")
        self.received: list[Message] = []
        self.client = DeviceClient(self.mqtt, "push", on_message=self.received.append)
        self.client.connect(patient(10))
        self.client.subscribe("devices/+/status", "pulsebridge/#", "plant/#")

    def push(self, number: int, *, repeat: bool = False) -> None:
        """Publish command ``c<number>``, whose position grows with its number."""
        topic = f"devices/{self.device}/commands"
        one = Command(f"c{number}", self.device, topic, f"c{number}".encode())
        push = Push(number, CommandPosition(8, number), one, repeat)
        sent, properties = outgoing(push, self.settings, self.tags, PARTITION, int(time.time()))
        self.client.publish(sent, one.payload, properties=properties)

    def answers(self) -> list[DeviceAnswer]:
        """Return the answers that push would accept, in order."""
        topic = self.settings.answers.topic
        found = [parse_answer(message, topic, PARTITION) for message in self.received]
        return [one for one in found if one is not None and self.tags.proves(one.tag, one.position, self.device)]

    def payloads(self, topic: str) -> list[bytes]:
        return [message.payload for message in self.received if message.topic == topic]

    def status(self) -> bytes:
        return (self.payloads(f"devices/{self.device}/status") or [b""])[-1]

    def answered(self, *numbers: int) -> None:
        wanted = [CommandPosition(8, number) for number in numbers]
        poll_for(lambda: [one.position for one in self.answers()] == wanted, 60, f"answers to {numbers}")
        assert {(one.payload, one.failed) for one in self.answers()} == {(b"done", False)}

    def forget_session(self) -> None:
        """Delete the device's session at the broker."""
        with DeviceClient(self.mqtt, self.device):
            pass


@contextmanager
def running(command: list[str], folder: Path) -> Iterator[Callable[[], list[str]]]:
    """Run a device, which is killed at the end. Give the function that returns what it has executed so far."""
    log = folder / "executed"
    with log.open("ab") as out:
        process = subprocess.Popen(command, cwd=folder, stdout=out, stderr=subprocess.STDOUT)
        try:
            yield lambda: log.read_text(encoding="utf-8").splitlines()
            assert process.poll() is None, log.read_text(encoding="utf-8")
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()


@pytest.mark.parametrize("device", PROGRAMS)
def test_the_device_executes_each_command_once_over_kills_and_lost_sessions(device: str, tmp_path: Path) -> None:
    with mosquitto(tmp_path) as (port, _):
        command = PROGRAMS[device](tmp_path, port)
        world = World(device, port)
        online = lambda: poll_for(lambda: world.status() == b"online", 60, "online")  # noqa: E731
        offline = lambda: poll_for(lambda: world.status() == b"offline", 60, "its will")  # noqa: E731
        try:
            with running(command, tmp_path) as executed:
                online()
                poll_for(lambda: world.payloads(f"plant/{device}/climate"), 60, "a reading")
                for number in range(3):
                    world.push(number)
                world.answered(0, 1, 2)
                assert executed() == ["execute c0", "execute c1", "execute c2"]
                world.push(2, repeat=True)
                world.push(3, repeat=True)
                world.answered(0, 1, 2, 2, 3)
                assert executed()[3:] == ["execute c3"]
            offline()
            world.push(4)
            with running(command, tmp_path) as executed:
                world.answered(0, 1, 2, 2, 3, 4)
                assert executed()[4:] == ["execute c4"]
                assert world.payloads(f"pulsebridge/resume/{device}") == []
                online()
            offline()
            world.forget_session()
            with running(command, tmp_path) as executed:
                (asked,) = poll_for(lambda: world.payloads(f"pulsebridge/resume/{device}"), 60, "a request to resume")
                assert read_from(asked, device, world.tags, earliest=False)[1] == CommandPosition(8, 4)
                world.push(4, repeat=True)
                world.push(5, repeat=True)
                world.answered(0, 1, 2, 2, 3, 4, 4, 5)
                assert executed()[5:] == ["execute c5"]
        finally:
            world.client.close()
