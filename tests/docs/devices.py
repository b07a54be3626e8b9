"""The generated pages of example devices: the files of examples/devices, each unchanged."""

from __future__ import annotations

from pathlib import Path
from typing import Final

__all__ = ["devices_page", "embedded_page"]

_EXAMPLES: Final = Path(__file__).resolve().parents[2] / "examples/devices"
_HEAD: Final = """\
# Example devices: Python and MicroPython

Each of these devices sends a message a minute, executes each command once, answers it, reports its presence, and
continues after a lost session. [The protocol of a device](protocol.md) explains each step. The files are in
`examples/devices`; [Arduino and C](examples-embedded.md) have a page of their own.

| device | MQTT | settings of push | run at a real MQTT broker |
|---|---|---|---|
| Python, paho-mqtt | 5 | `confirm: device` | yes |
| MicroPython, umqtt.simple | 3.1.1 | `confirm: device`, `position_in: topic` | yes: MicroPython 1.28 for Unix, not on a board |
| Arduino, 256dpi/arduino-mqtt | 3.1.1 | the same | yes: compiled for Linux with the library 2.5.3 and a small stand-in for the board, not on a board |
| C, libmosquitto | 3.1.1 | the same | yes |

A test starts each device as a process beside Mosquitto. It sends commands in the form of push, reads the answers as push
does, kills the device, repeats commands, and deletes the session. A device whose tools are not installed is left out; the
sketch is then only compiled.

Change the address, the port and the name of the device. Use TLS and a password beyond your own machine.
"""
_EMBEDDED: Final = """\
# Example devices: Arduino and C

The same device as in [Python and MicroPython](examples.md), for an ESP32 and in C. That page says what it does and how it
was run.
"""
_DEVICES: Final = {
    "Python": ("device.py", "python", "`pip install paho-mqtt`."),
    "MicroPython": ("device_micropython.py", "python", "`mpremote mip install umqtt.simple`. Connect the board to the network first."),
    "Arduino": ("arduino/arduino.ino", "cpp", "For an ESP32. Install the library MQTT (256dpi/arduino-mqtt) in the library manager."),
    "C": ("device.c", "c", "On Debian: `apt-get install libmosquitto-dev`, then `cc device.c -lmosquitto`."),
}  # fmt: skip


def devices_page() -> str:
    """Return the page with the devices in Python and MicroPython."""
    return _HEAD + _section("Python") + _section("MicroPython")


def embedded_page() -> str:
    """Return the page with the devices for Arduino and in C."""
    return _EMBEDDED + _section("Arduino") + _section("C")


def _section(name: str) -> str:
    file, language, about = _DEVICES[name]
    code = (_EXAMPLES / file).read_text(encoding="utf-8")
    return f"\n## {name}\n\n{about}\n\n```{language}\n{code}```\n"
